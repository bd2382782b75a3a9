"""Searches all states of a model, breadth first."""

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple


class Found(NamedTuple):
    """How many states were seen; ``what`` is wrong with the first bad one, empty if none is; and the ``history`` that
    leads to it."""

    states: int
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
    drop: Iterable[str],
) -> Found:
    """Search up to the first bad state, a nearest one. ``successors`` yields steps: tuples that end with the next
    state. ``wrong(state, is_final)`` says what is wrong with a state, ``show(state, step)`` is called for each step of
    the history, and rules in ``drop`` are left out."""
    parents: dict[Any, Any] = {start: None}
    queue, what, state = deque([start]), "", None
    dropped.update(drop)
    gc.disable()  # of many small tuples, none of which is in a cycle, it takes half of the time
    try:
        while queue and not what:
            state, is_final = queue.popleft(), True
            for step in successors(state):
                is_final = False
                if step[-1] not in parents:
                    parents[step[-1]] = state
                    queue.append(step[-1])
            what = wrong(state, is_final)
        path: list[Any] = []
        while what and state is not None:
            path.insert(0, state)
            state = parents[state]
        steps = [(one, next(step for step in successors(one) if step[-1] == other)) for one, other in pairwise(path)]
        return Found(len(parents), what, tuple(show(*step) for step in steps))
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
    looked up from then on. ``about(state, i)`` returns the others whom a process asks, and ``seen(before, after)`` the
    state after a step, with what others have seen of it."""

    about: Callable[[State, int], State]
    seen: Callable[[State, State], State]

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

    def _work_out(self, *state: int) -> list[tuple[str, int, int, int]]:
        redis, db, process, *others = (self.things[number] for number in state)
        return [(label, *map(self.number, moved)) for label, *moved in process.moves(redis, db, tuple(others))]
