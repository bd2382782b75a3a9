"""Writes the changes that wait in Redis to the database: cut, fetch, apply, finish.

A total remembers its last batch, so no batch is added to it twice, and a batch is applied only in the epoch of its
shard. So flushers can be killed at any step, any number of them can run, and a stalled one can wake up late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import DataError, OperationalError, connections, transaction

from ..buffer import Buffer
from ..buffer.types import Cut, parse_int
from ..declaration import Declaration
from ..declaration.primary_keys import INTEGERS
from ..sql import dialect
from ..sql.target import Chunk, Target
from ..writes.totals import maintained
from .epochs import damage
from .history import log_event, record_rejected
from .in_force import begin_run, is_in_force
from .places import EXPECTED, OUTAGES
from .recount import RecountResult
from .shard_rows import lock_for_batch, note_progress, refuse_in_transaction, shard_row, shard_rows


@dataclass
class FlushResult:
    """How many ``owners`` and ``batches`` a flush wrote, the ``net`` sum of their deltas, and the ``seconds`` it took.
    Members are ``rejected`` if they are no primary key, or their delta does not fit the column."""

    owners: int = 0
    net: int = 0
    batches: int = 0
    rejected: int = 0
    seconds: float = 0.0


def heal_and_flush(counter: Declaration, heal: Callable[[], RecountResult], flush: Callable[[], object]) -> bool:
    """Heal and flush one counter, and note in Redis whether that failed. If an owner cannot be counted, flush before
    the error is raised, so that the others need not wait. Returns whether more is to be healed."""
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
        counter.buffers[0].upkeep.note_run(failure)


@dataclass
class _Fetched:
    """The part of a batch from the rank ``first`` on: the ``chunk`` that can be applied; the ``rejected`` owner keys
    with their deltas; and those of them to recount, ``refused``."""

    first: int
    chunk: Chunk
    rejected: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


class Flusher:
    """Flushes one counter."""

    def __init__(
        self,
        counter: Declaration,
        chunk_size: int,
        progress: Callable[[int, int], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ):
        self.counter = counter
        self.chunk_size = chunk_size
        self.progress = progress or (lambda done, total: None)
        self.stopped = stopped
        self.is_new = False  # whether a flush has found that nobody has been counted yet
        self.using = counter.db
        self.target = Target(counter, connections[self.using])
        self.apply = dialect(connections[self.using].vendor).apply
        internal = counter.totals._meta.get_field(counter.field).get_internal_type()
        self.limit = 2 ** {"SmallIntegerField": 15, "IntegerField": 31}.get(internal, 63)

    def flush(self) -> FlushResult:
        """Flush every shard. BufferUnavailable if Redis is unreachable; what was written stays written.
        NotInTransaction inside a transaction."""
        started = time.monotonic()
        result = FlushResult()
        refuse_in_transaction(self.using)
        if not is_in_force(self.counter, begin_run(self.counter)):
            return result
        for buffer in self.counter.buffers:
            status = buffer.upkeep.status()
            row = shard_row(self.counter, buffer.shard).first()
            if row is None or damage(status, row.epoch):  # healing recovers it first
                self.is_new |= not shard_rows(self.counter).filter(epoch__gt=0).exists()
                continue
            for _ in range(2 if status.flushing else 1):  # the batch that another flusher left, then a new one
                cut = None if self.stopped() else buffer.upkeep.cut(row.epoch, row.finished)
                if cut is None or not self._flush_batch(buffer, cut, result):
                    break
        result.seconds = time.monotonic() - started
        if result.owners or result.rejected:
            log_event("flush", self.counter, result)
        return result

    def _flush_batch(self, buffer: Buffer, cut: Cut, result: FlushResult) -> bool:
        """Write one batch. Returns False if it is not finished, because the flush was stopped or a new epoch began."""
        refused: list[str] = []
        rejected = 0
        batch_id: str | None = ""
        with closing(self._chunks(buffer, cut)) as chunks:
            for part in chunks:
                if (batch_id := self._apply(buffer.shard, cut, part)) is None:
                    return False
                if part.rejected:
                    record_rejected(self.counter, buffer.upkeep.reject(part.rejected))
                refused += part.refused
                rejected += len(part.rejected)
                done = min(part.first + self.chunk_size, cut.size)
                result.owners += len(part.chunk.deltas)
                result.net += sum(part.chunk.deltas)
                self.progress(done, cut.size)
                if done < cut.size and self.stopped():
                    return False
        # rule: refused: the script marks them dirty.
        if not buffer.upkeep.finish(cut.batch, batch_id or "", refused):
            return False
        result.batches += 1
        result.rejected += rejected
        return True

    def _chunks(self, buffer: Buffer, cut: Cut) -> Generator[_Fetched]:
        """Yield the batch in chunks, and fetch the next one while the database works."""
        size, step = cut.size, self.chunk_size
        with ThreadPoolExecutor(1, thread_name_prefix="fetch") as thread:

            def fetch(first: int) -> Future[_Fetched | None]:
                return thread.submit(self._fetch, buffer, cut.batch, first, min(first + step, size) - 1)

            coming = fetch(0)
            for first in range(0, size, step):
                part = coming.result()
                if first + step < size:
                    coming = fetch(first + step)
                if part is None:
                    return
                yield part

    def _fetch(self, buffer: Buffer, batch: int, first: int, last: int) -> _Fetched | None:
        if separator := self.counter.separator:
            texts = buffer.upkeep.fetch_joined(batch, first, last, separator)
            if texts is None:
                return None
            if (chunk := self._parse_joined(*texts)) is not None:
                return _Fetched(first, chunk)
        pairs = buffer.upkeep.fetch(batch, first, last)
        return self._parse(first, pairs) if pairs else None

    def _parse_joined(self, owner_keys: str, scores: str) -> Chunk | None:
        """Parse a whole chunk. None if some part of it cannot be applied."""
        if not INTEGERS.fullmatch(scores):
            return None
        deltas = [int(n) for n in scores.split(",")]
        try:
            columns = self.counter.decode_joined(owner_keys)
        except ValidationError:
            return None
        # An owner key that contains the separator would be two.
        fit = max(map(abs, deltas)) < self.limit and len(columns[0]) == len(deltas)
        return Chunk(columns, deltas) if fit else None

    def _parse(self, first: int, pairs: list[tuple[str, str]]) -> _Fetched:
        """Parse owner keys one by one, and reject those that cannot be applied."""
        keys: list[Any] = []
        deltas: list[int] = []
        part = _Fetched(first, Chunk([], []))
        for owner_key, score in pairs:
            try:
                key = self.counter.decode(owner_key)
            except ValidationError:
                part.rejected[owner_key] = score
                continue
            delta = parse_int(score)
            if delta is None or abs(delta) >= self.limit:
                part.rejected[owner_key] = score
                part.refused.append(owner_key)
            else:
                keys.append(key)
                deltas.append(delta)
        part.chunk = Chunk(self.counter.columns_of(keys), deltas)
        return part

    def _apply(self, shard: int, cut: Cut, part: _Fetched) -> str | None:
        """Write a chunk, and reject deltas that would take a count out of its column's range. Deltas that another
        flusher has written are removed from the chunk. Returns the id of the last batch that the database has finished,
        or None if it does not accept the chunk."""
        todo, part.chunk = [part.chunk], Chunk([], [])
        batch_id = ""
        while todo:
            chunk = todo.pop()
            try:
                with transaction.atomic(using=self.using):
                    row = lock_for_batch(self.counter, shard, cut, part.first)
                    if row is None:
                        return None
                    is_written = row.finished >= cut.batch or row.progress > part.first
                    if chunk.deltas:
                        with maintained():
                            self.apply(self.target, cut.batch, chunk)
                    if not todo:
                        note_progress(row, cut, part.first + self.chunk_size)
                    batch_id = row.batch_id
            except DataError:
                if len(chunk.deltas) == 1:
                    owner_key = str(self.counter.key_of([column[0] for column in chunk.columns]))
                    part.rejected[owner_key] = str(chunk.deltas[0])
                    part.refused.append(owner_key)
                    todo = todo or [Chunk([], [])]  # the progress is still to be noted
                else:
                    half = len(chunk.deltas) // 2
                    for some in (slice(half), slice(half, None)):
                        todo.append(Chunk([column[some] for column in chunk.columns], chunk.deltas[some]))
            else:
                part.chunk = Chunk([], part.chunk.deltas if is_written else [*part.chunk.deltas, *chunk.deltas])
        return batch_id
