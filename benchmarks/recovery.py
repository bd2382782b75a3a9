"""Measures the badge, second by second, while an empty Redis is recovered, and the comparison of everyone."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time, sleep
from typing import Any

from django.db import connection, connections

from notifications_counter.counters import unread
from notifications_counter.maintenance.places import local_counters
from notifications_counter.maintenance.verification import schedule, verify
from notifications_counter.models import Notification
from notifications_counter.monitoring.state import look_at

from .bench import OURS, Report, number, say, size, table, time
from .maintenance import totals
from .rivals import CountStar, Ours, empty, redis, redis_seconds, rows, users, vacuum

BEFORE, RATE, ONLINE, EACH = 3, 2_000, 1_000, 10
"""Seconds before Redis is emptied, badges a second, users whose badge is read, and their unread rows."""

DAY = 86_400
"""Seconds."""

FIRST = f"{OURS}, first read"

Seconds = dict[int, list[float]]
"""The times of badges, by the second in which they were read."""


def through(report: Report, quick: bool) -> str:
    """Measure while a thousand of all users are online."""
    number = 20_000 if quick else 200_000
    rival = CountStar()
    empty()
    users(number)
    rows(Notification, number, EACH)
    rival.fill(number, EACH)
    totals(number, each=EACH)
    vacuum(Notification)
    unread.heal(seconds=600)
    unread.counts(range(1, ONLINE + 1))
    connections.close_all()  # a connection belongs to one process
    context: Any = multiprocessing.get_context("fork")
    ends, readers = [], []
    reads: dict[str, Callable[[int], int]] = {OURS: Ours().read, rival.name: rival.read}
    for read, rate in zip(reads.values(), (RATE, RATE // 20), strict=True):
        here, there = context.Pipe()
        readers.append(context.Process(target=partial(_read, there, read, rate), daemon=True))
        readers[-1].start()
        ends.append(here)
    for end in ends:
        end.recv()
    sleep(BEFORE)
    redis.flushall()
    emptied = perf_counter()
    assert unread.heal(seconds=600).checked == number
    took = perf_counter() - emptied
    sleep(BEFORE)
    found: dict[str, Seconds] = {OURS: {}, FIRST: {}, rival.name: {}}
    for name, end in zip(reads, ends, strict=True):
        end.send("stop")
        known = set()
        for user, at, taken in end.recv():
            first = name == OURS and at > emptied and user not in known
            known |= {user} if at > emptied else set()
            found[FIRST if first else name].setdefault(int(at - emptied + BEFORE), []).append(taken)
    for reader in readers:
        reader.join()

    series = {
        f"{name}, {which}": {second + 1: figure(taken) for second, taken in seconds.items()}
        for name, seconds in found.items()
        for which, figure in (("p50", median), ("p99", p99))
    }
    report.plot("recovery", f"A badge while {size(number)} users are recounted", "seconds", series, linear=True)
    last = BEFORE + int(took)
    spans = {
        f"the {BEFORE} seconds before": range(BEFORE),
        "the second in which Redis was emptied": range(BEFORE, BEFORE + 1),
        "until everyone was recounted": range(BEFORE + 1, last + 1),
        "after it": range(last + 1, last + BEFORE),
    }
    lines = []
    for span, within in spans.items():
        cells = []
        for seconds in found.values():
            taken = [one for second in within for one in seconds.get(second, ())]
            cells.append(f"{time(median(taken))}, {time(p99(taken))}" if len(taken) > 1 else "")
        lines.append([span, *cells])
    say(f"recovery of {size(number)} users under load: {time(took)}")
    return table([f"{size(number)} users, recounted within {time(took)}", *found], lines)


def _read(end: Any, read: Callable[[int], int], rate: int) -> None:
    """Read badges at this rate, of one user after the other, until told to stop."""
    read(1)
    end.send("ready")
    taken = []
    started = perf_counter()
    for i in count():
        if i % 100 == 0 and end.poll():
            break
        sleep(max(0.0, started + i / rate - perf_counter()))
        user, before = 1 + i % ONLINE, perf_counter()
        assert read(user) == EACH
        taken.append((user, before, perf_counter() - before))
    end.send(taken)


def p99(taken: list[float]) -> float:
    return quantiles(taken, n=100)[98] if len(taken) > 1 else taken[0]


def verification(report: Report, quick: bool) -> str:
    """Let the flusher compare everyone with the rows once, as in a day, but without pauses."""
    owners = 20_000 if quick else 1_000_000
    empty()
    users(owners)
    rows(Notification, owners, EACH)
    totals(owners, each=EACH)
    vacuum(Notification, unread.totals)
    unread.heal(seconds=6_000)
    unread.flush()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (session,) = cursor.fetchone()
    counters = local_counters([unread])
    mine, theirs, of_redis = process_time(), _cpu_seconds(session), redis_seconds()
    while look_at(unread).everyone_age is None:
        schedule.rests_until = 0
        verify(counters)
    mine, theirs, of_redis = process_time() - mine, _cpu_seconds(session) - theirs, redis_seconds() - of_redis
    found = look_at(unread)
    assert (found.everyone, found.wrong) == (owners, 0)
    cells = [time(mine), time(theirs), time(of_redis), f"{number(100 * (mine + theirs + of_redis) / DAY)} %"]
    columns = ["CPU of the flusher", "of the database", "of Redis", "together, of a day"]
    about = f"{size(owners)} users with {EACH} rows each"
    return table([about, *columns], [["all compared once", *cells]])


def _cpu_seconds(process: int) -> float:
    """Return the CPU seconds of another process, in user and in system mode."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
