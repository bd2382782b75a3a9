"""Stores in the database the counts of those who are pending: cut, fetch, count, store, drop.

A count is the cached total as it was at the cut, or else the number of rows. Writing it twice is harmless, so a flush
can be killed at any step, and repeated. The *mark* in the counter's row moves with each chunk and each generation, in
the same transaction, and only from what the flusher has seen: so a flusher that was stalled writes nothing old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from django.core.exceptions import ValidationError
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    connections,
    transaction,
)

from ..buffer.types import LIMIT, Fetched
from ..chunks import chunked
from ..databases.routing import working_on
from ..declaration import Declaration
from ..declaration.primary_keys import Key
from ..exceptions import BufferUnavailable
from ..models import CounterState
from ..reader import Reader
from ..sql import dialect
from ..sql.everyone import PAGE
from ..sql.target import Chunk, Target
from ..timeseries import LARGEST, TimeSeries
from .findings import Difference, Result, note_mismatches, note_skipped, unexplained
from .generations import state_row
from .history import log_event

CHUNK = 20_000
"""Owners that a statement stores."""

REFUSALS = (DataError, IntegrityError, ProgrammingError)
"""Errors with which a database refuses a count: it does not fit its column, or two owners are equal to it."""

RAISED = {"P0001", 1644}
"""What PostgreSQL and MySQL say of an error that a trigger raises. Others of its kind are not about one count."""


class NotStored(Exception):
    """The database refuses one of several counts."""


@dataclass
class Part:
    """A part of a batch, on its way to the database.

    ``counts``  what is to be stored, then what is stored, by owner
    ``deltas``  what is added to stored totals by that, if nothing wrote behind the ORM's back; without owners for whom
                Redis cannot tell
    ``before``  the totals that were stored before
    ``skipped`` why the others are not stored, by owner key
    """

    counts: dict[Key, int] = field(default_factory=dict)
    deltas: dict[Key, int] = field(default_factory=dict)
    before: dict[Key, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


class Flusher:
    """Flushes one counter."""

    def __init__(
        self,
        counter: Declaration,
        progress: Callable[[int, int], None],
        stopped: Callable[[], bool],
    ):
        self.counter = counter
        self.progress = progress
        self.stopped = stopped
        self.result = Result()
        self.reader = Reader(counter)
        self.target = Target(counter, connections[counter.db])
        self.store = dialect(connections[counter.db].vendor).store

    def flush(self) -> Result:
        """Flush, outside of transactions. BufferUnavailable if Redis is unreachable; what was written stays written."""
        started = time.monotonic()
        row = state_row(self.counter).first()
        # rule: declared_flush
        if row is not None and row.mark and row.fingerprint == self.counter.fingerprint:
            # During a walk at full speed, stored totals are not what they were when Redis was lost.
            can_tell = row.walk_speed != row.FULL_SPEED
            while not self.stopped() and self._flush_batch(row, can_tell):  # first, one that another flusher has left
                pass
        done = self.result
        if done.owners or done.skipped:
            about = {"owners": done.owners, "wrong": done.wrong, "skipped": done.skipped}
            log_event("flush", self.counter, seconds=time.monotonic() - started, **about)
        return done

    def _flush_batch(self, row: CounterState, can_tell: bool) -> bool:
        """Write one batch, and report wrong counts if it ``can_tell`` them. Returns whether another one may wait."""
        buffer, own = self.counter.buffer, uuid4().hex
        batch, size = buffer.cut(row.mark, own)
        if not batch:
            return False
        done = int(row.mark.split(":")[1]) if row.mark.startswith(batch) else 0
        step = CHUNK
        while done < size:
            end = min(done + step, size)
            part = self._decide(buffer.fetch(done, end - 1))
            try:
                is_stored = self._store(part, row, f"{batch}:{end}:{uuid4().hex[:12]}")
            except NotStored:  # by one of these: find it
                step = (end - done) // 2
                continue
            if not is_stored:
                return False
            self.result.owners += len(part.counts)
            self.result.skipped += len(part.skipped)
            note_skipped(self.counter, part.skipped)
            self._record_activity(part)
            if can_tell:
                self._find_mismatches(part)
            done, step = end, min(2 * step, CHUNK)
            self.progress(min(done, size - 1), size - 1)  # one is the sentinel
            if done < size and self.stopped():
                return False
        return buffer.drop(batch, row.mark) and batch != own

    # ------------------------------------------------------------------ decide
    def _decide(self, fetched: Sequence[Fetched]) -> Part:
        """Decide what is to be stored: the cached total as it was at the cut, or else the number of rows."""
        part, to_count = Part(), list[Key]()
        for each in fetched:
            try:
                key = self.counter.decode(each.owner)
            except ValidationError:
                part.skipped[each.owner] = "it is not the primary key of an owner. Find out what wrote it"
                continue
            if each.total is None or (total := each.total - (each.later or 0)) < self.counter.least:
                to_count.append(key)  # a negative total lacks a delta that is committed and not sent
            else:
                part.counts[key] = total
            if each.delta is not None and each.later is not None:  # otherwise, its total was cached after a doubt
                part.deltas[key] = each.delta
        for some in chunked(to_count, PAGE):
            self._count(part, some)
            for key in self._doubt_active(some):
                part.deltas.pop(key, None)
        for key in [key for key, count in part.counts.items() if not -LIMIT <= count < LIMIT]:  # MariaDB would round it
            part.skipped[str(key)] = self._too_large(part.counts.pop(key))
        return part

    def _count(self, part: Part, keys: Sequence[Key]) -> None:
        """Count the rows of owners. If the database fails to, as after a time limit, count them one by one."""
        try:
            part.counts |= self.reader.rows(keys)
        except OperationalError as error:
            if self.stopped() or not self.target.connection.is_usable():
                raise
            if len(keys) == 1:
                part.skipped[str(keys[0])] = f"its rows cannot be counted: {error}"
                return
            for key in keys:
                self._count(part, [key])

    def _doubt_active(self, keys: Sequence[Key]) -> list[Key]:
        """Doubt owners who have changed since the cut, after their rows were counted: the count may include deltas of
        the next batch, so neither batch can tell whether it is right. Returns these owners."""
        buffer, peeks = self.counter.buffer, self.counter.buffer.peek(list(map(str, keys)))
        active = [key for key in keys if peeks[str(key)].pending or peeks[str(key)].is_in_flight]
        buffer.doubt(list(map(str, active)))
        return active

    # ------------------------------------------------------------------- store
    def _store(self, part: Part, row: CounterState, mark: str) -> bool:
        """Move the mark, and store counts in the order of keys, in one transaction. Returns False if the mark is not
        what the flusher has seen. NotStored if the database refuses one of several counts; a single one is skipped."""
        counter, counts = self.counter, part.counts
        keys = sorted(counts)
        try:
            with transaction.atomic(using=counter.db):
                if not state_row(counter).filter(mark=row.mark).update(mark=mark):  # rule: mark
                    return False
                part.before = self.target.stored(keys)
                if stored := [key for key in keys if counts[key] or key in part.before]:
                    self.store(self.target, Chunk(counter.columns_of(stored), [counts[key] for key in stored]))
        except DatabaseError as error:
            is_raised = not RAISED.isdisjoint((getattr(error.__cause__, "sqlstate", None), *error.args))
            if not keys or not (is_raised or isinstance(error, REFUSALS)):
                raise
            if len(keys) > 1:
                raise NotStored from error
            if isinstance(error, ProgrammingError) and not is_raised:
                raise
            part.skipped[str(keys[0])] = f"{self._too_large(counts.pop(keys[0]))}: {error}"
            return self._store(part, row, mark)
        row.mark = mark
        return True

    def _too_large(self, count: int) -> str:
        return f"{self.counter.totals._meta.get_field(self.counter.field)} cannot hold its count, {count}"

    def _record_activity(self, part: Part) -> None:
        """Add the rises and falls of the counts to the time-sliced counters, for the charts of the dashboard."""
        rises, deltas = sum(delta for delta in part.deltas.values() if delta > 0), sum(part.deltas.values())
        counts = {"added": min(rises, LARGEST), "removed": min(rises - deltas, LARGEST)}
        if rises or deltas:
            with suppress(BufferUnavailable), working_on(self.counter.db):
                TimeSeries().update_counters({f"{self.counter.name}:{what}": n for what, n in counts.items() if n})

    def _find_mismatches(self, part: Part) -> None:
        """Report counts that did not change by just the deltas: something wrote behind the ORM's back."""
        wrong = []
        for key, count in part.counts.items():
            if key in part.deltas and (was := part.before.get(key, 0) + part.deltas[key]) != count:
                wrong.append(Difference(key, was, count))
        mismatches = unexplained(self.counter, wrong)
        self.result.add_wrong(mismatches)
        note_mismatches(self.counter, mismatches)
