"""Searches all states of a model, breadth first."""

import argparse
import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
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


State = tuple[int, ...]


class Move(NamedTuple):
    """One step of a history."""

    process: int
    step: str
    label: str


class Space:
    """The states of a model of Redis, a database, and processes, which take steps in any order: each has
    ``moves(redis, db, others)``, which yields (label, redis, db, the process after it).

    All these are numbered, so that a state is a tuple of a few small numbers, and a step that was worked out once is
    looked up from then on."""

    def __init__(self, *things: Hashable):
        self.things: list[Any] = []
        self.numbers: dict[Any, int] = {}
        self.work_out = cache(self._work_out)
        self.start: State = tuple(map(self.number, things))

    def number(self, thing: Any) -> int:
        number = self.numbers.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number

    def successors(self, state: State) -> Iterator[tuple[int, str, State]]:
        for i in range(2, len(state)):
            for label, redis, db, moved in self.work_out(*state[:2], state[i], *self.about(state, i)):
                yield i, label, self.seen(state, (redis, db, *state[2:i], moved, *state[i + 1 :]))

    def about(self, state: State, i: int) -> State:
        """The others whom a process asks."""
        return ()

    def seen(self, before: State, after: State) -> State:
        """The state after a step, with what others have seen of it."""
        return after

    def _work_out(self, *state: int) -> list[tuple[str, int, int, int]]:
        redis, db, process, *others = (self.things[number] for number in state)
        return [(label, *map(self.number, moved)) for label, *moved in process.moves(redis, db, tuple(others))]


def command_line(
    about: str | None,
    rules: Iterable[str],
    scenarios: Iterable[str],
    deep: Iterable[str],
    explore: Callable[..., Found],
    lines: Callable[[Found], Iterable[str]],
) -> None:
    """The command line of a model. A history is shown in ``lines``."""
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--drop", action="append", default=[], choices=rules, help="leave a rule out")
    options.add_argument("--only", choices=[*scenarios, *deep], help="one scenario")
    options.add_argument("--deep", action="store_true", help="the large scenarios")
    chosen = options.parse_args()
    bad = 0
    for scenario in [chosen.only] if chosen.only else deep if chosen.deep else scenarios:
        found = explore(scenario, chosen.drop)
        print(f"{scenario:66s} states {found.states:7d}  finals {found.finals:6d}  bad {found.bad}", flush=True)
        if found.bad:
            print(f"  {found.what}", *lines(found), sep="\n    ")
        bad += found.bad
    raise SystemExit(1 if bad else 0)
