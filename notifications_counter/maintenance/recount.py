"""Compares counters with the rows and corrects them through the buffer: look, count, fix.

Healing, audits, first install and recovery are all this one mechanism.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from ..buffer import Buffer
from ..conf import options
from ..declaration import Declaration
from ..internals import raw_delete
from ..reader import Reader
from ..writes.rows import chunks
from ..writes.totals import maintained
from .history import record_event
from .shards import refuse_in_transaction, reject_batches_up_to, start_epoch

PAGE = 1000
"""Owners in one look."""

TRIES = 4
"""Looks at a user who is active all the time, in smaller and smaller groups, before it is left to the next run."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A wrong count: the primary key of the ``user``, what the count ``was``, and the number of ``rows``."""

    user: Any
    was: int | None
    rows: int


@dataclass
class RecountResult:
    """Users ``checked``, found ``wrong``, ``corrected``, and looks ``retried`` because users were active."""

    checked: int = 0
    wrong: int = 0
    corrected: int = 0
    retried: int = 0

    def add(self, other: RecountResult) -> None:
        """Add another result."""
        self.checked += other.checked
        self.wrong += other.wrong
        self.corrected += other.corrected
        self.retried += other.retried


class Recounter:
    """Recounts users of one counter.

    ``patient``: a difference that a commit on its way to Redis may make is not wrong; it is left to the next heal.
    """

    def __init__(self, counter: Declaration, report: Callable[[Correction], None] | None = None, patient: bool = False):
        self.counter = counter
        self.patient = patient
        self.report = report or (lambda correction: None)
        self.reader = Reader(counter)
        self.started_epoch = False

    def recount(self, members: Iterable[str], dry_run: bool = False) -> RecountResult:
        """Recount owners, given as members. A member that is not a primary key goes to ``rejected``."""
        refuse_in_transaction(self.reader.using)
        result = RecountResult()
        for buffer, mine in self.counter.by_shard(list(dict.fromkeys(members))):
            keys, rejected = self._decode(mine)
            if rejected and not dry_run:
                buffer.reject(rejected, dirty=True)
                for member, delta in rejected.items():
                    record_event("rejected", self.counter, level=logging.ERROR, member=member, delta=delta)
            members_left = list(keys)
            for i in range(0, len(members_left), PAGE):
                page = {m: keys[m] for m in members_left[i : i + PAGE]}
                result.add(self._compare(buffer, page) if dry_run else self._correct(buffer, page))
        return result

    def recount_all(
        self,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
        after: str = "",
        note: Callable[[str], None] = lambda position: None,
    ) -> RecountResult:
        """Recount everyone who has rows that count, a stored count, or something waiting in Redis.

        ``note`` is called with how far it has come, after which another call can go on, and with ``""`` at the end.
        """
        result = RecountResult()
        for members, position in self.everyone(after):
            result.add(self.recount(members, dry_run))
            note(position)
            if progress:
                progress(result.checked)
            if stopped():
                return result
        note("")
        return result

    def everyone(self, after: str = "") -> Iterator[tuple[list[str], str]]:
        """Yield pages of all owners who can have a count, and where each page ends."""
        for page, end in self.pages(after):
            after = end
            yield page, end
        for buffer in self.counter.buffers:
            for page in buffer.waiting():
                keys, _ = self._decode(page)
                has_rows = self.reader.count_rows(list(keys.values()))
                has_count = self.reader.stored(list(keys.values()))
                yield [m for m, key in keys.items() if key not in has_rows and not has_count.get(key, (0,))[0]], after

    def pages(self, after: str) -> Iterator[tuple[list[str], str]]:
        """Users with rows that count, then others whose stored count is not zero, in pages by keyset. With each page
        comes where it ends: ``after`` goes on from there."""
        counter, using = self.counter, self.reader.using
        owner = counter.owner_attname
        rows: QuerySet = QuerySet(counter.source, using=using).filter(counter.q, **{f"{owner}__isnull": False})
        theirs: QuerySet = QuerySet(counter.source, using=using).filter(counter.q, **{owner: OuterRef("pk")})
        stored: QuerySet = QuerySet(counter.totals, using=using).exclude(**{counter.field: 0}).exclude(Exists(theirs))
        phase, _, text = after.partition(":")
        walks = (("rows", rows.order_by(owner).distinct(), owner), ("stored", stored.order_by("pk"), "pk"))
        for name, walk, column in walks:
            if phase == "stored" and name == "rows":
                continue
            here = walk.filter(**{f"{column}__gt": counter.key_field.to_python(text)}) if phase == name else walk
            while keys := list(here.values_list(column, flat=True)[:PAGE]):
                yield [str(key) for key in keys], f"{name}:{keys[-1]}"
                here = walk.filter(**{f"{column}__gt": keys[-1]})

    def _decode(self, members: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        keys, rejected = {}, {}
        for member in members:
            try:
                keys[member] = self.counter.decode(member)
            except ValidationError:
                rejected[member] = "recount"
        return keys, rejected

    def _correct(self, buffer: Buffer, keys: dict[str, Any]) -> RecountResult:
        """Correct owners of one shard. Owners who are active all the time are marked dirty."""
        result = RecountResult(checked=len(keys))
        groups = [(keys, TRIES)]
        left: list[str] = []
        while groups:
            group, tries = groups.pop()
            active = self._look_and_fix(buffer, group, result)
            if active and tries > 1:
                result.retried += len(active)
                size = max(1, len(active) // 4)
                members = list(active)
                groups += [
                    ({m: active[m] for m in members[i : i + size]}, tries - 1) for i in range(0, len(members), size)
                ]
            else:
                left += active
        if left:
            buffer.mark_dirty(left)
        return result

    def _look_and_fix(self, buffer: Buffer, keys: dict[str, Any], result: RecountResult) -> dict[str, Any]:
        """Look, count, fix. Returns the owners who were active meanwhile, or may be about to commit to Redis what makes
        the difference."""
        lease = uuid4().hex
        snapshot = buffer.snapshot(list(keys), lease)
        rows = self.reader.count_rows(list(keys.values()))
        stored = self.reader.stored(list(keys.values()))
        ahead = max((batch for _, batch in stored.values()), default=0)
        if ahead > snapshot.batch and ahead > buffer.status().batch:  # else it was cut and flushed since the snapshot
            # Such a total would refuse every correction: it was not written by a flusher of this epoch.
            self.started_epoch |= start_epoch(self.counter, self.counter.buffers.index(buffer), buffer, ahead=ahead)
        counts = {m: snapshot.value(m, *stored.get(key, (0, 0))) for m, key in keys.items()}
        tellable = {m: count for m, count in counts.items() if count is not None}
        corrections = {m: rows.get(keys[m], 0) - count for m, count in tellable.items()}
        if self.patient and snapshot.ready and any(corrections.values()):
            committing = self._committing(buffer)
            corrections = {m: n for m, n in corrections.items() if not n or m not in committing}
        fixed = buffer.fix(snapshot.epoch, lease, corrections)
        for member, done in fixed.items():
            if done and corrections[member]:
                result.wrong += 1
                result.corrected += 1
                self.report(Correction(keys[member], counts[member], rows.get(keys[member], 0)))
        return {m: key for m, key in keys.items() if not fixed.get(m)}

    def _compare(self, buffer: Buffer, keys: dict[str, Any]) -> RecountResult:
        """Compare without changing anything. A difference counts if it is the same in every look, because a
        transaction between its two commits shows one that goes away."""
        result = RecountResult(checked=len(keys))
        suspects: dict[str, tuple[int | None, int]] = {}
        left = keys
        for look in range(TRIES):
            snapshot = buffer.snapshot(list(left))
            rows = self.reader.count_rows(list(left.values()))
            stored = self.reader.stored(list(left.values()))
            found = {m: (snapshot.value(m, *stored.get(key, (0, 0))), rows.get(key, 0)) for m, key in left.items()}
            suspects = {
                m: seen for m, seen in found.items() if seen[0] != seen[1] and (look == 0 or suspects.get(m) == seen)
            }
            left = {m: keys[m] for m in suspects}
            if not left:
                break
        committing = self._committing(buffer) if suspects else ()
        for member, (was, right) in suspects.items():
            if member in committing:
                continue
            result.wrong += 1
            self.report(Correction(keys[member], was, right))
        return result

    def _committing(self, buffer: Buffer) -> set[str]:
        """Return the owners of transactions that may have committed to the database, and not to Redis yet."""
        parts = list(buffer.open_parts())
        now = buffer.status().now if parts else 0
        return {m for part in parts if 0 <= now - part.began < options.HEAL_AFTER for m in part.users}


def remove_orphans(counter: Declaration) -> int:
    """Delete the totals of deleted owners if the count is zero and nothing waits in Redis. Returns how many."""
    owner: Any = counter.totals._meta.pk.remote_field
    owners: QuerySet[Any] = QuerySet(owner.model, using=counter.db).filter(pk=OuterRef("pk"))
    totals: QuerySet[Any] = QuerySet(counter.totals, using=counter.db)
    zero = {sharing.field: 0 for sharing in counter.sharing}
    gone = totals.filter(**zero).exclude(Exists(owners))
    page, removed = gone, 0
    while keys := list(page.order_by("pk").values_list("pk", flat=True)[:PAGE]):
        for buffer, members in counter.by_shard([str(key) for key in keys]):
            removed += _remove(counter, counter.buffers.index(buffer), members, gone)
        page = gone.filter(pk__gt=keys[-1])
    return removed


def _remove(counter: Declaration, shard: int, members: list[str], gone: QuerySet[Any]) -> int:
    """A row guards against batches that come again: the shard is closed to every batch that a deleted row may have, of
    every counter with a total in it. The leases end corrections under way that may have seen such a batch, and not the
    total."""
    ended: dict[Declaration, int] = {}
    for sharing in counter.sharing:
        snapshot = sharing.buffers[shard].snapshot(members, lease=uuid4().hex)
        ended[sharing] = snapshot.batch - snapshot.cut
        members = [member for member in members if snapshot.users[member] == (0, 0, False)]
    older = {f"{sharing.batch_field}__lte": batch for sharing, batch in ended.items()}
    with transaction.atomic(using=counter.db):
        if not members or not reject_batches_up_to(counter, shard, ended):
            return 0
        removed = 0
        with maintained():
            for chunk in chunks([counter.decode(member) for member in members], counter.db):
                removed += raw_delete(gone.filter(pk__in=chunk, **older), counter.db)
        return removed
