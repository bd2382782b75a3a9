"""Reads the count of a user for whom another process writes all the time."""

from __future__ import annotations

import multiprocessing
from itertools import count, cycle, product
from statistics import mean
from time import perf_counter, sleep
from typing import Any

from django.db import connections

from notifications_counter.counters import unread
from notifications_counter.models import Notification

from .bench import OURS, Report, number, say, size, table, time
from .recovery import p99
from .rivals import Ours, Rival, empty, users

RATES = (10, 100)
"""Writes a second."""
PAUSE = 0.001
"""Seconds between two reads."""


def owner(report: Report, quick: bool) -> str:
    """Measure by the unread rows of the user. One row is marked as read and as unread in turn."""
    sizes = (10, 1_000, 10_000 if quick else 100_000)
    empty()
    users(len(sizes))
    ours, rows = Ours(), Rival()
    rows.model = Notification
    for user, each in enumerate(sizes, 1):
        ours.fill(1, each, first=user)
    context: Any = multiprocessing.get_context("fork")
    lines = []
    for (user, each), rate in product(enumerate(sizes, 1), RATES):
        connections.close_all()  # a connection belongs to one process
        stop = context.Event()
        writer = context.Process(target=write, args=(user, rate, stop), daemon=True)
        writer.start()
        taken: dict[str, list[float]] = {OURS: [], "`COUNT(*)`": []}
        end = perf_counter() + (2 if quick else 10)
        while perf_counter() < end:
            for name, read in zip(taken, (ours.read, rows.read), strict=True):
                began = perf_counter()
                found = read(user)
                taken[name].append(perf_counter() - began)
                assert each - 1 <= found <= each, (found, each)
            sleep(PAUSE)
        stop.set()
        writer.join()
        assert not writer.exitcode
        cells = []
        for figure in (mean, p99):
            mine, theirs = map(figure, taken.values())
            cells.append(f"{time(mine)}, {number(theirs / mine)}×")
        lines.append([f"{size(each)} rows, {rate} a second", *cells])
        say(": ".join(lines[-1]))
    unread.heal(seconds=600)
    assert [ours.read(user) for user in range(1, len(sizes) + 1)] == [rows.read(u) for u in range(1, len(sizes) + 1)]
    return table(["", "mean, `COUNT(*)` ÷ ours", "p99, `COUNT(*)` ÷ ours"], lines)


def write(user: int, rate: int, stop: Any) -> None:
    """Change a row of the user at this rate until told to stop."""
    row = Notification.objects.for_user(user).filter(pk=Notification.objects.for_user(user)[0].pk)
    does = cycle([row.mark_as_read, row.mark_as_unread])
    started = perf_counter()
    for i in count(1):
        if stop.wait(max(0.0, started + i / rate - perf_counter())):
            return
        next(does)()
