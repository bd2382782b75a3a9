"""The work of the commands, for schedulers that call functions.

    from notifications_counter import tasks

    scheduler.add_job(tasks.flush, "interval", seconds=5)

They go through every database, and every tenant's schema. If one is unreachable, ``flush`` and ``recount`` go through
the others before they raise the error. They may overlap, and be killed. Their results can be serialized as JSON.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import astuple

from .counters import Counter, all_counters
from .failures import at_each
from .models import DatabaseId
from .places import LocalCounter, at, local_counters, places
from .timeseries import CleanResult, clean_counters
from .upkeep.flush import heal_and_flush


def flush() -> dict[str, int]:
    """Heal every counter, and write the counts that have changed to the database, as `flush_counters` does. Returns how
    many owners were flushed, by counter."""
    flushed: Tally[str] = Tally()

    def work(local: LocalCounter[Counter]) -> None:
        is_unfinished = True
        while is_unfinished:
            healed, stored = heal_and_flush(local.counter)
            flushed[local.counter.name] += stored.owners
            is_unfinished = healed.unfinished

    at_each(local_counters(all_counters()), work)
    return dict(flushed)


def recount() -> dict[str, int]:
    """Heal every counter, compare every count with the rows, and flush, as `recount_counters` does. Returns how many
    counts were wrong, by counter."""
    wrong: Tally[str] = Tally()

    def work(local: LocalCounter[Counter]) -> None:
        counter = local.counter
        wrong[counter.name] += counter.heal(math.inf).wrong + counter.recount().wrong + counter.flush().wrong

    at_each(local_counters(all_counters()), work)
    return dict(wrong)


def clean() -> int:
    """Remove old slices of time-sliced counters, as `clean_counters` does. Returns how many."""
    return clean_everywhere().slices


def clean_everywhere(
    due: Callable[[int], bool] = lambda precision: True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CleanResult:
    """Call ``clean_counters()`` at each place, and return the sum of the results."""
    done = CleanResult()
    for place in places([DatabaseId])[DatabaseId]:
        with at(place):
            here = clean_counters(due, progress=progress)
        done = CleanResult(*map(sum, zip(astuple(done), astuple(here), strict=True)))
    return done
