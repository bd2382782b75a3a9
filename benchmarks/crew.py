"""Concurrent clients, each in its own process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

from django.db import connections

from .bench import Race, p99, say, time

Work = Callable[[int], object]


def at_once(clients: int, work: Mapping[str, Work], *, rounds: int, calls: int, about: str) -> tuple[Race, Race]:
    """Let all clients do each work in turn. Each gets its number. Returns two races: the median and the 99th
    percentile."""
    connections.close_all()  # a connection belongs to one process
    context: Any = multiprocessing.get_context("fork")
    half, tail = Race({name: [] for name in work}), Race({name: [] for name in work})
    start = context.Barrier(clients)
    with context.Pool(clients, _join, (work, start)) as pool:
        for number in range(rounds + 1):
            for name in list(work) if number % 2 else list(work)[::-1]:
                tasks = ((name, worker, calls) for worker in range(clients))
                took = [seconds for each in pool.imap_unordered(_do, tasks) for seconds in each]
                if number:  # the first round opens connections
                    half.rounds[name].append(median(took))
                    tail.rounds[name].append(p99(took))
    say(f"{about}: " + ", ".join(f"{name} {time(half.median(name))}" for name in work))
    return half, tail


def _join(work: Mapping[str, Work], start: Any) -> None:
    global _work, _start
    _work, _start = work, start


def _do(task: tuple[str, int, int]) -> list[float]:
    name, worker, calls = task
    _start.wait()  # so that nobody does two of the tasks
    took = []
    for _ in range(calls):
        started = perf_counter()
        _work[name](worker)
        took.append(perf_counter() - started)
    return took
