"""The badge, second by second, while Redis comes back empty and everyone is recounted; flushers that share the requests
of an outage; the comparison of everyone."""

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

from django.core.management import call_command
from django.db import connection, connections

from notifications_counter.counters import unread
from notifications_counter.maintenance.places import local_counters
from notifications_counter.maintenance.verification import pace, verify
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.monitoring.state import look_at

from .bench import OURS, Report, number, say, size, table, time
from .maintenance import totals
from .rivals import NUMBERS, CountStar, Ours, empty, numbers, quoted, redis, redis_seconds, rows, sql, users, vacuum

BEFORE, RATE, ONLINE, EACH = 3, 2_000, 1_000, 10
"""Seconds before Redis is emptied, badges a second, users whose badge is read, and their unread rows."""

DAY = 86_400
"""Seconds."""

FIRST = f"{OURS}, first read"

Seconds = dict[int, list[float]]
"""How long badges took, by the second in which they were read."""


def through(report: Report, quick: bool) -> str:
    """Of so many users, a thousand are online."""
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
            cells += [time(median(taken)), time(p99(taken))] if len(taken) > 1 else ["", ""]
        lines.append([span, *cells])
    say(f"recovery of {size(number)} users under load: {time(took)}")
    headings = [f"{name}, {which}" for name in found for which in ("p50", "p99")]
    return table([f"{size(number)} users, recounted within {time(took)}", *headings], lines)


def _read(end: Any, read: Callable[[int], int], rate: int) -> None:
    """Read so many badges a second, of one user after the other, until told to stop."""
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


def requests(report: Report, quick: bool) -> str:
    """Each flusher is a process of its own; their CPU time includes that of their database sessions."""
    owners = 20_000 if quick else 300_000
    empty()
    users(owners)
    totals(owners, each=0)
    unread.heal(seconds=600)
    (buffer,) = unread.buffers
    lines: list[list[str]] = []
    first = 0.0
    for each, flushers in enumerate((1, 2, 4), start=1):
        rows(Notification, owners, 1)
        numbers(owners)
        sql(
            f"INSERT INTO {quoted(RecountRequest)} (counter, owner, everyone, created_at) {NUMBERS.format(owners)}"
            " SELECT 'unread', i + 1, false, CURRENT_TIMESTAMP FROM n"
        )
        vacuum(Notification, RecountRequest, unread.totals)
        connections.close_all()  # a connection belongs to one process
        context: Any = multiprocessing.get_context("fork")
        ends, processes = [], []
        for _ in range(flushers):
            here, there = context.Pipe()
            processes.append(context.Process(target=_flush, args=(there,), daemon=True))
            processes[-1].start()
            ends.append(here)
        for end in ends:
            end.recv()
        recounted, redis_before, started = buffer.monitor(60).stats.recounted, redis_seconds(), perf_counter()
        for end in ends:
            end.send("start")
        used = [end.recv() for end in ends]
        took = perf_counter() - started
        recounted, used_by_redis = buffer.monitor(60).stats.recounted - recounted, redis_seconds() - redis_before
        for process in processes:
            process.join()
        unread.flush()  # the last ones may have written the batches of others, and left their own
        assert unread.totals.objects.filter(unread_count=each).count() == owners
        in_all = sum(used) + used_by_redis
        first = first or in_all
        cells = [time(took), time(sum(used)), time(max(used)), time(used_by_redis), number(in_all / first)]
        lines.append([str(flushers), f"{recounted:,}", *cells])
        say(f"{flushers} flushers: {lines[-1]}")
    columns = ["owners recounted", "time", "CPU of the flushers", "of the busiest", "of Redis", "in all ÷ one"]
    return table([f"flushers of {size(owners)} requests", *columns], lines)


def verification(report: Report, quick: bool) -> str:
    """The flusher compares everyone with the rows once, as it does in a day; here, without a rest between two runs."""
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
    mine, theirs, of_redis, longest, runs = process_time(), _cpu_seconds(session), redis_seconds(), 0.0, 0
    while look_at(unread).everyone_age is None:
        pace.rests_until, started = 0, perf_counter()
        verify(counters)
        longest, runs = max(longest, perf_counter() - started), runs + 1
    mine, theirs, of_redis = process_time() - mine, _cpu_seconds(session) - theirs, redis_seconds() - of_redis
    found = look_at(unread)
    assert (found.everyone, found.wrong) == (owners, 0)
    cells = [time(mine), time(theirs), time(of_redis), f"{number(100 * (mine + theirs + of_redis) / DAY)} %"]
    columns = ["CPU of the flusher", "of the database", "of Redis", "together, of a day", "runs", "longest run"]
    about = f"{size(owners)} users with {EACH} rows each"
    return table([about, *columns], [["all compared once", *cells, f"{runs:,}", time(longest)]])


def _flush(end: Any) -> None:
    """Flush when told to, and tell how much CPU time that took."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (session,) = cursor.fetchone()
    unread.status()
    end.send("ready")
    end.recv()
    before = process_time() + _cpu_seconds(session)
    call_command("flush_counters", verbosity=0)
    end.send(process_time() + _cpu_seconds(session) - before)


def _cpu_seconds(process: int) -> float:
    """Return the CPU time that another process has used, in user mode and in the system."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
