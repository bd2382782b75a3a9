"""The work of the commands, for schedulers that call functions.

    from notifications_counter import tasks

    scheduler.add_job(tasks.flush, "interval", seconds=5)

They go through every database, and every tenant's schema. If one is unreachable, ``flush`` and ``recount`` go through
the others before they raise the error. They may overlap, and be killed. Their results can be serialized as JSON.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from datetime import timedelta

from django.db import close_old_connections

from .counters import Counter, all_counters
from .maintenance.cleaning import clean_everywhere
from .maintenance.flush import heal_and_flush
from .maintenance.orphans import remove_orphans
from .maintenance.places import OUTAGES, LocalCounter, at_each, local_counters
from .maintenance.retention import prune as prune_notifications
from .maintenance.verification import verify


def flush() -> dict[str, int]:
    """Heal every counter, write what waits in Redis to the database, and compare some owners with the rows, as
    `flush_counters` does. Returns how many owners were flushed, by counter."""
    flushed: Tally[str] = Tally()
    counters = local_counters(all_counters())

    def work(local: LocalCounter[Counter]) -> None:
        def flush() -> None:
            flushed[local.counter.name] += local.counter.flush().owners

        while heal_and_flush(local.counter, local.counter.heal, flush):
            pass

    at_each(counters, work)
    verify(counters)
    return dict(flushed)


def recount() -> dict[str, int]:
    """Heal every counter and compare every count with the rows, as `recount_counters` does. Returns how many counts
    were corrected, by counter."""
    corrected: Tally[str] = Tally()

    def work(local: LocalCounter[Counter]) -> None:
        counter = local.counter
        corrected[counter.name] += counter.heal(math.inf).corrected + counter.recount(resume=True).corrected
        remove_orphans(counter)

    at_each(local_counters(all_counters()), work)
    return dict(corrected)


def clean() -> int:
    """Remove old slices of time-sliced counters, as `clean_counters` does. Returns how many."""
    return clean_everywhere().slices


def prune(days: float, read_only: bool = False, keep_newest: int = 0) -> int:
    """Delete notifications older than ``days``, as `prune_notifications` does. Returns how many."""
    try:
        return prune_notifications(timedelta(days=days), read_only, keep_newest).deleted
    except OUTAGES:
        close_old_connections()  # the next run in this thread needs a new one
        raise
