"""The app's own history: an event log of flushes, recounts, recoveries and rejected members, and time-sliced counters
of flushes."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .conf import options
from .events import EventLog
from .exceptions import BufferUnavailable
from .timeseries import TimeSeries

if TYPE_CHECKING:
    from .counters import Counter
    from .flush import FlushResult
    from .recount import RecountResult

logger = logging.getLogger("notifications_counter")

LENGTH = 10_000
"""Events that are kept; older ones are removed."""

history = EventLog("history")


def record(type: str, counter: Counter, result: FlushResult | RecountResult | None = None, **fields: Any) -> None:
    """Record what the app has done, unless RECORD_EVENTS is off. Never raises for want of Redis."""
    if not options.RECORD_EVENTS:
        return
    event = {"type": type, "counter": counter.name, **(asdict(result) if result else {}), **fields}
    try:
        history.record_event(event)
        history.trim(max_length=LENGTH)
    except BufferUnavailable as error:
        logger.info("An event of type %r was not recorded: %s", type, error)


def tally(counter: Counter, counts: dict[str, int]) -> None:
    """Raise the time-sliced counters of what the app has done, if RECORD_ACTIVITY is on. Never raises for want of
    Redis."""
    if not options.RECORD_ACTIVITY or not counter.activity:
        return
    try:
        TimeSeries().update_counters({f"{counter.activity}:{what}": n for what, n in counts.items() if n})
    except BufferUnavailable as error:
        logger.info("Activity was not recorded: %s", error)
