"""Removes old slices of time-sliced counters in every database, and in every tenant's schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

from ..models import DatabaseId
from ..places import at, places
from ..timeseries import CleanResult, clean_counters


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
