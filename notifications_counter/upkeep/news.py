"""What upkeep tells of its work: to the log, and to whoever listens, as monitoring does."""

from __future__ import annotations

import logging

from django.dispatch import Signal
from django.utils.translation import gettext_noop as _

from ..declaration import Declaration

logger = logging.getLogger("notifications_counter")

happened = Signal()
"""Sent with the ``counter``, the ``type`` of the event, and its ``fields``."""

EVENTS = {
    "flush": "flushed %(owners)d owner(s), skipped %(skipped)d, %(seconds).2f s.",
    "stored": "%(owners)d of %(of)d owner(s) stored, %(added)d added, %(removed)d removed.",
    "compared": "%(owners)d owner(s) compared.",
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


def tell(type: str, counter: Declaration, level: int = logging.INFO, **fields: object) -> None:
    """Log an event, and tell those who listen."""
    fields = {"counter": counter.name, **fields}
    logger.log(level, f"%(counter)s: {EVENTS[type]}", fields, extra={"event": type, **fields})
    happened.send(sender=counter, counter=counter, type=type, fields=fields)
