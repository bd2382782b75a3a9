"""Measures how much eight clients get done together, while they, the database and Redis share the processors."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from statistics import median
from time import perf_counter
from typing import Any

from django.db import connections

from notifications_counter.counters import unread

from .bench import OURS, Do, Report, number, size, table
from .rivals import Change, CounterRow, Ours, Rival, Trigger, agree, fill

PROCESSES, THREADS = 4, 2
CLIENTS = PROCESSES * THREADS
HOT = {"marks": 1, "creates": 2}
"""The user of those columns that are about one user. Reads of one user differ little from those of many."""


def saturation(report: Report, quick: bool) -> str:
    """Count what is done in a second, for many users in turn and for one user."""
    users, deltas = 2 + (200 if quick else 1_000), Change()
    some = fill(users, 50, [Ours(), Rival(), CounterRow(), Trigger(), deltas])

    def catch_up() -> None:
        unread.flush()
        deltas.squash()

    found = compare(some, users, catch_up, quick)
    agree(some, users)
    return found


def compare(some: Sequence[Rival], users: int, prepare: Do, quick: bool) -> str:
    ways: dict[str, dict[str, Any]] = {
        "marks": {rival.name: marking(rival, users) for rival in some},
        "badges": {rival.name: lambda user, _, rival=rival: rival.read(user) for rival in some},
        "creates": {rival.name: lambda user, _, rival=rival: rival.create(user) for rival in some},
    }
    work: dict[tuple[str, str], Callable[[int, int], None]] = {}
    for what, is_hot in product(ways, (False, True)):
        if is_hot and what not in HOT:
            continue
        for name, do in ways[what].items():

            def once(client: int, call: int, do: Any = do, hot: int = HOT[what] if is_hot else 0) -> None:
                do(hot or 3 + (client + call * CLIENTS) % (users - 2), client)  # each client has users of its own

            work[f"{what}, one user" if is_hot else what, name] = once
    found = at_once(work, rounds=2 if quick else 5, seconds=0.3 if quick else 1, prepare=prepare)

    def cell(column: str, name: str) -> str:
        theirs, ours = found.get((column, name), ()), found[column, OURS]
        ratio = median(t / o for t, o in zip(theirs, ours, strict=True)) if theirs else 0
        return "" if not theirs else size(median(theirs)) + f", {number(ratio)}×" * (name != OURS)

    columns, names = (dict.fromkeys(part) for part in zip(*work, strict=True))
    return table(["in a second", *columns], [[name, *(cell(column, name) for column in columns)] for name in names])


def marking(rival: Rival, users: int) -> Callable[[int, int], None]:
    """Return what marks a row of a user as read and as unread in turn. Each client has its own row."""
    is_read = defaultdict[int, bool](bool)

    def mark(user: int, client: int) -> None:
        row = user + client * users
        is_read[row] = not is_read[row]
        rival.mark(user, row, is_read[row])

    return mark


def at_once(work: Mapping[Any, Any], *, rounds: int, seconds: float, prepare: Do) -> dict[Any, list[float]]:
    """Let all clients do each work in turn for some seconds, as often as they can. It gets the number of the client
    and that of its call. Returns the calls of all clients a second, in each round. ``prepare`` runs before each."""
    global _work, _start
    connections.close_all()  # a connection belongs to one process
    context: Any = multiprocessing.get_context("fork")
    _work, _start = work, context.Barrier(PROCESSES)  # the processes inherit them
    found: dict[Any, list[float]] = {name: [] for name in work}
    with context.Pool(PROCESSES, _begin, [context.Value("i", -1)]) as pool:
        for number in range(rounds + 1):
            for name in list(work) if number % 2 else list(work)[::-1]:
                prepare()
                calls = sum(pool.map(_do, [(name, seconds)] * PROCESSES, chunksize=1))
                if number:  # the first round opens connections
                    found[name].append(calls / seconds)
    return found


def _begin(last: Any) -> None:
    global _process, _threads
    with last.get_lock():
        _process = last.value = last.value + 1
    _threads = ThreadPoolExecutor(THREADS)


def _do(task: tuple[Any, float]) -> int:
    name, seconds = task
    _start.wait()  # so that no process does two of the tasks
    end = perf_counter() + seconds

    def run(client: int) -> int:
        calls = 0
        while perf_counter() < end:
            _work[name](client, calls)
            calls += 1
        return calls

    return sum(_threads.map(run, range(_process * THREADS, (_process + 1) * THREADS)))
