"""The events of the flusher and of recounts. Each goes to the log, and all except flushes to an event log, too: the
history."""

from __future__ import annotations

import logging
from typing import NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from ..databases.routing import working_on
from ..declaration import Declaration
from ..events import EventLog
from ..exceptions import BufferUnavailable

logger = logging.getLogger("notifications_counter")

LENGTH = 10_000
"""How many events are kept."""


class Texts(NamedTuple):
    """What is said of a type of event: its ``message`` in the log; and its ``title`` and ``details`` on the dashboard.
    Message and details are format strings for the event's fields."""

    message: str
    title: str | Promise = ""
    details: str | Promise = ""


EVENTS = {
    "flush": Texts("flushed %(owners)d owner(s), skipped %(skipped)d, %(seconds).2f s."),
    "recount": Texts(
        "compared %(owners)d owner(s), %(wrong)d wrong.", _("Recount"), _("%(owners)s compared, %(wrong)s wrong")
    ),
    "wrong": Texts(
        "%(owners)d owner(s) had a wrong count: %(examples)s. Their rows are counted now. Look for raw SQL, a trigger, "
        "or a restored backup.",
        _("Wrong counts"),
        _("%(owners)s wrong: %(examples)s"),
    ),
    "recovery": Texts(
        "%(reason)s. Recovery begins: the first read of each owner counts rows, and everyone is "
        "compared with the stored totals.",
        _("Recovery began"),
        "%(reason)s",
    ),
    "walked": Texts(
        "everyone was compared with the stored totals.", _("Recovery complete"), _("stored totals are up to date")
    ),
    "declared": Texts(
        "its declaration is new. Rows are counted for the next %(wait)d s, until all processes have it.",
        _("Declaration changed"),
        _("by a new release"),
    ),
    "off": Texts(
        "counting is off: reads count rows, and nobody tells Redis of writes.",
        _("Counting off"),
        _("reads count rows"),
    ),
    "on": Texts(
        "counting is on again. Rows are counted for the next %(wait)d s, until all processes know.",
        _("Counting on"),
        _("until all processes know, reads count rows"),
    ),
    "replaced": Texts(
        "a flusher of another release declares it differently. This process no longer flushes it. "
        "Restart it with the code and settings of that release.",
        _("Flusher replaced"),
        _("by one of another release"),
    ),
    "skipped": Texts("%(owners)d owner(s) cannot be stored: %(examples)s.", _("Skipped"), "%(examples)s"),
}

history = EventLog("history")


def log_event(type: str, counter: Declaration, level: int = logging.INFO, **fields: object) -> dict[str, object]:
    """Log an event, and return its fields."""
    event = {"counter": counter.name, **fields}
    logger.log(level, f"%(counter)s: {EVENTS[type].message}", event, extra={"event": type, **event})
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
