"""Measures the flusher, and a site while Redis is emptied, slow, silent, or out of memory."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count, cycle
from time import perf_counter, sleep
from typing import Any

from django.conf import settings
from django.db import connections
from django.test import override_settings

from notifications_counter.conf import options
from notifications_counter.counters import unread
from servers.relay import Relay

from .bench import OURS, Report, both, number, running, say, size, table, time, timed
from .rivals import CountStar, Ours, fill, redis, touch

MEMORY = """
import re, django
django.setup()
from notifications_counter.counters import unread
print(unread.flush().owners, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
"""Flushes in a process of its own, and prints the number of users and the peak memory in KiB."""


USERS = 100_000


def to_run(report: Report, quick: bool) -> str:
    """Measure what many users cost, and what a call costs Redis, by its INFO."""
    many = 10_000 if quick else 100_000

    def used(do: Callable[[], object], about: str = "memory") -> float:
        while redis.info("memory")["lazyfree_pending_objects"]:  # what was unlinked is freed in the background
            sleep(0.01)
        before: Any = redis.info(about)
        do()
        after: Any = redis.info(about)
        names = ("used_memory",) if about == "memory" else ("used_cpu_user", "used_cpu_sys")
        return sum(after[name] - before[name] for name in names)

    def calls(do: Callable[[int], object], times: int) -> float:
        return used(lambda: [do(user) for user in range(1, times + 1)], "cpu") / times

    (ours,) = fill(many, 1, [Ours()])
    unread.invalidate()
    walking = timed(lambda: unread.heal(seconds=600)) / many
    waiting = used(partial(touch, many)) / many
    storing = timed(unread.flush) / many
    cached = used(partial(unread.counts, range(1, many + 1))) / many
    figures = {
        f"Redis, everyone's count cached ({cached:.0f} bytes each)": (cached, memory),
        f"Redis, in addition, while everyone waits for a flush ({waiting:.0f} bytes, twice during it)": (
            2 * waiting,
            memory,
        ),
        "flusher: storing everyone's count": (storing, time),
        "flusher: comparing everyone with the rows": (walking, time),
    }
    lines = [[name, show(each * USERS)] for name, (each, show) in figures.items()]
    badge, create = calls(unread.count, 5_000), calls(ours.create, 1_000)
    unread.flush()
    touch(many)
    flushed, peak = map(int, subprocess.check_output([sys.executable, "-c", MEMORY], text=True, env=os.environ).split())
    assert (flushed, unread.recount(dry_run=True).wrong) == (many, 0)
    about = (
        f"A badge takes {time(badge)} of Redis's own time, a `create()` {time(create)}: at half load, one Redis serves"
        f" {size(round(0.5 / badge, -3))} badges or {size(round(0.5 / create, -2))} creates a second. A flusher of"
        f" {size(many)} users took {memory(peak * 1024)} of memory."
    )
    return table(["", f"{size(USERS)} users"], lines) + f"\n\n{about}"


def memory(used: float) -> str:
    return f"{number(used / 1e6)} MB"


def generation(report: Report, quick: bool) -> str:
    """Read badges of a thousand users while Redis is emptied and everyone is compared."""
    before, rate, each, owners = 3, 2_000, 10, 20_000 if quick else 200_000
    _, rival = fill(owners, each, [Ours(), CountStar()])
    connections.close_all()  # a connection belongs to one process
    context: Any = multiprocessing.get_context("fork")
    ends = []
    for read, times in ((Ours().read, rate), (rival.read, rate // 20)):
        here, there = context.Pipe()
        context.Process(target=_read, args=(there, read, times, each), daemon=True).start()
        ends.append(here)
    for end in ends:
        end.recv()
    sleep(before)
    redis.flushall()
    emptied = perf_counter()
    assert unread.heal(seconds=600).owners == owners
    took = perf_counter() - emptied
    sleep(before)
    for end in ends:
        end.send("stop")
    ours, theirs = (end.recv() for end in ends)
    spans = {
        f"the {before} seconds before": (-before, 0.0),
        "until everyone was compared": (0.0, took),
        "after it": (took, took + before),
    }
    lines = []
    for span, (start, end) in spans.items():
        within = ([seconds for at, seconds in reads if start <= at - emptied < end] for reads in (ours, theirs))
        lines.append([span, *map(both, within)])
    say(f"walk over {size(owners)} users under load: {time(took)}")
    return table([f"{size(owners)} users, compared within {time(took)}", OURS, rival.name], lines)


def _read(end: Any, read: Callable[[int], int], rate: int, right: int) -> None:
    """Read badges at this rate, of one user after the other, until told to stop."""
    read(1)
    end.send("ready")
    taken = []
    started = perf_counter()
    for i in count():
        if i % 100 == 0 and end.poll():
            break
        sleep(max(0.0, started + i / rate - perf_counter()))
        began = perf_counter()
        assert read(1 + i % 1_000) == right
        taken.append((began, perf_counter() - began))
    end.send(taken)


def slow_redis(report: Report, quick: bool) -> str:
    """Measure one process of a site that reads and writes all the time."""
    number = 100
    ours, theirs = fill(number, 100, [Ours(), CountStar()])
    relay = Relay(running[-1])
    faults: dict[str, Any] = {
        "answers at once": nullcontext,
        "+ 50 ms": partial(relay.slow, 0.05),
        "+ 500 ms": partial(relay.slow, 0.5),
        "out of memory": full,
    }
    here = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": relay.url}}
    lines = []
    with override_settings(CACHES=here):
        for fault, begin in faults.items():
            unread.heal(seconds=600)
            unread.counts(range(1, number + 1))
            cells = []
            with begin():
                for does in (ours.read, theirs.read, ours.create, theirs.create):
                    taken, turns, end = [], cycle(range(1, number + 1)), perf_counter() + (3 if quick else 10)
                    while perf_counter() < end:
                        taken.append(timed(partial(does, next(turns))))
                        sleep(0.002)
                    cells.append(both(taken))
            lines.append([fault, *cells])
            sleep(options.RETRY_AFTER + 1)  # Redis is asked again
    reads = [f"a read, {name}" for name in (OURS, theirs.name)]
    return table(["Redis", *reads, f"a write, {OURS}", "not counted"], lines)


@contextmanager
def full() -> Iterator[None]:
    redis.config_set("maxmemory", 1)
    yield
    redis.config_set("maxmemory", 0)
