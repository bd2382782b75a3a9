"""Measures several counters on one source, and owners of several columns."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import Any

from notifications_counter.counters import Counter

from . import models
from .bench import Report, race, size
from .counters import COLUMNS, COUNTERS, NUMBERS
from .reads import calls
from .rivals import empty, redis, users, vacuum


def create(report: Report, quick: bool) -> str:
    """Create a row with 1, 2 and 4 counters, and one without."""
    them, times = 100, 50 if quick else 100
    empty()
    users(them)
    for counter in sum(COUNTERS.values(), []):
        counter.heal()
        counter.counts(range(1, them + 1))

    def one(model: Any) -> Any:
        return calls(lambda user: model.objects.create(user_id=user, title="Hello"), cycle(range(1, them + 1)), times)

    does = {"not counted": one(models.PlainNotification)}
    does |= {f"{number} counter{'s' * (number > 1)}": one(getattr(models, NUMBERS[number])) for number in NUMBERS}
    found = race(does, rounds=8 if quick else 40, units=times, about="create()")
    for number, counters in COUNTERS.items():
        rows = getattr(models, NUMBERS[number]).objects
        for counter in counters:
            assert counter.count(1) == rows.filter(user_id=1).count() > 0
    return report.matrix("counters on one model", {"": found})


def columns(report: Report, quick: bool) -> str:
    """Measure owners of one, two and three columns: create a row, read a count, and flush."""
    them, times, waiting = 100, 50 if quick else 100, 5_000 if quick else 100_000
    rounds = 8 if quick else 40
    lines = [f"{n} column{'s' * (n > 1)}" for n in (1, 2, 3)]

    def owner(line: str, user: int) -> Any:
        return user if line == lines[0] else (user, 7, 7)[: int(line[0])]

    def create(user: int, model: Any) -> None:
        model.objects.create(user=user, conversation=7, device=7)

    def flush(counter: Counter) -> None:
        assert counter.flush().owners == waiting

    def prepare() -> None:
        for line, counter in counters.items():
            owner_keys = {str(counter.key(owner(line, user))): 1 for user in range(1, waiting + 1)}
            redis.zadd(counter.buffers[0].keys.pending, owner_keys)
            vacuum(counter.totals)

    empty()
    counters = dict(zip(lines, COLUMNS, strict=True))
    creates: dict[str, Any] = {}
    reads: dict[str, Any] = {}
    for line, counter in counters.items():
        counter.heal()
        creates[line] = calls(partial(create, model=counter.source), cycle(range(1, them + 1)), times)
        reads[line] = calls(counter.count, cycle([owner(line, user) for user in range(1, them + 1)]), times)
    races = {
        "`create()`": race(creates, rounds=rounds, units=times, about="create(), by columns"),
        "`count()`": race(reads, rounds=rounds, units=times, about="count(), by columns"),
    }
    for line, counter in counters.items():
        assert counter.count(owner(line, 1)) == counter.source.objects.filter(user=1).count() > 0
        counter.flush()
    flushes = {line: partial(flush, counter) for line, counter in counters.items()}
    races[f"flush of {size(waiting)}"] = race(
        flushes, rounds=4, units=waiting, prepare=prepare, pin=False, about=f"flush of {size(waiting)}, by columns"
    )
    return report.matrix("owners of several columns", races)
