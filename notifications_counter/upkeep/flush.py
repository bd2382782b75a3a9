"""Stores in the database the counts of those who are pending: cut, fetch, count, store, drop.

A count is the cached total as it was at the cut, or else the number of rows. Writing it twice is harmless, so a flush
can be killed at any step, and repeated. The *mark* in the shard's row moves with each chunk and each generation, in the
same transaction, and only from what the flusher has seen: so a flusher that was stalled writes nothing old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from uuid import uuid4

from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, OperationalError, ProgrammingError, connections, transaction

from ..buffer import Buffer
from ..buffer.types import LIMIT, Fetched
from ..chunks import chunked
from ..conf import options
from ..declaration import Declaration
from ..declaration.primary_keys import Key
from ..models import CounterShard
from ..reader import Reader
from ..sql import dialect
from ..sql.everyone import PAGE
from ..sql.target import Chunk, Target
from ..writes.door import maintained
from .history import log_event
from .places import EXPECTED, OUTAGES
from .shards import shard_row, shard_rows
from .state import FULL_SPEED, WalkState
from .walk import Difference, Result, set_aside, unexplained

CHUNK = 20_000
"""Owners that a statement stores, unless the caller says otherwise."""

LONG = 10_000
"""Rows of an owner whose count a flush caches, because counting them takes long."""

REFUSALS = (DataError, IntegrityError, ProgrammingError)
"""Errors with which a database refuses a count: it does not fit its column, or two owners are equal to it."""


def heal_and_flush(counter: Declaration, heal: Callable[[], Result], flush: Callable[[], object]) -> bool:
    """Heal and flush one counter, and note in Redis whether that failed. If the database cannot count some owners,
    flush before the error is raised, so that the others need not wait. Returns whether more is to be healed."""
    try:
        try:
            healed = heal()
        except OperationalError:
            with suppress(*OUTAGES):
                flush()
            raise
        flush()
    except Exception as error:
        _note_run(counter, f"{type(error).__name__}: {' '.join(str(error).split())}")
        raise
    _note_run(counter)
    return healed.unfinished


def _note_run(counter: Declaration, failure: str = "") -> None:
    """Note a run for monitoring, which sees itself if Redis or the database is out of reach."""
    with suppress(*EXPECTED):
        counter.buffers[0].note_run(failure)


class Flusher:
    """Flushes one counter."""

    def __init__(
        self,
        counter: Declaration,
        chunk_size: int,
        report: Callable[[Difference], None],
        progress: Callable[[int, int], None] = lambda done, total: None,
        stopped: Callable[[], bool] = lambda: False,
    ):
        self.counter = counter
        self.chunk_size = chunk_size
        self.report = report
        self.progress = progress
        self.stopped = stopped
        self.result = Result()
        self.reader = Reader(counter)
        self.target = Target(counter, connections[counter.db])
        self.store = dialect(connections[counter.db].vendor).store

    def flush(self) -> Result:
        """Flush every shard, outside of transactions. BufferUnavailable if Redis is unreachable; what was written stays
        written."""
        started = time.monotonic()
        rows = {row.shard: row for row in shard_rows(self.counter).filter(shards=options.SHARDS)}
        # During a walk at full speed, stored totals are not what they were when Redis was lost.
        self.can_tell = 0 in rows and WalkState.of(rows[0].walk).speed != FULL_SPEED
        for buffer in self.counter.buffers:
            row = rows.get(buffer.shard)
            # rule: declared_flush
            if row is not None and row.mark and row.fingerprint == buffer.fingerprint:
                while not self.stopped() and self._flush_batch(buffer, row):  # first, one that another flusher has left
                    pass
        if self.result.owners or self.result.aside:
            log_event("flush", self.counter, seconds=time.monotonic() - started, **asdict(self.result))
        return self.result

    def _flush_batch(self, buffer: Buffer, row: CounterShard) -> bool:
        """Write one batch. Returns whether another one may wait."""
        own = uuid4().hex
        batch, size, self.set_aside_before = buffer.cut(row.mark, own)
        if not batch:
            return False
        done = int(row.mark.split(":")[1]) if row.mark.startswith(batch) else 0
        while done < size:
            end = min(done + self.chunk_size, size)
            fetched = buffer.fetch(done, end - 1)
            if not self._write(buffer, row, fetched, f"{batch}:{end}:{uuid4().hex[:12]}"):
                return False
            done = end
            self.progress(min(done, size - 1), size - 1)  # one is the sentinel
            if done < size and self.stopped():
                return False
        return buffer.drop(batch, row.mark) and batch != own

    def _write(self, buffer: Buffer, row: CounterShard, fetched: Sequence[Fetched], mark: str) -> bool:
        """Write a chunk of a batch, and move the mark. Returns False if it is not what the flusher has seen."""
        owners: dict[Key, Fetched] = {}
        aside: dict[str, str] = {}
        for each in fetched:
            try:
                owners[self.counter.decode(each.owner)] = each
            except ValidationError:
                aside[each.owner] = "it is not the primary key of an owner. Find out what wrote it"
        counts: dict[Key, int] = {
            key: each.total - (each.later or 0)
            for key, each in owners.items()
            # A negative total lacks a delta that is committed and not sent.
            if each.total is not None and each.total - (each.later or 0) >= self.counter.least
        }
        for key in counts:
            if owners[key].later is None:  # the total was cached after a doubt
                owners[key] = owners[key]._replace(delta=None)
        for some in chunked([key for key in owners if key not in counts], PAGE):
            self._count(some, counts, aside)
            for key in self._doubt_active(some):
                owners[key] = owners[key]._replace(delta=None)
        for key in [key for key, count in counts.items() if not -LIMIT <= count < LIMIT]:  # MariaDB would round it
            aside[str(key)] = self._too_large(counts.pop(key))
        before = self._store(row, sorted(counts), counts, aside, mark)
        if before is None:
            return False
        self.result.owners += len(counts)
        self.result.aside += len(aside)
        if aside:
            set_aside(self.counter, aside)
        if self.set_aside_before:
            buffer.take_back([str(key) for key in counts])
        if self.can_tell:
            self._find_mismatches(owners, counts, before)
        long = [key for key, count in counts.items() if count >= LONG and owners[key].total is None]
        if long and not self.counter.sum:
            self.reader.counts(long)
        return True

    def _count(self, keys: Sequence[Key], counts: dict[Key, int], aside: dict[str, str]) -> None:
        """Count the rows of owners. If the database fails to, as after a time limit, count them one by one."""
        try:
            counts |= self.reader.rows(keys)
        except OperationalError as error:
            if not self.target.connection.is_usable():
                raise
            if len(keys) == 1:
                aside[str(keys[0])] = f"its rows cannot be counted: {error}"
                return
            for key in keys:
                self._count([key], counts, aside)

    def _store(
        self, row: CounterShard, keys: Sequence[Key], counts: dict[Key, int], aside: dict[str, str], mark: str
    ) -> dict[Key, int] | None:
        """Move the mark, and store counts in the order of keys, in one transaction. Counts that the database refuses
        are set aside, and the others stored. Returns the totals before; None if the mark is not what the flusher has
        seen."""
        counter = self.counter
        try:
            with transaction.atomic(using=counter.db):
                if not shard_row(counter, row.shard).filter(mark=row.mark).update(mark=mark):  # rule: mark
                    return None
                before = self.target.stored(keys)
                if stored := [key for key in keys if counts[key] or key in before]:
                    with maintained():
                        self.store(self.target, Chunk(counter.columns_of(stored), [counts[key] for key in stored]))
        except REFUSALS as error:
            if len(keys) > 1:
                half = len(keys) // 2
                first = self._store(row, keys[:half], counts, aside, row.mark)
                rest = None if first is None else self._store(row, keys[half:], counts, aside, mark)
                return None if first is None or rest is None else first | rest
            if not keys or isinstance(error, ProgrammingError):
                raise
            aside[str(keys[0])] = f"{self._too_large(counts.pop(keys[0]))}: {error}"
            return self._store(row, [], counts, aside, mark)
        row.mark = mark
        return before

    def _too_large(self, count: int) -> str:
        return f"{self.counter.totals._meta.get_field(self.counter.field)} cannot hold its count, {count}"

    def _doubt_active(self, keys: Sequence[Key]) -> list[Key]:
        """Doubt owners who have changed since the cut, after their rows were counted: the count may include deltas of
        the next batch, so neither batch can tell whether it is right. Returns these owners."""
        by_owner_key, active = {str(key): key for key in keys}, []
        for buffer, owner_keys in self.counter.by_shard(list(by_owner_key)):
            peeks = buffer.peek(owner_keys)
            of_shard = [each for each in owner_keys if peeks[each].pending or peeks[each].is_in_flight]
            buffer.doubt(of_shard)
            active += [by_owner_key[each] for each in of_shard]
        return active

    def _find_mismatches(self, owners: dict[Key, Fetched], counts: dict[Key, int], before: dict[Key, int]) -> None:
        """Report counts that did not change by just the deltas: something wrote behind the ORM's back."""
        wrong = []
        for key, count in counts.items():
            delta = owners[key].delta
            if delta is not None and (was := before.get(key, 0) + delta) != count:
                wrong.append(Difference(key, was, count))
        for difference in unexplained(self.counter, wrong):
            self.result.wrong += 1
            self.report(difference)
