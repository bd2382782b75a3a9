"""What the app reports: each event, once, to the log and to receivers of ``event_reported``."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from django.utils.translation import gettext_noop as _

from .signals import event_reported

logger = logging.getLogger("notifications_counter")


class Event(NamedTuple):
    """A kind of event: a ``sentence``, which is a format string for all its fields; the ``level`` at which it is
    usually logged; whether the dashboard's history keeps it, which shows the sentence translated; and whether
    ``event_reported`` is sent: amid a site's write, the signal could swallow a time limit."""

    sentence: str
    level: int = logging.INFO
    is_kept: bool = False
    is_sent: bool = True


EVENTS = {
    "redis_lost": Event(
        "Redis (cache %(cache)r) is unavailable; reads count rows meanwhile: %(reason)s", logging.WARNING
    ),
    "redis_found": Event("Redis (cache %(cache)r) answers again after %(seconds).1f s.", logging.WARNING),
    "redis_refuses": Event(
        "Redis (cache %(cache)r) has refused %(command)s; reads count rows meanwhile: %(reason)s", logging.ERROR
    ),
    "requests_failed": Event(
        "DoubtRequests of %(owners)d owner(s) could not be written to database %(database)r.", logging.ERROR
    ),
    "run_failed": Event("%(reason)s (%(command)s is trying again)", logging.ERROR),
    "run_works": Event("%(command)s works again.", logging.WARNING),
    "everyone": Event(
        "A statement on %(model)s does not say whose counts it changes, so reads of all count rows until the flusher's "
        "next run.",
        logging.WARNING,
        is_sent=False,
    ),
    "unhooked": Event("Counting is switched off, and reads count rows: %(reason)s.", logging.WARNING),
    "also_failed": Event("Failed, too: %(reason)s", logging.ERROR),
    "live_late": Event("Live counts are late, because Redis cannot be heard: %(reason)s", logging.WARNING),
    "unrecorded": Event("Not recorded: an event of type %(type)r: %(reason)s"),
    # Of a counter
    "unserved": Event(
        "no flusher has served this counter yet, so reads count rows. Start `manage.py flush_counters --loop`, or "
        "restart it.",
        logging.WARNING,
    ),
    "flush": Event("%(owners)d owner(s) flushed, %(skipped)d skipped, %(seconds).2f s."),
    "stored": Event("%(owners)d of %(of)d owner(s) stored, %(added)d added, %(removed)d removed.", logging.DEBUG),
    "compared": Event("%(owners)d owner(s) compared.", logging.DEBUG),
    "recount": Event(_("recount: %(owners)s compared, %(wrong)s wrong."), is_kept=True),
    "wrong": Event(
        _(
            "wrong counts found, %(owners)s in all: %(examples)s. Rows are counted now. Look for raw SQL, triggers, "
            "restored backups."
        ),
        logging.WARNING,
        is_kept=True,
    ),
    "skipped": Event(_("not stored, %(owners)s in all: %(examples)s."), logging.ERROR, is_kept=True),
    "late": Event(
        _("flusher was late: changes had waited for up to %(minutes)s min, %(owners)s in all."),
        logging.WARNING,
        is_kept=True,
    ),
    "generation": Event(
        _("generation begins: %(reason)s. Everyone is compared with the rows."), logging.WARNING, is_kept=True
    ),
    "walked": Event(_("walk complete: stored totals are up to date."), is_kept=True),
    "declared": Event(
        _("declaration changed. Rows are counted until all processes have it, for %(wait)s s."),
        logging.WARNING,
        is_kept=True,
    ),
    "waiting": Event(
        "nothing is stored for %(wait)s s, because the counter is new, was off, or has changed. Tests use "
        "isolated_counters().",
        logging.WARNING,
    ),
    "off": Event(_("counting off: reads count rows."), is_kept=True),
    "on": Event(_("counting on again. Rows are counted until all processes know, for %(wait)s s."), is_kept=True),
    "replaced": Event(
        _("flusher replaced by one with other code or settings. Stop the wrong one, and restart the other."),
        logging.ERROR,
        is_kept=True,
    ),
}
"""Every event. Those of a counter also have its name, as the field ``counter``."""


def report(event: str, counter: Any = None, /, *, level: int = 0, exc_info: Any = None, **fields: object) -> None:
    """Report an event, of a counter if one is given, at its usual level if none is given."""
    about = EVENTS[event]
    sentence = about.sentence
    if counter is not None:
        sentence, fields = f"%(counter)s: {sentence}", {"counter": counter.name, **fields}
    level = level or about.level
    logger.log(level, sentence, fields, exc_info=exc_info, extra={"event": event, **fields})
    if about.is_sent:
        event_reported.send_robust(sender=counter, counter=counter, event=event, level=level, fields=fields)
