"""Measures the badge: by unread rows, of many users, of a user who is written to, and on every stage."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from itertools import count, cycle, islice, product
from statistics import mean
from time import perf_counter, sleep
from typing import Any

from django.db import connections
from django.db.models import Count

from notifications_counter.counters import unread
from notifications_counter.models import Notification

from . import plots
from .bench import LIMIT, OURS, Report, matrix, number, p99, race, say, size, table, time, timed
from .rivals import CountSql, CountStar, Ours, Rival, agree, fill, readers, redis

GET = f"{LIMIT}a bare `GET`"
MGET = f"{LIMIT}`MGET` on a bare connection"  # our read without our code


def pks_of(number: int) -> list[str]:
    """Set totals under keys as long as ours."""
    keys = [f"{{nc:plain}}:n4ocuef6k5n5g:6b1f0c9a:{user}" for user in range(number + 1)]
    redis.mset(dict.fromkeys(keys, 50))
    return keys


def calls(do: Callable[[int], object], some: Any, number: int) -> Callable[[], None]:
    def run() -> None:
        for user in islice(some, number):
            do(user)

    return run


def badge(report: Report, quick: bool) -> str:
    """Measure by the unread rows of the user."""
    sizes = (0, 10, 1_000, 10_000 if quick else 100_000)
    fill(len(sizes), 0, [])
    rivals = readers()
    for user, each in enumerate(sizes, 1):
        for rival in rivals:
            rival.fill(1, each, first=user)
    agree(rivals, len(sizes))
    keys, bare = pks_of(len(sizes)), redis.connection_pool.make_connection()

    def mget(user: int) -> object:
        bare.send_command("MGET", keys[0], keys[user])
        return bare.read_response()

    work = {rival.name: rival.read for rival in rivals} | {GET: lambda user: redis.get(keys[user]), MGET: mget}
    races = {}
    for user, each in enumerate(sizes, 1):
        times = (100 if quick else 200) if each <= 10 else 50
        does = {name: calls(do, cycle([user]), times) for name, do in work.items()}
        races[each] = race(does, rounds=5 if quick else 25, units=times, about=f"badge, {size(each)} unread")
    series = {name: {each: races[each].median(name) for each in sizes} for name in races[0].rounds}
    report.files["badge.svg"] = plots.lines("Time to read one badge", "unread rows of the user", series)
    del races[0], races[1_000]  # only in the plot, as MGET
    for some in races.values():
        del some.rounds[MGET]
    return matrix(races, "unread rows:", size)


def many(report: Report, quick: bool) -> str:
    """Measure the badges of 1,000 users at once."""
    number = 1_000
    them = list(range(1, number + 1))
    _, rows = fill(number, 5, [Ours(), CountStar()])

    def grouped() -> None:
        counted = rows.model.objects.filter(user_id__in=them, read_at=None).values_list("user_id").annotate(Count("pk"))
        assert len(counted) == number

    does = {
        f"{OURS}, `counts()`": partial(unread.counts, them),
        "`COUNT(*)`, grouped": grouped,
        f"{LIMIT}a bare `MGET`": partial(redis.mget, pks_of(number)[1:]),
    }
    return matrix({"": race(does, rounds=8 if quick else 40, about="counts")})


def hot_owner(report: Report, quick: bool) -> str:
    """Measure while another process marks a row as read and as unread in turn, by the unread rows of the user and by
    writes a second."""
    sizes = (10, 10_000 if quick else 100_000)
    fill(len(sizes), 0, [])
    ours, rows = Ours(), Rival()
    rows.model = Notification
    for user, each in enumerate(sizes, 1):
        ours.fill(1, each, first=user)
    context: Any = multiprocessing.get_context("fork")
    lines = []
    for (user, each), rate in product(enumerate(sizes, 1), (10, 100)):
        connections.close_all()  # a connection belongs to one process
        stop = context.Event()
        writer = context.Process(target=_write, args=(user, rate, stop), daemon=True)
        writer.start()

        def look(read: Callable[[int], int], user: int = user, each: int = each) -> None:
            assert each - 1 <= read(user) <= each

        taken, end = [], perf_counter() + (2 if quick else 10)
        while perf_counter() < end:
            taken.append([timed(partial(look, read)) for read in (ours.read, rows.read)])
            sleep(0.001)
        stop.set()
        writer.join()
        assert not writer.exitcode
        cells = []
        for figure in (mean, p99):
            mine, theirs = map(figure, zip(*taken, strict=True))
            cells.append(f"{time(mine)}, {number(theirs / mine)}×")
        lines.append([f"{size(each)} rows, {rate} a second", *cells])
        say(": ".join(lines[-1]))
    unread.heal(seconds=600)
    assert [ours.read(user) for user in range(1, len(sizes) + 1)] == [rows.read(u) for u in range(1, len(sizes) + 1)]
    return table(["", "mean, `COUNT(*)` ÷ ours", "p99, `COUNT(*)` ÷ ours"], lines)


def _write(user: int, rate: int, stop: Any) -> None:
    row = Notification.objects.for_user(user).filter(pk=Notification.objects.for_user(user)[0].pk)
    does = cycle([row.mark_as_read, row.mark_as_unread])
    started = perf_counter()
    for i in count(1):
        if stop.wait(max(0.0, started + i / rate - perf_counter())):
            return
        next(does)()


def databases(report: Report, quick: bool) -> str:
    """Add a line to the table of all stages."""
    them, times = 100, 50
    some = fill(them, 10, [Ours(), CountStar(), CountSql()])
    does = {rival.name: calls(rival.read, cycle(range(1, them + 1)), times) for rival in some}
    found = race(does, rounds=5 if quick else 20, units=times, about="badge of 10")
    report.lines["badge of 10"] = {OURS: found.cell(OURS)} | {rival.name: found.ratio(rival.name) for rival in some[1:]}
    agree(some, them)
    return ""
