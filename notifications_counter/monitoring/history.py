"""What happened to the counters, in Redis: the last events in an event log, and the changes in time-sliced counters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.dispatch import receiver

from ..databases.routing import working_on
from ..declaration import Declaration
from ..events import EventLog
from ..exceptions import BufferUnavailable
from ..timeseries import LARGEST, TimeSeries
from ..upkeep.news import happened

logger = logging.getLogger("notifications_counter")

LENGTH = 10_000
"""How many events are kept."""

history = EventLog("history")


@receiver(happened)
def keep(*, counter: Declaration, type: str, fields: Mapping[str, Any], **_: object) -> None:
    """Keep an event of upkeep. Does not raise if Redis is unreachable."""
    try:
        with working_on(counter.db):
            if type == "stored":
                changes = {f"{counter.name}:{what}": fields[what] for what in ("added", "removed") if fields[what]}
                if changes:
                    TimeSeries().update_counters({name: min(number, LARGEST) for name, number in changes.items()})
            elif type not in ("flush", "compared"):
                history.record_event({"type": type, **fields})
                history.trim_events(max_length=LENGTH)
    except BufferUnavailable as error:
        about = {"event": "unrecorded", "type": type, "reason": str(error)}
        logger.info("Not recorded: an event of type %r: %s", type, error, extra=about)
