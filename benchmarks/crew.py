"""Concurrent clients, each in its own process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from django.db import connections

from .bench import Race, say, time
from .rivals import redis_seconds

Work = Callable[[int], object]


@contextmanager
def crew(number: int, work: Mapping[str, Work]) -> Iterator[list[Any]]:
    """Run a number of processes that do this work on command. Each gets its number."""
    connections.close_all()  # a connection belongs to one process
    context: Any = multiprocessing.get_context("fork")
    ends, processes = [], []
    for worker in range(number):
        here, there = context.Pipe()
        processes.append(context.Process(target=_wait_for_work, args=(worker, there, work, os.getpid()), daemon=True))
        processes[-1].start()
        ends.append(here)
    try:
        yield ends
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _wait_for_work(worker: int, end: Any, work: Mapping[str, Work], parent: int) -> None:
    while os.getppid() == parent:
        if not end.poll(5):
            continue
        name, calls = end.recv()
        took = []
        try:
            for _ in range(calls):
                started = perf_counter()
                work[name](worker)
                took.append(perf_counter() - started)
            end.send(took)
        except Exception as error:
            end.send(repr(error))


def at_once(ends: list[Any], names: Mapping[str, Work], *, rounds: int, calls: int, about: str) -> tuple[Race, ...]:
    """Let all clients do each work in turn. Returns two races: the median and the 99th percentile."""
    races = tuple(Race({name: [] for name in names}) for _ in range(2))
    for number in range(rounds + 1):
        for name in list(names) if number % 2 else list(names)[::-1]:
            for end in ends:
                end.send((name, calls))
            replies = [end.recv() for end in ends]
            for reply in replies:
                if isinstance(reply, str):
                    raise RuntimeError(f"{name}: {reply}")
            took = [seconds for reply in replies for seconds in reply]
            if number:  # the first round opens connections
                figures = median(took), quantiles(took, n=100)[98]
                for race, seconds in zip(races, figures, strict=True):
                    race.rounds[name].append(seconds)
    say(f"{about}: " + ", ".join(f"{name} {time(races[0].median(name))}" for name in names))
    return races


def redis_time(ends: list[Any], names: Mapping[str, Work], name: str, calls: int) -> float:
    """Return the CPU seconds of Redis for one call while all clients call."""
    before, rounds = redis_seconds(), 1
    at_once(ends, {name: names[name]}, rounds=rounds, calls=calls, about="Redis meanwhile")
    return (redis_seconds() - before) / (len(ends) * calls * (rounds + 1))
