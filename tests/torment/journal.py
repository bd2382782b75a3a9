"""What the processes of a round note of their calls, at once, so that it outlives them."""

import json
import math
import os
import time
from collections import Counter as Tally
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from notifications_counter.conf import options
from tests.faults.history import Call, History, Numbers

from .proxy import DELAY
from .truth import Changes


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
    def process(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def due(self) -> float:
        """When its intent is grounded, if it is broken or was announced too late: Redis counts whole seconds, and a
        proxy may pass the announcement on after the call."""
        return max(self.start + options.HEAL_AFTER, 2 * self.end - self.start) + 1 + DELAY[1]


@dataclass
class Span:
    start: float
    end: float


@dataclass
class Notes:
    """The notes of all processes of a round."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Call] = field(default_factory=list)
    healed: list[Span] = field(default_factory=list)
    flushed: int = 0
    faults: Tally[str] = field(default_factory=Tally)
    ambushes: Tally[str] = field(default_factory=Tally)

    @classmethod
    def of(cls, directory: Path, died: dict[str, float]) -> "Notes":
        """Those in a directory. ``died`` says when processes did."""
        notes = cls()
        for path in sorted(directory.glob("*.journal")):
            for line in path.read_text().splitlines():
                kind, *entry = json.loads(line)
                notes._take(kind, entry)
        for write in notes.writes:
            if write.end == math.inf:
                write.end = died[write.process]
        return notes

    def _take(self, kind: str, entry: list[Any]) -> None:
        if kind == "begin":
            self.writes.append(Write(*entry))
        elif kind == "end":
            write = self.writes[-1]
            write.end, write.lags, write.broken = entry
        elif kind == "read":
            self.reads.append(Call(*entry))
        elif kind == "healed":
            self.healed.append(Span(*entry))
        elif kind == "flushed":
            self.flushed += 1
        elif kind == "fault":
            self.faults[" ".join(entry)] += 1
        elif kind == "ambush":
            self.ambushes[" ".join(entry)] += 1

    def healed_since(self, moment: float) -> float:
        """When the first run of a flusher that began then was over."""
        return min((run.end for run in self.healed if run.start >= moment), default=math.inf)

    def history(self, base: Numbers, changes: Changes, losses: Iterable[Span]) -> History:
        """Every read, and every change that was committed, with the time until which a read may miss it. ``losses``
        are the times in which Redis had lost what it had acknowledged: reads may miss anything until the recovery is
        over."""
        history = History(base=base)
        for write in self.writes:
            if numbers := changes.get(write.name):
                end = write.end
                if write.broken or write.lags:
                    end = self.healed_since(write.due if write.broken else end)
                history.writes.append(Call(write.start, end, numbers))
        lost = [Span(loss.start, self.healed_since(loss.end)) for loss in losses]
        for read in self.reads:
            if not any(read.end > span.start and read.start < span.end for span in lost):
                history.reads.append(read)
        return history


def now() -> float:
    return time.monotonic()
