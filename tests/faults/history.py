"""What writers did and what readers saw, and whether every read was a moment.

A read returns the number of unread rows at some moment between its start and its end, where a change whose call has
not returned yet may count or not. Times are those of ``time.monotonic``, which all processes of a machine share.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

Numbers = dict[str, int]
"""By user, written as text."""


@dataclass
class Call:
    """A call from ``start`` to ``end``: what a writer changed, or a reader saw."""

    start: float
    end: float
    numbers: Numbers


@dataclass
class History:
    writes: list[Call] = field(default_factory=list)
    reads: list[Call] = field(default_factory=list)
    base: Numbers = field(default_factory=dict)
    """What users had before."""

    def write(self, change: Callable[[], dict[Any, int]]) -> None:
        """Make a change, which returns what it changed."""
        self.writes.append(timed(change))

    def read(self, look: Callable[[], dict[Any, int]]) -> None:
        """Look at counts."""
        self.reads.append(timed(look))

    def sums(self) -> Numbers:
        """What all users have in the end."""
        sums: Numbers = defaultdict(int, self.base)
        for call in self.writes:
            for user, delta in call.numbers.items():
                sums[user] += delta
        return sums

    def impossible(self) -> list[str]:
        """Reads that no moment explains."""
        by_user: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
        for call in self.writes:
            for user, delta in call.numbers.items():
                if delta:
                    by_user[user].append((call.start, call.end, delta))
        users = {user: _User(by_user[user], self.base.get(user, 0)) for user in {*by_user, *self.base}}
        nobody = _User([])
        return [
            f"{user}: {seen} between {call.start:.6f} and {call.end:.6f}, possible were {sorted(possible)}"
            for call in self.reads
            for user, seen in call.numbers.items()
            if seen not in (possible := users.get(user, nobody).possible(call.start, call.end))
        ]


class _User:
    """The changes of one user."""

    def __init__(self, writes: Iterable[tuple[float, float, int]], base: int = 0):
        by_end = sorted(writes, key=lambda w: w[1])
        self.ends = [end for _, end, _ in by_end]
        self.sums = [*accumulate((delta for *_, delta in by_end), initial=base)]
        self.writes = sorted(by_end)
        self.starts = [start for start, *_ in self.writes]
        self.longest = max((end - start for start, end, _ in self.writes), default=0.0)

    def possible(self, start: float, end: float) -> set[int]:
        around = self.writes[bisect_right(self.starts, start - self.longest - 1) : bisect_right(self.starts, end)]
        moments = {start} | {t for s, e, _ in around for t in (s, e) if start < t <= end}
        values: set[int] = set()
        for moment in moments:
            sums = {self.sums[bisect_right(self.ends, moment)]}
            for s, e, delta in around:
                if s <= moment < e:
                    sums |= {value + delta for value in sums}
            values |= sums
        return values


def timed(call: Callable[[], dict[Any, int]]) -> Call:
    start = time.monotonic()
    numbers = call()
    return Call(start, time.monotonic(), {str(user): number for user, number in numbers.items()})
