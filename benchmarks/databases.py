"""A few questions on every database and with Valkey: is the answer another one there?"""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import Any

from notifications_counter.counters import unread
from notifications_counter.models import UserNotificationsCount

from .bench import OURS, Race, Report, race, size
from .maintenance import ONE_UPDATE, pending, right, totals, update_all
from .reads import calls
from .rivals import (
    CounterRow,
    CountSql,
    CountStar,
    Deltas,
    Hq,
    Ours,
    Recipe,
    Rival,
    Trigger,
    agree,
    empty,
    users,
    vacuum,
)


def few(report: Report, quick: bool) -> str:
    large, them, rounds, times = 1_000, 100, 5 if quick else 20, 50
    empty()
    users(them)
    rivals: list[Rival] = [Ours(), CountStar(), CountSql(), CounterRow(), Trigger(), Deltas(), Recipe(), Hq()]
    for rival in rivals:
        rival.fill(them - 1, 10, first=2)
        rival.fill(1, large)
    races: dict[str, Race] = {}
    for what, some in (("badge of 10", range(2, them + 1)), (f"badge of {size(large)}", [1])):
        does: dict[str, Any] = {rival.name: calls(rival.read, cycle(some), times) for rival in rivals}
        races[what] = race(does, rounds=rounds, units=times, about=what)
    rivals.pop(2)  # writes as CountStar does
    does = {rival.name: calls(rival.create, cycle(range(2, them + 1)), times) for rival in rivals}
    races["one notification"] = race(does, rounds=rounds, units=times, about="one notification")

    def again() -> None:
        for rival in rivals:
            if not rival.read(1):
                rival.unmark_all(1)

    marks = {rival.name: partial(rival.mark_all, 1) for rival in rivals}
    races[f"mark {size(large)} as read"] = race(marks, rounds=3, prepare=again, about="mark all as read")
    agree(rivals, them)
    count = 5_000 if quick else 100_000
    empty()
    totals(count)

    def ours() -> None:
        assert unread.flush().owners == count

    def prepare() -> None:
        vacuum(UserNotificationsCount)
        pending(count)

    flushes: dict[str, Any] = {OURS: ours, ONE_UPDATE: update_all}
    rounds = 4
    races[f"flush of {size(count)}, a user"] = race(
        flushes, rounds=rounds, units=count, prepare=prepare, pin=False, about=f"flush of {size(count)}"
    )
    right(rounds + 1)
    return report.matrix("a few questions", races)
