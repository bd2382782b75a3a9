"""Measures how long it takes to create a notification, for one user and for many."""

from __future__ import annotations

from functools import partial
from itertools import cycle

from notifications_counter.counters import unread

from .bench import Report, matrix, race, size
from .reads import calls
from .rivals import PART, agree, fill, writers


def create(report: Report, quick: bool) -> str:
    """Create one notification, for one user after another, and one for each of many users in a call."""
    them, times = 500, 30 if quick else 100
    some = fill(them, 5, writers())
    does = {rival.name: calls(rival.create, cycle(range(1, them + 1)), times) for rival in some}
    one = race(does, rounds=5 if quick else 25, units=times, about="create()")
    agree(some, them)

    many = 300 if quick else PART
    some = fill(many, 0, writers())
    all_at_once = {rival.name: partial(rival.fan_out, range(1, many + 1)) for rival in some}
    each = race(
        all_at_once,
        rounds=3 if quick else 6,
        units=many,
        prepare=unread.flush,  # so that all rounds find the same
        about=f"bulk_create() for {size(many)} users",
    )
    agree(some, many)
    return matrix({"`create()`": one, f"`bulk_create()` for {size(many)} users, each": each})
