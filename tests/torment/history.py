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
    action: str
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
        In the ``losses`` Redis had lost what it had acknowledged: reads may miss anything until the recovery is
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
            f"{owner}: {seen} between {read.start:.6f} and {read.end:.6f}, possible were {sorted(right)}"
            for read in self.reads
            if not any(read.end > span.start and read.start < span.end for span in lost)
            for owner, seen in read.numbers.items()
            if seen not in (right := possible(by_owner[owner], base.get(owner, 0), read.start, read.end))
        ]


def possible(changes: Sequence[Change], before: int, start: float, end: float) -> set[int]:
    """What a read from ``start`` to ``end`` may return: what these changes, and what was there before, add up to at
    some moment. A change under way may count or not."""
    around = [change for change in changes if change.start <= end and change.end > start]
    before += sum(change.delta for change in changes if change.end <= start)
    values: set[int] = set()
    for moment in {start, *(t for change in around for t in change[:2] if start < t <= end)}:
        sums = {before + sum(change.delta for change in around if change.end <= moment)}
        for change in around:
            if change.start <= moment < change.end:
                sums |= {value + change.delta for value in sums}
        values |= sums
    return values
