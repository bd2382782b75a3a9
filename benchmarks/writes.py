"""Measures writes: of one row, for many users, of all rows of a user, and of many writers at once."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import Any

from django.db import connection, transaction
from django.test import override_settings

from notifications_counter import events
from notifications_counter.counters import unread
from notifications_counter.models import Notification

from . import models
from .bench import LIMIT, OURS, Report, race, size
from .crew import at_once, crew, redis_time
from .reads import calls
from .rivals import (
    CounterRow,
    CountStar,
    Deltas,
    Hq,
    Ours,
    Recipe,
    Rival,
    Trigger,
    agree,
    empty,
    quoted,
    redis,
    redis_seconds,
    rows,
    settle,
    sql,
    users,
    vacuum,
)

NOT_COUNTED = "not counted"
ZINCRBY = f"{LIMIT}a bare `ZINCRBY`"


def rivals() -> list[Rival]:
    return [Ours(), CountStar(), CounterRow(), Trigger(), Deltas(), Recipe(), Hq()]


def create(report: Report, quick: bool) -> str:
    """Create one notification, for one user after another."""
    them, times = 500, 30 if quick else 100
    empty()
    users(them)
    some = rivals()
    for rival in some:
        rival.fill(them, 5)
    turns = {rival.name: cycle(range(1, them + 1)) for rival in some}
    does: dict[str, Any] = {rival.name: calls(rival.create, turns[rival.name], times) for rival in some}
    does[ZINCRBY] = calls(lambda user: redis.zincrby("bare", 1, user), cycle(range(1, them + 1)), times)
    found = race(does, rounds=5 if quick else 25, units=times, about="create()")
    agree(some, them)
    report.costs["create"] = found.median()
    report.short["one notification"] = found
    return report.matrix("one notification", {"": found})


def fan_out(report: Report, quick: bool) -> str:
    """Create a notification for each of many users, in calls of 10,000."""
    sizes = (100, 300, 3_000) if quick else (1_000, 10_000, 100_000)
    part = 10_000
    races = {}
    for number in sizes:
        empty()
        users(number)
        some = rivals() if number <= 1_000 else rivals()[:-1]  # one by one takes minutes
        for rival in some:
            rival.fill(number, 0)

        def send(rival: Rival, number: int = number) -> None:
            for first in range(1, number + 1, part):
                rival.fan_out(range(first, min(number + 1, first + part)))

        does = {rival.name: partial(send, rival) for rival in some}
        if connection.vendor == "postgresql":
            does[f"{LIMIT}`COPY`"] = partial(copy, number)
        large = number > 10_000
        races[number] = race(
            does,
            rounds=3 if large or quick else 6,
            warm=not large,
            units=number,
            prepare=unread.flush,  # so that all rounds find the same
            about=f"fan-out to {size(number)} users",
        )
        agree(some, number)
        report.grew("fan-out, by users", number, races[number].median() * number)
    before, number = redis_seconds(), min(part, sizes[-1])
    Ours().fan_out(range(1, number + 1))
    report.costs["redis_fan_out"] = (redis_seconds() - before) / number
    report.costs["fan_out"] = races[sizes[-1]].median()
    report.short[f"one for each of {size(sizes[-1])} users, a user"] = races[sizes[-1]]
    return report.matrix("fan-out", races, "for each user, users:", size)


def copy(number: int) -> None:
    """Insert only the rows, as fast as the database can."""
    columns = "user_id, kind, title, body, url, data, created_at"
    statement = f"COPY {quoted(models.PlainNotification)} ({columns}) FROM STDIN"
    with transaction.atomic(), connection.cursor() as cursor, cursor.copy(statement) as copied:
        for user in range(1, number + 1):
            copied.write_row((user, "message", "Hello", "World", "", "{}", "2030-01-01 00:00:00+00"))


def mark_all(report: Report, quick: bool) -> str:
    """Mark all notifications of a user as read."""
    each = 1_000 if quick else 10_000
    empty()
    users(1)
    some = rivals()
    for rival in some:
        rival.fill(1, each)

    def again() -> None:
        for rival in some:
            if not rival.read(1):
                rival.unmark_all(1)

    does = {rival.name: partial(rival.mark_all, 1) for rival in some}
    found = race(does, rounds=3 if quick else 6, prepare=again, about=f"mark {size(each)} as read")
    agree(some, 1)
    report.short[f"marking {size(each)} as read"] = found
    return report.matrix("mark all as read", {each: found}, "unread rows:", size)


def hot_user(report: Report, quick: bool) -> str:
    """Write for one user with 16 concurrent writers."""
    writers = 16 if connection.vendor != "sqlite" else 4
    empty()
    users(1)
    some = rivals()
    for rival in some:
        rival.fill(1, 10)
    work = {rival.name: lambda worker, rival=rival: rival.create(1) for rival in some}
    with crew(writers, work) as ends:
        half, tail = at_once(
            ends, work, rounds=3 if quick else 6, calls=10 if quick else 40, about=f"{writers} writers, one user"
        )
        report.costs["redis_create"] = redis_time(ends, work, OURS, 10 if quick else 40)
    agree(some, 1)
    report.short[f"{writers} writers at one user, p50 of a writer"] = half
    report.short[f"{writers} writers at one user, p99 of a writer"] = tail
    return report.matrix("a hot user", {"p50 of a writer": half, "p99 of a writer": tail})


def prices(report: Report, quick: bool) -> str:
    """Measure the cost of the extras."""
    them, times, rounds = 500, 30 if quick else 100, 5 if quick else 25
    empty()
    users(them)
    ours = Ours()
    ours.fill(them, 5)
    some = cycle(range(1, them + 1))
    create = calls(ours.create, some, times)

    def active() -> None:
        with override_settings(NOTIFICATIONS_COUNTER={"RECORD_ACTIVITY": True}):
            create()

    activity = race(
        {"`create()`": create, "with `RECORD_ACTIVITY`": active}, rounds=rounds, units=times, about="activity"
    )

    def record() -> None:
        for _ in range(times):
            events.record_event({"type": "login", "user": 17})

    def plain() -> None:
        for n in range(times):
            pipeline = redis.pipeline(transaction=False)
            pipeline.hset(f"bare:event:{n}", mapping={"type": "login", "user": 17})
            pipeline.zadd("bare:events", {str(n): n})
            pipeline.zadd("bare:events:login", {str(n): n})
            pipeline.execute()

    def hundred() -> None:
        events.record_events([{"type": "login", "user": 17}] * times)

    logged = race(
        {"`record_event()`": record, f"`record_events()` of {times}": hundred, "a bare pipeline": plain},
        rounds=rounds,
        units=times,
        about="events",
    )
    return "\n\n".join(report.matrix("the price of extras", {"": found}) for found in (activity, logged))


def counting(report: Report, quick: bool) -> str:
    """Measure one table with and without a counter: single creates, one call for many, many saves in a transaction."""
    them = 1_000
    empty()
    users(them)
    settle(range(1, them + 1))

    def one_by_one(model: Any) -> None:
        for user in range(1, 101):
            model.objects.create(user_id=user, title="Hello")

    def and_two_trips() -> None:
        for user in range(1, 101):
            models.PlainNotification.objects.create(user_id=user, title="Hello")
            redis.zincrby("bare", 1, user)
            redis.zincrby("bare", 1, user)

    def in_one_call(model: Any) -> None:
        model.objects.bulk_create(model(user_id=user, title="Hello") for user in range(1, them + 1))

    def in_one_transaction(model: Any) -> None:
        with transaction.atomic():
            for user in range(1, 501):
                model(user_id=user, title="Hello").save()

    races = {}
    for name, do, number in (
        ("`create()`", one_by_one, 100),
        ("`bulk_create()` of 1,000 for 1,000 users", in_one_call, them),
        ("500 saves for 500 users in a transaction", in_one_transaction, 500),
    ):
        does = {OURS: partial(do, Notification), NOT_COUNTED: partial(do, models.PlainNotification)}
        if do is one_by_one:
            does[f"{LIMIT}not counted, and two bare `ZINCRBY`"] = and_two_trips
        races[name] = race(does, rounds=5 if quick else 25, units=number, about=name)
    agree([Ours()], them)
    return report.matrix("the price of counting", races)


def delete(report: Report, quick: bool) -> str:
    """Delete a QuerySet of rows of many users."""
    number, them = 5_000 if quick else 50_000, 500
    empty()
    users(them)

    def fill() -> None:
        for model in (Notification, models.PlainNotification):
            sql(f"DELETE FROM {quoted(model)}")
            rows(model, them, number // them)
            vacuum(model)
        settle(range(1, them + 1))

    def do(model: Any) -> None:
        assert model.objects.filter(kind="message").delete()[0] == number

    does = {OURS: partial(do, Notification), NOT_COUNTED: partial(do, models.PlainNotification)}
    found = race(does, rounds=2 if quick else 5, prepare=fill, about=f"delete {size(number)}")
    agree([Ours()], them)
    return report.matrix("deletion", {number: found}, "rows:", size)
