"""Measures writes of one row and for many users, and the same questions on every stage."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

from notifications_counter.counters import unread
from notifications_counter.models import Notification

from .bench import LIMIT, OURS, Report, matrix, race, size, time
from .core import forget
from .reads import calls
from .rivals import PART, CounterRow, CountSql, CountStar, Ours, Rival, agree, fill, redis, writers


def create(report: Report, quick: bool) -> str:
    """Create one notification, for one user after another."""
    them, times = 500, 30 if quick else 100
    some = fill(them, 5, writers())
    work = {rival.name: rival.create for rival in some}
    work[f"{LIMIT}a bare `ZINCRBY`"] = lambda user: redis.zincrby("bare", 1, str(user))
    does = {name: calls(do, cycle(range(1, them + 1)), times) for name, do in work.items()}
    found = race(does, rounds=5 if quick else 25, units=times, about="create()")
    agree(some, them)
    return matrix({"": found})


def fan_out(report: Report, quick: bool) -> str:
    """Create a notification for each of many users, in calls of 10,000."""
    sizes = (100, 300, 3_000) if quick else (1_000, 10_000, 100_000)
    races = {}
    for number in sizes:
        some = fill(number, 0, writers())

        def send(rival: Rival, number: int = number) -> None:
            for first in range(1, number + 1, PART):
                rival.fan_out(range(first, min(number + 1, first + PART)))

        does = {rival.name: partial(send, rival) for rival in some}
        large = number > PART
        races[number] = race(
            does,
            rounds=3 if large or quick else 6,
            warm=not large,
            units=number,
            prepare=unread.flush,  # so that all rounds find the same
            about=f"fan-out to {size(number)} users",
        )
        agree(some, number)
    return matrix(races, "for each user, users:", size)


def databases(report: Report, quick: bool) -> str:
    """Add a line to each table of all stages."""
    them, times = 100, 50
    some = fill(them, 10, [Ours(), CountStar(), CountSql(), CounterRow()])
    ways: dict[str, dict[str, Any]] = {
        "badge of 10": {rival.name: rival.read for rival in some},
        "one notification": {rival.name: rival.create for rival in some if not isinstance(rival, CountSql)},
    }
    for what, way in ways.items():
        does = {name: calls(do, cycle(range(1, them + 1)), times) for name, do in way.items()}
        found = race(does, rounds=5 if quick else 20, units=times, about=what)
        report.lines[what] = {OURS: found.cell(OURS)} | {rival.name: found.ratio(rival.name) for rival in some[1:]}
    agree(some, them)
    owners = range(1, 1_001 if quick else 10_001)
    report.lines[f"for each of {size(len(owners))} owners"] = dict(upkeep(owners))
    return ""


def upkeep(owners: range) -> Iterator[tuple[str, str]]:
    """Time a flush and a walk of owners who have three rows, and a new one each before a flush."""
    fill(len(owners), 3, [Ours()])

    def change(cached: bool) -> None:
        unread.counts(owners) if cached else forget()
        Notification.objects.bulk_create((Notification(user_id=user) for user in owners), batch_size=1_000)

    for cached in (True, False):
        found = race({OURS: unread.flush}, rounds=3, units=len(owners), prepare=partial(change, cached))
        yield f"a flush, {'' if cached else 'not '}cached", time(found.median())
    yield "a walk", time(race({OURS: unread.recount}, rounds=3, units=len(owners)).median())
