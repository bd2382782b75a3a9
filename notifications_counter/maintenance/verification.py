"""Compares everyone with the rows, again and again, a few owners in each run of the flusher.

The row of a counter's first shard says how far this pass through everyone has come, and what the last one has found.
Flushers take turns: one claims the next owners, and notes that they are done, by an UPDATE that succeeds only if the
row still says what it has read or written. If it is killed, another one compares these owners again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import OperationalError, connections
from django.db.models import Q

from ..buffer.commands import chunked
from ..conf import options
from ..databases.routing import own_rows
from ..declaration import Declaration
from ..sql.everyone import Page
from .audit import TAKE_OVER_SECONDS
from .epochs import reason_for_epoch
from .history import record
from .orphans import remove_orphans
from .places import LocalCounter, at_each
from .recount import FIRST_SIZE, LARGE_PAGE, PAGE, BaseRecounter, Counts, Difference, Look, Recounter, RecountResult
from .shard_rows import Note, refuse_in_transaction, shard_row

SHARE = 0.05
"""The part of a flusher's time that comparisons take at most."""

LONGEST = 0.1
"""Seconds that comparisons take in a row at most, unless a single owner takes longer."""

TARGET = 0.03
"""Seconds that a page should take. It may take twice as long, so no page begins after a third of LONGEST."""

EARLY = 0.9
"""The part of VERIFY_SECONDS in which a pass should end. There may be more owners than in the last one."""

EXAMPLES = 5
"""How many wrong counts the log names."""


@dataclass
class Verification(Note):
    """How far the comparison of everyone has come: the ``end`` of the last page of this pass, how many owners it has
    ``compared``, and how many of them were ``wrong``; the same of the last complete pass, which may be this one; and
    the sums of all passes. ``size`` owners are compared at once. ``claimed`` is when a flusher began with the next
    ones. Times are seconds since 1970, 0 for never."""

    end: str = ""
    began: float = 0
    compared: int = 0
    wrong: int = 0
    claimed: float = 0
    size: int = FIRST_SIZE
    last_began: float = 0
    last_ended: float = 0
    last_compared: int = 0
    last_wrong: int = 0
    verified: int = 0
    mismatched: int = 0
    mismatched_at: float = 0

    @property
    def is_complete(self) -> bool:
        """Whether this pass is complete, so that the next owners belong to another one."""
        return self.began == self.last_began

    @property
    def _done(self) -> float:
        """The part of this pass that is done, judging by the last pass; 0 during the first one."""
        return min(self.compared / self.last_compared, 1) if self.last_compared else 0

    @property
    def due_at(self) -> float:
        """When to compare the next owners, so that a pass is spread evenly."""
        due = self.began + EARLY * options.VERIFY_SECONDS * (1 if self.is_complete else self._done)
        return max(due, self.claimed + min(TAKE_OVER_SECONDS, options.HEAL_AFTER) if self.claimed else 0)

    def age(self, now: float) -> float | None:
        """Return within how many seconds everyone was compared, if the last pass was steady. None if not everyone has
        been compared yet."""
        steady = self.last_began + self._done * (self.last_ended - self.last_began)
        return max(0, now - steady) if self.last_ended else None

    def add(self, result: RecountResult, page: Page | None, now: float, seconds: float) -> None:
        """Note that a page was compared in so many ``seconds``, or that there are no more pages."""
        self.verified += result.checked
        self.compared += result.checked
        self.wrong += result.wrong
        self.mismatched += result.wrong
        self.mismatched_at = now if result.wrong else self.mismatched_at
        self.size = max(1, min(LARGE_PAGE, int(self.size * TARGET / max(seconds, TARGET / 2))))
        self._go_on(page, now)

    def give_up(self, page: Page | None, now: float) -> None:
        """Note that a page could not be compared. Its owners are tried one by one, and then left out."""
        if self.size == 1:
            self._go_on(page, now)
        self.size, self.claimed = 1, 0

    def _go_on(self, page: Page | None, now: float) -> None:
        self.claimed = 0
        if page and not page.is_last:
            self.end = page.end
            return
        self.last_began, self.last_ended = self.began, now
        self.last_compared, self.last_wrong = self.compared, self.wrong
        self.end, self.compared, self.wrong = "", 0, 0


class Verifier(BaseRecounter):
    """A recount that takes leases only on owners whose count seems wrong. It leaves those who are dirty or in flight to
    the next heal."""

    def __init__(self, counter: Declaration):
        super().__init__(counter)
        self.mismatches: list[Difference] = []
        self.recounter = Recounter(counter, self.mismatches.append)

    def _is_worth_counting(self, look: Look) -> bool:
        return look.snapshot.complete

    def _settle(self, look: Look, counts: Counts) -> None:
        owners = look.snapshot.owners
        suspects = [owner_key for owner_key in look.differences(counts) if not owners[owner_key].needs_rows]
        if suspects and not self._is_explained(look, suspects):
            self.recounter.recount(suspects)
            self.result.wrong = self.recounter.result.wrong

    def _is_explained(self, look: Look, suspects: Sequence[str]) -> bool:
        """Return whether the next heal recounts these owners anyway, because Redis or the database has just lost data,
        or a process that could not reach Redis has requested it."""
        buffer = look.buffer
        row = shard_row(self.counter, buffer.shard).first()
        if row is None or reason_for_epoch(buffer.upkeep.status(), row, buffer.upkeep.server()):
            return True
        requests = own_rows("RecountRequest", self.counter.db).filter(counter=self.counter.name)
        return any(requests.filter(Q(owner__in=some) | Q(everyone=True)).exists() for some in chunked(suspects, PAGE))


@dataclass
class Schedule:
    """When this process compares again: when the next owners of each counter are ``due``, by its name; the ``last``
    counter, because they take turns; and until when it rests. Times are those of ``time.monotonic()``."""

    due: dict[str, float] = field(default_factory=dict)
    last: str = ""
    rests_until: float = 0


schedule = Schedule()


def verify(counters: Sequence[LocalCounter[Any]], stopped: Callable[[], bool] = lambda: False) -> None:
    """If it is time, compare some owners of these counters with the rows, and correct wrong counts."""
    started = time.monotonic()
    if not options.VERIFY_SECONDS or started < schedule.rests_until:
        return
    names = [local.name for local in counters]
    first = names.index(schedule.last) + 1 if schedule.last in names else 0

    def compare(local: LocalCounter[Any]) -> None:
        while time.monotonic() < started + LONGEST / 3 and not stopped():
            if not _compare(local):
                return
            schedule.last = local.name

    try:
        at_each((c for c in (*counters[first:], *counters[:first]) if schedule.due.get(c.name, 0) <= started), compare)
    finally:
        ended = time.monotonic()
        schedule.rests_until = ended + (1 / SHARE - 1) * (ended - started)


def _compare(local: LocalCounter[Any]) -> bool:
    """Compare the next owners of a counter. Returns False if none are due."""
    counter = local.counter
    refuse_in_transaction(counter.db)
    row = shard_row(counter, 0)
    text = row.values_list("verified", flat=True).first()
    if text is None or not any(buffer.upkeep.status().complete for buffer in counter.buffers):
        return False  # everyone is recounted first
    state, now = Verification.of(text), time.time()
    # If it is due much later, the clock has been put back.
    if 0 < state.due_at - now <= max(options.VERIFY_SECONDS, TAKE_OVER_SECONDS):
        schedule.due[local.name] = time.monotonic() + state.due_at - now
        return False
    state.began, state.claimed = now if state.is_complete else state.began, now
    claimed = str(state)
    if not row.filter(verified=text).update(verified=claimed):  # another flusher was faster
        return False
    started = time.monotonic()
    verifier = Verifier(counter)
    page = verifier.everyone.page(verifier.everyone.start(state.end), state.size)
    result = verifier.result
    try:
        if page:
            verifier.recount_page(page, counter.buffers)
            remove_orphans(counter, page)
    except OperationalError:
        if connections[counter.db].is_usable():  # the owners are at fault, as after a time limit
            state.give_up(page, time.time())
            row.filter(verified=claimed).update(verified=str(state))
        raise
    if result.wrong:
        shown = [f"{found.owner}: {found.was} instead of {found.rows}" for found in verifier.mismatches[:EXAMPLES]]
        about = {"checked": result.checked, "wrong": result.wrong, "examples": ", ".join(shown)}
        record("mismatched", counter, level=logging.WARNING, **about)
    state.add(result, page, time.time(), time.monotonic() - started)
    row.filter(verified=claimed).update(verified=str(state))
    return True
