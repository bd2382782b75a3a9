"""Searches all states of a model, breadth first."""

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable
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


def search(
    start: Hashable,
    successors: Callable[[Any], Iterable[tuple[Any, ...]]],
    wrong: Callable[[Any, bool], str],
    show: Callable[[Any, tuple[Any, ...]], Any],
    first_only: bool,
) -> Found:
    """``successors`` yields steps: tuples that end with the next state. ``wrong(state, is_final)`` says what is wrong
    with a state. ``show(state, step)`` is called for each step of the history. The first bad state is a nearest one."""
    parents: dict[Any, Any] = {start: None}
    queue, finals, bad, what, state = deque([start]), 0, 0, "", None
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
    finally:
        gc.enable()
    path: list[Any] = []
    while state is not None:
        path.insert(0, state)
        state = parents[state]
    steps = [(one, next(step for step in successors(one) if step[-1] == other)) for one, other in pairwise(path)]
    return Found(len(parents), finals, bad, what, tuple(show(*step) for step in steps))
