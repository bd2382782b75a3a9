"""Concurrent clients, each in its own process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

from django.db import connections

from .bench import Race, p99, say, time, timed

Work = Callable[[int], object]


def at_once(clients: int, work: Mapping[str, Work], *, rounds: int, calls: int, about: str) -> tuple[Race, Race]:
    """Let all clients do each work in turn. Each gets its number. Returns two races: the median and the 99th
    percentile."""
    global _work, _start
    connections.close_all()  # a connection belongs to one process
    context: Any = multiprocessing.get_context("fork")
    _work, _start = work, context.Barrier(clients)  # the processes inherit them
    half, tail = Race({name: [] for name in work}), Race({name: [] for name in work})
    with context.Pool(clients) as pool:
        for number in range(rounds + 1):
            for name in list(work) if number % 2 else list(work)[::-1]:
                tasks = ((name, worker, calls) for worker in range(clients))
                took = [seconds for each in pool.imap_unordered(_do, tasks) for seconds in each]
                if number:  # the first round opens connections
                    half.rounds[name].append(median(took))
                    tail.rounds[name].append(p99(took))
    say(f"{about}: " + ", ".join(f"{name} {time(half.median(name))}" for name in work))
    return half, tail


def _do(task: tuple[str, int, int]) -> list[float]:
    name, worker, calls = task
    _start.wait()  # so that nobody does two of the tasks
    return [timed(partial(_work[name], worker)) for _ in range(calls)]
