"""What the processes of a round note of their calls, at once, so that it outlives them; and whether every read was a
moment.

A read returns the number of rows at some moment between its start and its end, where a change whose call has not
returned yet may count or not. Times are those of ``time.monotonic``, which all processes of a machine share.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from notifications_counter.conf import options

from .proxy import DELAY

Numbers = dict[str, int]
"""By owner, written as text."""

MOST_SUMS = 1000

now = time.monotonic


class Journal:
    """The notes of one process."""

    def __init__(self, directory: Path, name: str):
        self.name = name
        self.file = os.open(directory / f"{name}.journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.calls = 0

    def note(self, *entry: Any) -> None:
        os.write(self.file, json.dumps(entry).encode() + b"\n")

    def call(self) -> str:
        """A name for the next call."""
        self.calls += 1
        return f"{self.name}.{self.calls}"


class Span(NamedTuple):
    start: float
    end: float


class Change(NamedTuple):
    """What a call has changed. A read may miss it until the ``end``."""

    start: float
    end: float
    delta: int


class Read(NamedTuple):
    start: float
    end: float
    numbers: Numbers


@dataclass
class Write:
    """A call that changes something. It ``lags`` if Redis was out of its reach meanwhile: then others see it after the
    next run of a flusher. ``broken`` says why it did not return, if so: an error, or the death of its process."""

    name: str
    start: float
    end: float = math.inf
    lags: bool = False
    broken: str = "killed"

    @property
    def due(self) -> float:
        """When its intent is grounded, if it is broken or was announced too late: Redis counts whole seconds, and a
        proxy may pass the announcement on after the call."""
        return max(self.start + options.HEAL_AFTER, 2 * self.end - self.start) + 1 + DELAY[1]


@dataclass
class Notes:
    """The notes of all processes of a round."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    healed: list[Span] = field(default_factory=list)
    seen: Tally[str] = field(default_factory=Tally)
    """How often what has happened."""

    @classmethod
    def of(cls, directory: Path, died: dict[str, float]) -> Notes:
        """Those in a directory. ``died`` says when processes did."""
        notes = cls()
        for path in sorted(directory.glob("*.journal")):
            for line in path.read_text().splitlines():
                kind, *entry = json.loads(line)
                if kind == "begin":
                    notes.writes.append(Write(*entry))
                elif kind == "end":
                    write = notes.writes[-1]
                    write.end, write.lags, write.broken = entry
                elif kind == "read":
                    notes.reads.append(Read(*entry))
                elif kind == "healed":
                    notes.healed.append(Span(*entry))
                else:
                    notes.seen[" ".join([kind, *entry])] += 1
        for write in notes.writes:
            if write.end == math.inf:
                write.end = died[write.name.rpartition(".")[0]]
        return notes

    def healed_since(self, moment: float) -> float:
        """When the first run of a flusher that began then was over."""
        return min((run.end for run in self.healed if run.start >= moment), default=math.inf)

    def impossible(self, base: Numbers, changes: dict[str, Numbers], losses: Iterable[Span]) -> list[str]:
        """Reads that no moment explains. ``base`` is what there was before, ``changes`` is what calls have committed.
        In the ``losses`` Redis had lost what it had acknowledged: reads may miss anything until the walk is
        over."""
        by_owner: dict[str, list[Change]] = defaultdict(list)
        for write in self.writes:
            end = write.end
            if write.broken or write.lags:
                end = self.healed_since(write.due if write.broken else end)
            for owner, delta in changes.get(write.name, {}).items():
                if delta:
                    by_owner[owner].append(Change(write.start, end, delta))
        lost = [Span(loss.start, self.healed_since(loss.end)) for loss in losses]
        return [
            f"{owner}: {seen} between {read.start:.6f} and {read.end:.6f}, possible were {right}"
            for read in self.reads
            if not any(read.end > span.start and read.start < span.end for span in lost)
            for owner, seen in read.numbers.items()
            for right in [possible(by_owner[owner], base.get(owner, 0), read.start, read.end)]
            if not any(seen in numbers for numbers in right)
        ]


def possible(changes: Sequence[Change], before: int, start: float, end: float) -> list[set[int] | range]:
    """What a read from ``start`` to ``end`` may return, for each moment: what these changes, and what was there before,
    add up to. A change under way may count or not."""
    around = [change for change in changes if change.start <= end and change.end > start]
    before += sum(change.delta for change in changes if change.end <= start)
    moments = {start, *(moment for change in around for moment in change[:2] if start < moment <= end)}
    found: list[set[int] | range] = []
    for moment in sorted(moments):
        sums: set[int] | range = {before + sum(change.delta for change in around if change.end <= moment)}
        for change in around:
            if change.start <= moment < change.end:
                sums = with_or_without(sums, change.delta)
        found.append(sums)
    return found


def with_or_without(sums: set[int] | range, delta: int) -> set[int] | range:
    """These numbers, and each with a change. Of changes of different sizes there are soon too many combinations: then,
    whatever is between the least and the largest one is taken for possible."""
    if isinstance(sums, set):
        sums = sums | {number + delta for number in sums}
        return sums if len(sums) <= MOST_SUMS else range(min(sums), max(sums) + 1)
    return range(sums.start + min(delta, 0), sums.stop + max(delta, 0))
