"""The app's own history: an event log of flushes, recounts, recoveries and rejected members, and time-sliced counters
of flushes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..conf import options
from ..declaration import Declaration
from ..declaration.databases import working_on
from ..events import EventLog
from ..exceptions import BufferUnavailable
from ..timeseries import TimeSeries

logger = logging.getLogger("notifications_counter")

LENGTH = 10_000
"""How many events are kept."""

MESSAGES = {
    "flush": "flushed %(users)d user(s) in %(batches)d batch(es), net %(net)+d, rejected %(rejected)d, "
    "%(seconds).2f s.",
    "recount": "recounted %(checked)d user(s), %(wrong)d wrong, corrected %(corrected)d.",
    "recovery": "%(reason)s. Shard %(shard)d, epoch %(epoch)d: everyone is recounted; until then, "
    "the first read of each user counts rows.",
    "recovered": "the audit of shard %(shard)d, epoch %(epoch)d, is complete.",
    "declared": "its declaration, or SHARDS, has changed. The flusher waits until processes with another one have been "
    "gone for %(wait)d s, then recounts everyone. Rows are counted meanwhile.",
    "replaced": "a flusher of another release declares it differently, or has other SHARDS. This process no longer "
    "flushes it. Restart it with the code and settings of that release.",
    "rejected": "%(member)r with delta %(delta)s cannot be stored and is kept in `rejected`.",
}
"""The log message of each event: a format string for its fields."""

history = EventLog("history")


def record_event(
    type: str,
    counter: Declaration,
    result: Any = None,
    level: int = logging.INFO,
    **fields: Any,
) -> None:
    """Log an event with the fields of a ``result`` (a dataclass), and record it unless RECORD_EVENTS is off. Does not
    raise if Redis is unreachable."""
    event = {"counter": counter.name, **(asdict(result) if result else {}), **fields}
    if "member" in event:  # it may not be valid text
        event["member"] = event["member"].encode(errors="backslashreplace").decode()
    logger.log(level, f"%(counter)s: {MESSAGES[type]}", event, extra={"event": type, **event})
    if not options.RECORD_EVENTS:
        return
    try:
        with working_on(counter.db):
            history.record_event({"type": type, **event})
            history.trim_events(max_length=LENGTH)
    except BufferUnavailable as error:
        _not_recorded(f"an event of type {type!r}", error)


def record_rejected(counter: Declaration, rejected: Mapping[str, str]) -> None:
    """Record each rejected member with its delta."""
    for member, delta in rejected.items():
        record_event("rejected", counter, level=logging.ERROR, member=member, delta=delta)


def tally(counter: Declaration, counts: dict[str, int]) -> None:
    """Add to the time-sliced counters of flushes if RECORD_ACTIVITY is on. Does not raise if Redis is out of
    reach."""
    if not options.RECORD_ACTIVITY:
        return
    try:
        with working_on(counter.db):
            TimeSeries().update_counters({f"{counter.name}:{what}": n for what, n in counts.items() if n})
    except BufferUnavailable as error:
        _not_recorded("activity", error)


def _not_recorded(what: str, error: BufferUnavailable) -> None:
    logger.info("Not recorded: %s: %s", what, error, extra={"event": "unrecorded", "what": what, "reason": str(error)})
