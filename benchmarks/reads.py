"""Measures the badge: by unread rows, of many users, and by concurrent clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from typing import Any

from django.db import connection

from notifications_counter.counters import unread

from .bench import LIMIT, OURS, Report, race, size
from .crew import at_once, crew, redis_time
from .rivals import (
    CachedCount,
    CappedCount,
    CounterRow,
    CountSql,
    CountStar,
    Deltas,
    Hq,
    Ours,
    Recipe,
    Rival,
    RowSql,
    agree,
    empty,
    quoted,
    redis,
    users,
)

GET = f"{LIMIT}a bare `GET`"
MGET = f"{LIMIT}`MGET` on a bare connection"  # our read without our code


def bare(number: int) -> Callable[[int], object]:
    """GET totals under keys as long as ours."""
    keys = [f"{{nc:plain:0}}:total:1:{user}" for user in range(number + 1)]
    redis.mset(dict.fromkeys(keys, 50))
    return lambda user: redis.get(keys[user])


def bare_connection(number: int) -> Callable[[int], object]:
    """MGET a total and another key on a connection from the pool of redis-py's client."""
    keys = [f"{{nc:plain:0}}:total:1:{user}" for user in range(number + 1)]
    connection: Any = redis.connection_pool.make_connection()

    def read(user: int) -> object:
        connection.send_command("MGET", keys[0], keys[user])
        return connection.read_response()

    return read


def calls(do: Callable[[int], object], some: Any, number: int) -> Callable[[], None]:
    def run() -> None:
        for user in islice(some, number):
            do(user)

    return run


def badge(report: Report, quick: bool) -> str:
    """Measure by the unread rows of the user."""
    sizes = (0, 10, 1_000, 10_000 if quick else 100_000)
    empty()
    users(len(sizes))
    rivals = [Ours(), CountStar(), CountSql(), CappedCount(), CounterRow(), RowSql(), Deltas(), Recipe(), Hq()]
    rivals.append(CachedCount())
    for user, each in enumerate(sizes, 1):
        for rival in rivals:
            rival.fill(1, each, first=user)
    agree(rivals, len(sizes))
    get, mget = bare(len(sizes)), bare_connection(len(sizes))
    races = {}
    for user, each in enumerate(sizes, 1):
        times = (100 if quick else 200) if each <= 10 else 50
        does = {rival.name: calls(rival.read, cycle([user]), times) for rival in rivals} | {
            GET: calls(get, cycle([user]), times),
            MGET: calls(mget, cycle([user]), times),
        }
        races[each] = race(does, rounds=5 if quick else 25, units=times, about=f"badge, {size(each)} unread")
    report.short |= {f"a badge of {size(each)} unread rows": races[each] for each in (10, sizes[-1])}
    series = {name: {each: races[each].median(name) for each in sizes} for name in races[0].rounds}
    report.plot("badge", "Time to read one badge", "unread rows of the user", series)
    del races[0]  # only in the plot
    return report.matrix("reading a badge", races, "unread rows:", size)


def many(report: Report, quick: bool) -> str:
    """Measure the badges of 1,000 users at once."""
    number = 1_000
    empty()
    users(number)
    ours, rows = Ours(), CountStar()
    them = list(range(1, number + 1))
    ours.fill(number, 5)
    rows.fill(number, 5)
    keys = [f"{{nc:plain:0}}:total:1:{user}" for user in them]
    redis.mset(dict.fromkeys(keys, 5))

    def grouped() -> None:
        from django.db.models import Count

        counted = rows.model.objects.filter(user_id__in=them, read_at=None).values_list("user_id").annotate(Count("pk"))
        assert len(counted) == number

    statement = (
        f"SELECT user_id, COUNT(*) FROM {quoted(rows.model)} WHERE user_id = ANY(%s) AND read_at IS NULL GROUP BY 1"
    )

    def by_a_cursor() -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement, (them,))
            assert len(dict(cursor.fetchall())) == number

    does = {
        f"{OURS}, `counts()`": partial(unread.counts, them),
        "`COUNT(*)`, grouped": grouped,
        "`COUNT(*)`, grouped, cursor": by_a_cursor,
        f"{LIMIT}a bare `MGET`": partial(redis.mget, keys),
    }
    return report.matrix("the badges of 1,000 users", {"": race(does, rounds=8 if quick else 40, about="counts")})


def clients(report: Report, quick: bool) -> str:
    """Measure concurrent clients, each a process with its own connections. The table has a few numbers of clients, the
    plot all."""
    numbers = (1, 4, 16) if quick else (1, 2, 4, 8, 16, 32)
    shown = (1, 16) if quick else (1, 8, 32)
    each = 200
    empty()
    users(each)
    rivals: list[Rival] = [Ours(), CountStar(), CountSql(), CounterRow(), RowSql()]
    for rival in rivals:
        rival.fill(each, 50)
    agree(rivals, each)
    get = bare(each)
    work: dict[str, Callable[[int], object]] = {
        rival.name: lambda worker, rival=rival: rival.read(1 + (worker * 37) % each) for rival in rivals
    }
    work[GET] = lambda worker: get(1 + (worker * 37) % each)
    halves, tails = {}, {}
    with crew(max(numbers), work) as ends:
        for number in numbers:
            times = max(10, (200 if quick else 1_000) // number)
            halves[number], tails[number] = at_once(
                ends[:number], work, rounds=3 if quick else 5, calls=times, about=f"badge, {number} clients"
            )
        report.costs["redis_read"] = redis_time(ends[:16], work, OURS, 50)
    connection.ensure_connection()
    series = {}
    for name in (rivals[0].name, rivals[1].name):
        series[f"{name}, p50"] = {number: race.median(name) for number, race in halves.items()}
        series[f"{name}, p99"] = {number: race.median(name) for number, race in tails.items()}
    report.plot("clients", "Time to read one badge of 50 unread rows", "clients at once", series)
    return report.matrix("badges at once", {number: halves[number] for number in shown}, "p50, clients:")
