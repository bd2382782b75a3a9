"""Measures reads and writes while Redis is slow, silent, or out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from statistics import median
from threading import Event, Thread
from time import perf_counter, sleep

from django.conf import settings
from django.test import override_settings

from notifications_counter.conf import options
from notifications_counter.counters import unread
from servers.relay import SlowRelay

from .bench import OURS, Report, running, table, time
from .recovery import p99
from .rivals import CountStar, Ours, empty, redis, users

USERS, EACH, PAUSE = 100, 100, 0.002
"""Users, their unread rows, and seconds between two requests of a process."""


def site(report: Report, quick: bool) -> str:
    """Measure one process of a site that reads and writes all the time."""
    empty()
    users(USERS)
    ours, theirs = Ours(), CountStar()
    for rival in (ours, theirs):
        rival.fill(USERS, EACH)
    relay = SlowRelay(running[-1])
    faults: dict[str, Callable[[], object]] = {
        "answers at once": partial(relay.slow, 0),
        "+ 50 ms": partial(relay.slow, 0.05),
        "+ 500 ms": partial(relay.slow, 0.5),
        "stalled": relay.slow,
        "stalled every other second": partial(flapping, relay),
        "out of memory": full,
    }
    seconds = 3 if quick else 10
    here = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": relay.url}}
    lines = []
    with override_settings(CACHES=here):
        for fault, begin in faults.items():
            unread.heal(seconds=600)
            unread.counts(range(1, USERS + 1))
            cells = []
            with begin():  # type: ignore[attr-defined]
                for does in (ours.read, theirs.read, ours.create, theirs.create):
                    taken = list(requests(does, seconds))
                    cells.append(f"{time(median(taken))}, {time(p99(taken))}")
            lines.append([fault, *cells])
            sleep(options.RETRY_AFTER + 1)  # Redis is asked again
    reads = [f"a read, {name}" for name in (OURS, theirs.name)]
    return table(["Redis", *reads, f"a write, {OURS}", "not counted"], lines)


def requests(does: Callable[[int], object], seconds: float) -> Iterator[float]:
    """Do something for one user after the other, and yield the times."""
    end, turns = perf_counter() + seconds, cycle(range(1, USERS + 1))
    while (began := perf_counter()) < end:
        does(next(turns))
        yield perf_counter() - began
        sleep(PAUSE)


@contextmanager
def flapping(relay: SlowRelay) -> Iterator[None]:
    stop = Event()

    def flap() -> None:
        while not stop.is_set():
            with relay.slow():
                stop.wait(1)
            stop.wait(1)

    thread = Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def full() -> Iterator[None]:
    redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        redis.config_set("maxmemory", 0)
