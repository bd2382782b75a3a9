"""What happened to the counters, in Redis: the last events in an event log, and the changes in time-sliced counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..databases.routing import working_on
from ..declaration import Declaration
from ..events import EventLog
from ..exceptions import BufferUnavailable
from ..reports import EVENTS, report
from ..timeseries import MAX_COUNT, TimeSeries

MAX_EVENTS = 10_000
"""How many events are kept."""

history = EventLog("history")


def keep(counter: Declaration, event: str, level: int, fields: Mapping[str, Any], **_: object) -> None:
    """Keep an event if its kind is to be kept, or the changes that a flush has stored. A receiver of
    ``event_reported``."""
    try:
        if EVENTS[event].is_kept:
            with working_on(counter.db):
                history.record_event({"type": event, "level": level, **fields})
                history.trim_events(max_length=MAX_EVENTS)
        elif event == "stored":
            changes = {f"{counter.name}:{what}": fields[what] for what in ("added", "removed") if fields[what]}
            if changes:
                with working_on(counter.db):
                    TimeSeries().update_counters({name: min(number, MAX_COUNT) for name, number in changes.items()})
    except BufferUnavailable as error:
        report("unrecorded", type=event, reason=str(error))
