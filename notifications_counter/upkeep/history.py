"""The events of the flusher and of recounts. Each goes to the log, and all except flushes to an event log, too: the
history."""

from __future__ import annotations

import logging

from django.utils.translation import gettext_noop as _

from ..databases.routing import working_on
from ..declaration import Declaration
from ..events import EventLog
from ..exceptions import BufferUnavailable

logger = logging.getLogger("notifications_counter")

LENGTH = 10_000
"""How many events are kept."""

EVENTS = {
    "flush": "flushed %(owners)d owner(s), skipped %(skipped)d, %(seconds).2f s.",
    "recount": _("%(owners)s owner(s) compared, %(wrong)s wrong."),
    "wrong": _(
        "%(owners)s wrong count(s): %(examples)s. Rows are counted now. Look for raw SQL, triggers, restored backups."
    ),
    "generation": _("generation begins: %(reason)s. Everyone is compared with the rows."),
    "walked": _("walk complete: stored totals are up to date."),
    "declared": _("declaration changed. Rows are counted for %(wait)s s, until all processes have it."),
    "off": _("counting off: reads count rows."),
    "on": _("counting on again. Rows are counted for %(wait)s s, until all processes know."),
    "replaced": _(
        "flusher replaced by one of another release. Restart this one with the code and settings of that release."
    ),
    "skipped": _("%(owners)s owner(s) not stored: %(examples)s."),
}
"""What is said of each type of event, in the log and, translated, on the dashboard: a format string for its fields."""

history = EventLog("history")


def log_event(type: str, counter: Declaration, level: int = logging.INFO, **fields: object) -> dict[str, object]:
    """Log an event, and return its fields."""
    event = {"counter": counter.name, **fields}
    logger.log(level, f"%(counter)s: {EVENTS[type]}", event, extra={"event": type, **event})
    return event


def record(type: str, counter: Declaration, level: int = logging.INFO, **fields: object) -> None:
    """Log an event, and record it. Does not raise if Redis is unreachable."""
    event = log_event(type, counter, level, **fields)
    try:
        with working_on(counter.db):
            history.record_event({"type": type, **event})
            history.trim_events(max_length=LENGTH)
    except BufferUnavailable as error:
        about = {"event": "unrecorded", "type": type, "reason": str(error)}
        logger.info("Not recorded: an event of type %r: %s", type, error, extra=about)
