"""Searches all states of a model, breadth first."""

import argparse
import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple


class Found(NamedTuple):
    """How many states there are, how many of them are ``finals`` and how many ``bad``; ``what`` is wrong with the first
    bad one, empty if there is none; and the ``history`` that leads to it."""

    states: int
    finals: int
    bad: int
    what: str
    history: tuple[Any, ...]


dropped: set[str] = set()


def rule(name: str) -> bool:
    """Whether a rule is kept."""
    return name not in dropped


def search(
    start: Hashable,
    successors: Callable[[Any], Iterable[tuple[Any, ...]]],
    wrong: Callable[[Any, bool], str],
    show: Callable[[Any, tuple[Any, ...]], Any],
    first_only: bool,
    drop: Iterable[str],
) -> Found:
    """``successors`` yields steps: tuples that end with the next state. ``wrong(state, is_final)`` says what is wrong
    with a state. ``show(state, step)`` is called for each step of the history. The first bad state is a nearest one.
    Rules in ``drop`` are left out meanwhile."""
    parents: dict[Any, Any] = {start: None}
    queue, finals, bad, what, state = deque([start]), 0, 0, "", None
    dropped.update(drop)
    gc.disable()  # of many small tuples, none of which is in a cycle, it takes half of the time
    try:
        while queue:
            before, final = queue.popleft(), True
            for step in successors(before):
                final = False
                if step[-1] not in parents:
                    parents[step[-1]] = before
                    queue.append(step[-1])
            finals += final
            if broken := wrong(before, final):
                bad += 1
                what, state = (what, state) if what else (broken, before)
                if first_only:
                    break
        path: list[Any] = []
        while state is not None:
            path.insert(0, state)
            state = parents[state]
        steps = [(one, next(step for step in successors(one) if step[-1] == other)) for one, other in pairwise(path)]
        return Found(len(parents), finals, bad, what, tuple(show(*step) for step in steps))
    finally:
        gc.enable()
        dropped.difference_update(drop)


# ----------------------------------------------- models of a world, and of processes that take steps in it in any order
def interleavings(state: tuple[Any, tuple]) -> Iterator[tuple[int, str, tuple[Any, tuple]]]:
    """Each process has ``moves(world, dead)``, which yields (label, world, the process after it). Those with a ``part``
    write rows: ``dead`` are the parts of those that were killed."""
    world, processes = state
    dead = frozenset(p.part for p in processes if hasattr(p, "part") and not p.lives)
    for i, process in enumerate(processes):
        for label, moved, following in process.moves(world, dead):
            after = [*processes[:i], following, *processes[i + 1 :]]
            both = _allowed(processes) | _allowed(after)
            for j, p in enumerate(after):
                if hasattr(p, "allowed") and p.step in ("get", "rows"):
                    after[j] = p._replace(allowed=p.allowed | both)
            yield i, label, (moved, tuple(after))


def _allowed(processes: Iterable[Any]) -> frozenset[int]:
    """The rows that a reader may return now: a writer whose call has not returned yet may count or not."""
    values = {1}
    for p in processes:
        if hasattr(p, "part") and p.committed:
            after = {v + p.delta for v in values}
            values = after if p.returned else values | after
    return frozenset(values)


def run(process: Any, world: Any, dead: frozenset) -> Any:
    """The world after a process, alone. One that would go on without end is stopped."""
    for _ in range(60):
        if (step := next(process.moves(world, dead), None)) is None:
            break
        _, world, process = step
    return world


def misread(processes: Iterable[Any]) -> str:
    wrong = [p.wrong for p in processes if hasattr(p, "allowed") and p.wrong is not None]
    return f"READ: a reader returned {wrong[0]}" if wrong else ""


def show(state: tuple[Any, tuple], step: tuple) -> str:
    i, label, _ = step
    return f"{type(state[1][i]).__name__} {i}: {state[1][i].step} {label}".strip()


def command_line(
    about: str | None,
    rules: Iterable[str],
    scenarios: Iterable[str],
    explore: Callable[..., Found],
    lines: Callable[[Found], Iterable[str]] = lambda found: found.history,
) -> None:
    """The command line of a model. A history is shown in ``lines``."""
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--drop", action="append", default=[], choices=rules, help="leave a rule out")
    options.add_argument("--only", choices=scenarios, help="one scenario")
    chosen = options.parse_args()
    bad = 0
    for scenario in [chosen.only] if chosen.only else scenarios:
        found = explore(scenario, chosen.drop)
        print(f"{scenario:66s} states {found.states:7d}  finals {found.finals:6d}  bad {found.bad}", flush=True)
        if found.bad:
            print(f"  {found.what}", *lines(found), sep="\n    ")
        bad += found.bad
    raise SystemExit(1 if bad else 0)
