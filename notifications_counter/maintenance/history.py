"""The events of the flusher and of recounts. Each goes to the log, and all except flushes to an event log, too: the
history."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.core.exceptions import ValidationError

from ..databases.routing import working_on
from ..declaration import Declaration
from ..events import EventLog
from ..exceptions import BufferUnavailable

logger = logging.getLogger("notifications_counter")

LENGTH = 10_000
"""How many events are kept."""

MESSAGES = {
    "flush": "flushed %(owners)d owner(s), finished %(batches)d batch(es), net %(net)+d, rejected %(rejected)d, "
    "%(seconds).2f s.",
    "recount": "recounted %(checked)d owner(s), %(wrong)d wrong, corrected %(corrected)d.",
    "mismatched": "%(wrong)d of %(checked)d owner(s) compared had a wrong count, now corrected: %(examples)s. "
    "Look for raw SQL, a trigger, or a restored backup.",
    "recovery": "%(reason)s. Shard %(shard)d, epoch %(epoch)d: everyone is recounted; until then, "
    "the first read of each owner counts rows.",
    "recovered": "the audit of shard %(shard)d, epoch %(epoch)d, is complete.",
    "declared": "its declaration, or SHARDS, has changed. The flusher recounts everyone %(wait)d s after the last sign "
    "of a process with the old one. Rows are counted meanwhile.",
    "replaced": "a flusher of another release declares it differently, or has other SHARDS. This process no longer "
    "flushes it. Restart it with the code and settings of that release.",
    "rejected": "%(member)r with delta %(delta)s cannot be stored and is kept in `rejected`: %(reason)s.",
}
"""The log message of each event: a format string for its fields."""

history = EventLog("history")


def log_event(
    type: str, counter: Declaration, result: Any = None, level: int = logging.INFO, **fields: Any
) -> dict[str, Any]:
    """Log an event with the fields of a ``result``, a dataclass. Returns the fields."""
    event = {"counter": counter.name, **(asdict(result) if result else {}), **fields}
    if "member" in event:  # it may not be valid text
        event["member"] = event["member"].encode(errors="backslashreplace").decode()
    logger.log(level, f"%(counter)s: {MESSAGES[type]}", event, extra={"event": type, **event})
    return event


def record(type: str, counter: Declaration, result: Any = None, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event, and record it. Does not raise if Redis is unreachable."""
    event = log_event(type, counter, result, level, **fields)
    try:
        with working_on(counter.db):
            history.record_event({"type": type, **event})
            history.trim_events(max_length=LENGTH)
    except BufferUnavailable as error:
        about = {"event": "unrecorded", "type": type, "reason": str(error)}
        logger.info("Not recorded: an event of type %r: %s", type, error, extra=about)


def record_rejected(counter: Declaration, rejected: Mapping[str, str]) -> None:
    """Record each rejected member with its delta, and what to do."""
    for member, delta in rejected.items():
        try:
            counter.decode(member)
        except ValidationError:
            reason = "it is not the primary key of an owner. Find out what wrote it"
        else:
            column = counter.totals._meta.get_field(counter.field)
            reason = f"{column} cannot hold it. Its rows are counted. Use a larger column, or sum up a coarser unit"
        record("rejected", counter, level=logging.ERROR, member=member, delta=delta, reason=reason)
