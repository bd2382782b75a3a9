"""Stores in the database the counts of those who are pending: cut, fetch, count, store, drop.

A count is the cached total, or the number of rows if there is none or it is low. Writing it twice is harmless, so a
flush can be killed at any step, and repeated. The *mark* in the counter's row moves with each chunk and each
generation, in the same transaction, and only from what the flush has seen: so one that was stalled writes nothing old.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

from django.core.exceptions import ValidationError
from django.db import DatabaseError, OperationalError, connections, transaction

from ..buffer.types import OWNERS_PER_CALL, Fetched
from ..databases.errors import EXPECTED, explain, refuses_a_value
from ..declaration import Declaration
from ..declaration.primary_keys import Pk
from ..models import Mark
from ..redis.calls import chunked
from ..redis.replies import INTEGER_LIMIT
from ..reports import report
from ..sql.counts import count_rows
from ..sql.target import Target
from .comparison import Comparison
from .findings import Result, record
from .heal import HEAL_SECONDS, heal
from .phases import row_in_force, state_row

OWNERS_PER_CHUNK = 20_000
"""The most owners that a statement stores, and that are in memory."""

MAX_AGE_SECONDS = 300.0
"""Seconds that work may wait for the flusher before that is a problem."""

MAX_COMPARED_TOTAL = 100
"""The highest cached total, without its sign, that a flush compares with the rows."""

COMPARE_SECONDS = 5
"""Seconds after which a flush compares no further page: each owner may have many rows that do not count."""


def heal_and_flush(counter: Declaration) -> tuple[Result, Result]:
    """Heal and flush a counter, as the flusher does. Return what each did, and note in Redis whether it failed. If the
    heal is unfinished, call this again."""
    try:
        healed = heal(counter, HEAL_SECONDS)
        flushed = Flush(counter, math.inf).run()
    except Exception as error:
        _note_run(counter, f"{type(error).__name__}: {explain(error)}")
        raise
    _note_run(counter)
    return healed, flushed


def _note_run(counter: Declaration, failure: str = "") -> None:
    """Note a run for monitoring, which sees itself if Redis or the database is out of reach."""
    with suppress(*EXPECTED):
        counter.buffer.note_run(failure)


class Flush:
    """A flush of one counter, for about so many seconds."""

    def __init__(self, counter: Declaration, seconds: float):
        self.counter = counter
        self.started = time.monotonic()
        self.until = self.started + seconds
        self.result = Result()
        self.comparison = Comparison(counter, self.result)
        self.target = Target(counter, connections[counter.db])
        self.mark: Mark  # the one in the row, which run() reads
        self.skipped: list[str] = []  # owner keys of the chunk that cannot be stored, and why

    def run(self) -> Result:
        """Flush, outside of transactions. BufferUnavailable if Redis is unreachable; what was written stays written."""
        row = row_in_force(self.counter).exclude(mark="").first()
        if row is None:
            return self.result
        self.mark = Mark(row.mark)
        while self._flush_batch():  # first, one that another flusher has left
            pass
        done = self.result
        if done.owners or done.skipped:
            seconds = time.monotonic() - self.started
            report("flush", self.counter, seconds=seconds, owners=done.owners, skipped=done.skipped)
        return done

    def _flush_batch(self) -> bool:
        """Flush one batch, in chunks. Returns whether another one may wait."""
        buffer = self.counter.buffer
        new = uuid4().hex
        batch, size = buffer.cut(self.mark, self.mark.batch, new)
        if not batch:
            return False
        while self.mark.stored(batch) < size:
            if not self._flush_chunk(batch, size):
                return False
        waited = buffer.drop(batch, self.mark)
        if waited is None:
            return False
        if waited > MAX_AGE_SECONDS:
            report("late", self.counter, owners=size, minutes=waited // 60)
        return batch != new  # it was another flusher's

    def _flush_chunk(self, batch: str, size: int) -> bool:
        """Store the next owners of a batch, behind those that the mark says are stored. Returns whether to go on."""
        done = self.mark.stored(batch)
        end = min(done + OWNERS_PER_CHUNK, size)
        fetched = self.counter.buffer.fetch(done, end - 1)
        counts = self._counts(fetched)
        if not self._store(counts, Mark.of_chunk(batch, end)):
            return False
        self.result.owners += len(counts)
        self.result.skipped += len(self.skipped)
        record("skipped", self.counter, self.skipped)
        self.skipped = []
        self._tell_stored(fetched, end, size)
        self.result.unfinished = end < size and time.monotonic() > self.until
        return not self.result.unfinished

    def _counts(self, fetched: Sequence[Fetched]) -> dict[Pk, int]:
        """Return what is to be stored, by owner: the cached total, or the number of rows where there is none, or where
        it is compared."""
        counts: dict[Pk, int] = {}
        to_count: list[Pk] = []
        cheap: list[Pk] = []
        for owner_key, _, total in fetched:
            try:
                pk = self.counter.valid_pk(owner_key)
            except ValidationError:
                self.skipped.append(f"{owner_key!r}: it is not the primary key of an owner. Find out what wrote it")
                continue
            if total is None or total < self.counter.least:  # a delta that is committed and not sent is missing
                to_count.append(pk)
            else:
                counts[pk] = total
                if abs(total) <= MAX_COMPARED_TOTAL:
                    cheap.append(pk)
        for some in chunked(to_count, OWNERS_PER_CALL):
            counts |= self.comparison.count_or_skip(some)
        self._compare(cheap, counts)
        for pk in [pk for pk, count in counts.items() if not -INTEGER_LIMIT <= count < INTEGER_LIMIT]:
            self._skip(pk, counts)  # MariaDB would round it
        return counts

    def _compare(self, cheap: Sequence[Pk], counts: dict[Pk, int]) -> None:
        """Compare these cached totals with the rows, and store the latter. After COMPARE_SECONDS, or a time limit of
        the database, the others are trusted."""
        # rule: compared
        differ = list[Pk]()
        with suppress(OperationalError):
            for some in chunked(cheap, OWNERS_PER_CALL):
                if time.monotonic() > self.started + COMPARE_SECONDS:
                    break
                rows = count_rows(self.counter, some)
                differ += [pk for pk in some if rows[pk] != counts[pk]]
                counts |= rows
        for some in chunked(differ, OWNERS_PER_CALL):  # most of them are changing
            self.comparison.compare(some)

    def _store(self, counts: dict[Pk, int], mark: Mark) -> bool:
        """Move the mark, and store counts in the order of keys, in one transaction. Returns False if the mark is not
        what this flush has seen."""
        with transaction.atomic(using=self.counter.db):
            if not state_row(self.counter).filter(mark=self.mark).update(mark=mark):  # rule: mark
                return False
            zeros = [pk for pk, count in counts.items() if not count]
            needless = set(zeros) - self.target.stored(zeros).keys()  # who has no row needs none
            self._store_these(sorted(counts.keys() - needless), counts)
        self.mark = mark
        return True

    def _store_these(self, pks: Sequence[Pk], counts: dict[Pk, int]) -> None:
        """Store the counts of these owners. If the database refuses one, store each half, and skip a single one."""
        if not pks:
            return
        try:
            with transaction.atomic(using=self.counter.db):
                self.target.store({pk: counts[pk] for pk in pks})
        except DatabaseError as error:
            if not refuses_a_value(error, is_alone=len(pks) == 1):
                raise
            if len(pks) == 1:
                self._skip(pks[0], counts, f": {error}")
            else:
                half = len(pks) // 2
                self._store_these(pks[:half], counts)
                self._store_these(pks[half:], counts)

    def _skip(self, pk: Pk, counts: dict[Pk, int], reason: str = "") -> None:
        """Leave out a count that the database cannot store."""
        field = self.counter.totals._meta.get_field(self.counter.field)
        self.skipped.append(f"{str(pk)!r}: {field} cannot hold its count, {counts.pop(pk)}{reason}")

    def _tell_stored(self, fetched: Sequence[Fetched], done: int, size: int) -> None:
        """Tell how far the batch is stored, and by how much the counts of this chunk have risen and fallen."""
        deltas = [each.delta or 0 for each in fetched]
        added, removed = sum(d for d in deltas if d > 0), -sum(d for d in deltas if d < 0)
        report("stored", self.counter, owners=done, of=size, added=added, removed=removed)
