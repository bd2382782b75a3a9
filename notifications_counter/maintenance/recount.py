"""Compares counters with the rows and corrects them through the buffer: look, count, fix.

Healing, audits, first install and recovery are all this one mechanism.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from django.core.exceptions import ValidationError
from django.db.models import QuerySet

from ..buffer import Buffer, Snapshot
from ..buffer.shard import in_calls
from ..declaration import Declaration
from ..declaration.primary_keys import CompositeKey, group_of
from ..reader import Reader
from ..sql.everyone import Everyone, Page
from .epochs import start_epoch
from .history import record_rejected
from .shards import refuse_in_transaction

PAGE = 1000
"""Owners in one look, and in the first page of everyone."""

LARGE_PAGE = 8000
"""The most owners in a later page of everyone."""

TARGET_SECONDS = 0.5
"""Seconds that a page, or a look of a heal, should take. After one that takes longer, the next one is smaller."""

TRIES = 4
"""Looks at users who are active all the time, in smaller and smaller groups, before they are left to the next run."""


@dataclass(frozen=True, slots=True)
class Correction:
    """A wrong count: the primary key of the ``user``, what the count ``was``, and the number of ``rows``."""

    user: Any
    was: int | None
    rows: int


@dataclass
class RecountResult:
    """How many users were ``checked``, ``wrong`` and ``corrected``, and how often one was ``retried`` because it was
    active. Those ``in_doubt`` are left to the flusher: they are active all the time, or a transaction may still tell
    Redis of a difference; in a dry run, also those whose stored count differs while readers count the rows anyway. A
    heal is ``unfinished`` if its time was over before its work was done: call it again."""

    checked: int = 0
    wrong: int = 0
    corrected: int = 0
    retried: int = 0
    in_doubt: int = 0
    unfinished: bool = False

    def add(self, other: RecountResult) -> None:
        """Add another result."""
        self.checked += other.checked
        self.wrong += other.wrong
        self.corrected += other.corrected
        self.retried += other.retried
        self.in_doubt += other.in_doubt


Counts = Mapping[str, tuple[int, int, int]]
"""The number of rows, stored total and batch, by member."""

NO_ROWS = (0, 0, 0)
"""The counts of an owner who has neither rows nor a total."""


@dataclass(frozen=True, slots=True)
class Look:
    """A snapshot of some owners of one shard, and the token of the leases."""

    buffer: Buffer
    snapshot: Snapshot
    token: str

    @classmethod
    def of(cls, buffer: Buffer, members: Sequence[str], lease: bool) -> Look:
        token = uuid4().hex if lease else ""
        return cls(buffer, buffer.snapshot(members, "take" if lease else "", token), token)

    def compare(self, counts: Counts) -> dict[str, tuple[int | None, int]]:
        """Return each owner's count, or None if it cannot be known, and number of rows. Owners for whom nothing waits,
        and who are not in ``counts``, are right and left out."""
        users, value = self.snapshot.users, self.snapshot.value
        found = {}
        for member in {*self.snapshot.waiting, *(counts.keys() & users.keys())}:
            rows, total, batch = counts.get(member, NO_ROWS)
            found[member] = value(member, total, batch), rows
        return found


class Recounter:
    """Recounts owners of one counter."""

    def __init__(self, counter: Declaration, report: Callable[[Correction], None] | None = None):
        self.counter = counter
        self.report = report
        self.reader = Reader(counter)
        self.everyone = Everyone(counter)
        self.started_epoch = False

    def recount(self, members: Iterable[str], dry_run: bool = False) -> RecountResult:
        """Recount owners, given as members. Members that are not a primary key go to ``rejected``."""
        refuse_in_transaction(self.reader.using)
        result = RecountResult()
        for buffer, mine in self.counter.by_shard(list(dict.fromkeys(members))):
            keys, rejected = self._decode(mine)
            if rejected and not dry_run:
                buffer.reject(rejected, dirty=True)
                record_rejected(self.counter, rejected)
            result.checked += len(keys)
            for some in in_calls(list(keys), PAGE):
                page = {member: keys[member] for member in some}
                if dry_run:
                    self._compare(buffer, page, result)
                else:
                    self._look_again(buffer, self._look_and_fix(buffer, page, result), result)
        return result

    def members(self, owner: Any) -> list[str]:
        """Return the member that stands for an owner, as a list. Given all columns of owners but the last, return the
        members of all such owners with rows that count, a stored total, or something waiting in Redis."""
        counter = self.counter
        if not counter.is_first(owner):
            return [str(counter.key(owner))]
        first = counter.first_of_key(owner)
        group = group_of(first)
        names = [field.attname for field in counter.total_fields]
        totals: QuerySet[Any] = QuerySet(counter.totals, using=self.reader.using)
        stored = totals.filter(**dict(zip(names, first, strict=False))).values_list(*names)
        members = {str(CompositeKey((*first, last))) for last in self.reader.count_groups([first])[first]}
        members |= {str(counter.key_of(owner)) for owner in stored}
        for page in counter.buffer_of(group).waiting():
            members |= {member for member in page if member.startswith(group)}
        return sorted(members)

    def recount_all(
        self,
        dry_run: bool = False,
        progress: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
        after: str = "",
        note: Callable[[str], None] = lambda position: None,
    ) -> RecountResult:
        """Recount everyone who has rows that count, a stored total, or something waiting in Redis.

        ``note`` is called with the position after each page, from which another call can resume, and with ``""`` at the
        end.
        """
        result = RecountResult()
        for found, position in self._everyone(after, dry_run):
            result.add(found)
            note(position)
            if progress:
                progress(result.checked)
            if stopped():
                return result
        note("")
        return result

    def _everyone(self, after: str, dry_run: bool) -> Iterator[tuple[RecountResult, str]]:
        for page in self.pages(after):
            after = page.end
            yield self.recount_page(page, self.counter.buffers, dry_run), after
        for buffer in self.counter.buffers:
            for members in buffer.waiting():
                keys, _ = self._decode(members)
                known = self.reader.stored(list(keys.values())).keys() | self.reader.count_rows(list(keys.values()))
                yield self.recount([m for m, key in keys.items() if key not in known], dry_run), after

    def pages(self, after: str = "", last: str = "") -> Iterator[Page]:
        """Yield everyone whom the database knows, from the end of a page on, and up to the end of another one."""
        start, end, size = self.everyone.start(after), self.everyone.start(last), PAGE
        while page := self.everyone.page(start, size, end):
            started = time.monotonic()
            yield page
            start = page.last
            size = min(2 * size, LARGE_PAGE) if time.monotonic() - started < TARGET_SECONDS else max(size // 2, 1)

    def recount_page(self, page: Page, buffers: Sequence[Buffer], dry_run: bool = False) -> RecountResult:
        """Recount the owners of a page that are in one of these shards: look at all, count at once, fix all."""
        result = RecountResult()
        bases = {buffer.keys.base for buffer in buffers}  # threads may each have made their own buffers
        looks = [
            Look.of(buffer, some, lease=not dry_run)
            for buffer, mine in self.counter.by_shard(list(page.keys))
            if buffer.keys.base in bases
            for some in in_calls(mine)
        ]
        if not dry_run:
            looks = [look for look in looks if self._is_in_force(look)]
        if not looks:
            return result
        counts = self._counts_of_page(page, looks)
        for look in looks:
            mine = {member: page.keys[member] for member in look.snapshot.users}
            result.checked += len(mine)
            if dry_run:
                wrong = {m: mine[m] for m, (was, rows) in look.compare(counts).items() if was != rows}
                self._compare(look.buffer, wrong, result)
            else:
                self._look_again(look.buffer, self._fix(look, mine, counts, result), result)
        return result

    def _counts_of_page(self, page: Page, looks: Sequence[Look]) -> Counts:
        """Count the rows of a whole page, or of the owners who were looked at, if these are a small part of it."""
        batch = min(look.snapshot.batch for look in looks)
        waiting = [m for look in looks for m, w in look.snapshot.users.items() if (w.pending, w.flushing) != (0, 0)]
        if 2 * sum(len(look.snapshot.users) for look in looks) > len(page.keys):
            return self.everyone.counts(page, batch, waiting)
        counts: dict[str, tuple[int, int, int]] = {}
        for look in looks:
            mine = [m for m in waiting if m in look.snapshot.users]
            only = [page.keys[member] for member in look.snapshot.users]
            counts |= self.everyone.counts(page, batch, mine, only)
        return counts

    def _is_in_force(self, look: Look) -> bool:
        """Return whether Redis takes corrections of this declaration. If not, a recovery is to come, which recounts
        everyone, and Redis hears that it must."""
        if not look.snapshot.ready:
            look.buffer.be_heard()
        return bool(look.snapshot.ready)

    def _decode(self, members: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        keys, rejected = {}, {}
        for member in members:
            try:
                keys[member] = self.counter.decode(member)
            except ValidationError:
                rejected[member] = "recount"
        return keys, rejected

    def _look_again(self, buffer: Buffer, active: dict[str, Any], result: RecountResult) -> None:
        """Correct owners who were active during a look. Mark those dirty who are active all the time."""
        groups = [(active, TRIES - 1)] if active else []
        left: list[str] = []
        while groups:
            group, tries = groups.pop()
            if not tries:
                left += group
                continue
            result.retried += len(group)
            for some in in_calls(list(group), max(1, len(group) // 4)):
                if active := self._look_and_fix(buffer, {m: group[m] for m in some}, result):
                    groups.append((active, tries - 1))
        if left:
            buffer.mark_dirty(left)
            result.in_doubt += len(left)

    def _look_and_fix(self, buffer: Buffer, keys: dict[str, Any], result: RecountResult) -> dict[str, Any]:
        """Look, count, fix. Returns the owners who were active meanwhile."""
        look = Look.of(buffer, list(keys), lease=True)
        return self._fix(look, keys, self._counts(keys), result)

    def _counts(self, keys: dict[str, Any]) -> Counts:
        """Return the number of rows, stored total and batch of each."""
        rows = self.reader.count_rows(list(keys.values()))
        stored = self.reader.stored(list(keys.values()))
        return {m: (rows.get(key, 0), *stored.get(key, (0, 0))) for m, key in keys.items()}

    def _fix(self, look: Look, keys: dict[str, Any], counts: Counts, result: RecountResult) -> dict[str, Any]:
        """Fix what was counted after a look. Returns the owners who were active meanwhile."""
        buffer, snapshot = look.buffer, look.snapshot
        ahead = max((counts[member][2] for member in counts.keys() & keys.keys()), default=0)
        if ahead > snapshot.batch and ahead > buffer.status().batch:  # else it was cut and flushed since the snapshot
            # No flusher of this epoch wrote such a total, which would refuse every correction.
            self.started_epoch |= start_epoch(self.counter, buffer, ahead=ahead)
        compared = look.compare(counts)
        wrong = {m: rows - was for m, (was, rows) in compared.items() if was is not None and was != rows}
        corrections = dict.fromkeys(keys, 0) | wrong
        unknown = {m for m, (was, _) in compared.items() if was is None}
        for member in unknown:
            del corrections[member]
        fixed = buffer.fix(snapshot.epoch, look.token, corrections)
        corrected = [member for member in wrong if fixed.get(member)]
        result.corrected += len(corrected)
        self._wrong(corrected, keys, compared, result)
        return {m: key for m, key in keys.items() if not fixed.get(m)}

    def _compare(self, buffer: Buffer, keys: dict[str, Any], result: RecountResult) -> None:
        """Compare without changing anything. A difference is wrong only if every look shows the same one, because one
        that comes from a transaction between its COMMIT and its confirmation goes away."""
        suspects: dict[str, tuple[int | None, int]] = {}
        left = keys
        for look in range(TRIES):
            if not left:
                return
            found = Look.of(buffer, list(left), lease=False).compare(self._counts(left))
            suspects = {
                m: seen for m, seen in found.items() if seen[0] != seen[1] and (look == 0 or suspects.get(m) == seen)
            }
            left = {m: keys[m] for m in suspects}
        if not suspects:
            return
        seen = buffer.snapshot(list(suspects))
        in_doubt = {m for m in suspects if seen.users[m].in_doubt or not seen.recovered}
        result.in_doubt += len(in_doubt)
        self._wrong([member for member in suspects if member not in in_doubt], keys, suspects, result)

    def _wrong(
        self, wrong: list[str], keys: dict[str, Any], compared: dict[str, tuple[int | None, int]], result: RecountResult
    ) -> None:
        result.wrong += len(wrong)
        if self.report:
            for member in wrong:
                self.report(Correction(keys[member], *compared[member]))
