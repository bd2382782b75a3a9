"""Compares counts with the rows, and corrects them through the buffer: look, count, fix.

Healing, audits, first install and recovery are all this one mechanism. ``dry_run.py`` only compares.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from django.core.exceptions import ValidationError

from ..buffer import Buffer, Snapshot
from ..buffer.commands import OWNERS_PER_CALL, chunked
from ..declaration import Declaration
from ..declaration.primary_keys import Key
from ..exceptions import BufferUnavailable
from ..reader import NO_STORED_TOTAL, Reader
from ..sql.everyone import Counted, Everyone, Page
from .epochs import start_epoch
from .shard_rows import refuse_in_transaction

PAGE = 1000
"""Owners in one look, and in the first page of everyone."""

LARGE_PAGE = 8000
"""The most owners in a later page of everyone."""

TARGET_SECONDS = 0.5
"""Seconds that a page, or a look of a heal, should take. After one that takes longer, the next one is smaller."""

FIRST_SIZE = 10
"""Owners in a first look, before it is known how long one takes."""

TRIES = 4
"""Looks at owners who are active all the time, in smaller and smaller groups, before they are left to the next run."""


def next_size(size: int, started: float, most: int) -> int:
    """Return how many owners to look at next: twice as many after a quick look, and half as many after a slow one."""
    return min(2 * size, most) if time.monotonic() - started < TARGET_SECONDS else max(size // 2, 1)


@dataclass(frozen=True, slots=True)
class Difference:
    """A wrong count: the primary key of the ``owner``, what the count ``was``, None if that cannot be known, and the
    number of ``rows``."""

    owner: Key
    was: int | None
    rows: int


@dataclass
class RecountResult:
    """How many owners were ``checked``, ``wrong`` and ``corrected``, and how often one was ``retried`` because it was
    active. An owner is ``postponed``, and left to the flusher, if it is active all the time, or a transaction may still
    tell Redis of the difference; in a dry run, also if the stored count differs, but readers count the rows anyway. A
    heal is ``unfinished`` if its time ran out before its work was done: call it again."""

    checked: int = 0
    wrong: int = 0
    corrected: int = 0
    retried: int = 0
    postponed: int = 0
    unfinished: bool = False


Counts = Mapping[str, Counted]
"""By owner key."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look at some owners of one shard: their primary keys by owner key, a snapshot of the changes that wait for
    them, and the token of the leases on them, if it took any."""

    buffer: Buffer
    keys: dict[str, Key]
    snapshot: Snapshot
    token: str = ""

    def differences(self, counts: Counts) -> dict[str, Difference]:
        """Return the differences by owner key. Owners for whom nothing waits, and who are not in ``counts``, are
        right."""
        found = {}
        for owner_key in {*self.snapshot.waiting, *(counts.keys() & self.keys.keys())}:
            rows, total, batch = counts.get(owner_key, Counted())
            if (was := self.snapshot.value(owner_key, total, batch)) != rows:
                found[owner_key] = Difference(self.keys[owner_key], was, rows)
        return found


class BaseRecounter:
    """A recount of owners of one counter: look, count, settle the differences. ``Recounter`` corrects these, ``DryRun``
    reports them, and ``Verifier`` has their owners recounted. ``result`` adds up all calls."""

    def __init__(self, counter: Declaration, report: Callable[[Difference], None] | None = None):
        self.counter = counter
        self.report = report or (lambda difference: None)
        self.result = RecountResult()
        self.reader = Reader(counter)
        self.everyone = Everyone(counter)

    def _look(self, buffer: Buffer, keys: dict[str, Key]) -> Look:
        return Look(buffer, keys, buffer.snapshot(list(keys)))

    def _is_worth_counting(self, look: Look) -> bool:
        """Return whether it makes sense to count the owners of a page after this look."""
        return True

    def _settle(self, look: Look, counts: Counts) -> None:
        raise NotImplementedError

    def _note(self, position: str) -> None:
        """Note where to resume."""

    def recount(self, owner_keys: Iterable[str]) -> list[str]:
        """Recount owners, given as owner keys. Returns the owner keys that are invalid."""
        refuse_in_transaction(self.counter.db)
        invalid: list[str] = []
        for buffer, mine in self.counter.by_shard(list(dict.fromkeys(owner_keys))):
            keys, others = self._decode(mine)
            invalid += others
            for some in chunked(list(keys), PAGE):
                look = self._look(buffer, {owner_key: keys[owner_key] for owner_key in some})
                self._settle(look, self._counts(look.keys))
                self.result.checked += len(look.keys)
        return invalid

    def recount_all(
        self, progress: Callable[[int], None] | None, stopped: Callable[[], bool], resume: bool = False
    ) -> None:
        """Recount everyone who has rows that count, a stored total, or something waiting in Redis. ``resume``: go on
        after the last page of a call that was interrupted."""
        position = self.counter.buffers[0].upkeep.recounted() if resume else ""
        self._note("")  # another recount begins with the first owner
        pages = self._recount_pages(position)
        try:
            for position in pages:  # noqa: B007 (it is noted below)
                if progress:
                    progress(self.result.checked)
                if stopped():
                    return
            position = ""
        finally:
            if position:
                with suppress(BufferUnavailable):
                    self._note(position)

    def _recount_pages(self, after: str) -> Iterator[str]:
        """Recount everyone. After each page, yield where to resume."""
        for page in self.pages(after):
            self.recount_page(page, self.counter.buffers)
            yield (after := page.end)
        for buffer in self.counter.buffers:
            for owner_keys in buffer.upkeep.waiting():
                keys, _ = self._decode(owner_keys)
                found = list(keys.values())
                known = self.reader.stored_totals(found).keys() | self.reader.count_rows(found)
                self.recount(owner_key for owner_key, key in keys.items() if key not in known)
                yield after

    def pages(self, after: str = "", last: str = "") -> Iterator[Page]:
        """Yield everyone whom the database knows, in pages, from the end of one page to the end of another."""
        start, end, size = self.everyone.start(after), self.everyone.start(last), PAGE
        while page := self.everyone.page(start, size, end):
            started = time.monotonic()
            yield page
            start, size = page.last, next_size(size, started, LARGE_PAGE)

    def recount_page(self, page: Page, buffers: Sequence[Buffer]) -> None:
        """Recount the owners of a page that are in one of these shards: look at all, count at once, settle all."""
        shards = {buffer.shard for buffer in buffers}
        looks = [
            self._look(buffer, {owner_key: page.keys[owner_key] for owner_key in some})
            for buffer, mine in self.counter.by_shard(list(page.keys))
            if buffer.shard in shards
            for some in chunked(mine, OWNERS_PER_CALL)
        ]
        if looks := list(filter(self._is_worth_counting, looks)):
            counts = self._counts_of_page(page, looks)
            for look in looks:
                self._settle(look, counts)
                self.result.checked += len(look.keys)

    def _counts_of_page(self, page: Page, looks: Sequence[Look]) -> Counts:
        """Count the rows of a whole page, or of the owners who were looked at, if these are a small part of it."""
        batch = min(look.snapshot.batch for look in looks)
        waiting = [
            owner_key
            for look in looks
            for owner_key, changes in look.snapshot.owners.items()
            if (changes.pending, changes.flushing) != (0, 0)
        ]
        if 2 * sum(len(look.keys) for look in looks) > len(page.keys):
            return self.everyone.counts(page, batch, waiting)
        counts: dict[str, Counted] = {}
        for look in looks:
            mine = [owner_key for owner_key in waiting if owner_key in look.keys]
            counts |= self.everyone.counts(page, batch, mine, only=list(look.keys.values()))
        return counts

    def _decode(self, owner_keys: Sequence[str]) -> tuple[dict[str, Key], list[str]]:
        """Return the primary keys by owner key, and the owner keys that are invalid."""
        keys, invalid = {}, []
        for owner_key in owner_keys:
            try:
                keys[owner_key] = self.counter.decode(owner_key)
            except ValidationError:
                invalid.append(owner_key)
        return keys, invalid

    def _counts(self, keys: dict[str, Key]) -> Counts:
        rows = self.reader.count_rows(list(keys.values()))
        stored = self.reader.stored_totals(list(keys.values()))
        return {
            owner_key: Counted(rows.get(key, 0), *stored.get(key, NO_STORED_TOTAL)) for owner_key, key in keys.items()
        }

    def _report(self, wrong: Sequence[Difference]) -> None:
        self.result.wrong += len(wrong)
        for each in wrong:
            self.report(each)


class Recounter(BaseRecounter):
    """A recount that corrects what is wrong."""

    started_epoch = False  # whether it has found that everyone must be recounted

    def _look(self, buffer: Buffer, keys: dict[str, Key]) -> Look:
        token = uuid4().hex
        return Look(buffer, keys, buffer.take_leases(list(keys), token), token)

    def _is_worth_counting(self, look: Look) -> bool:
        """Return whether Redis takes corrections of this declaration. If not, ask for a recovery, which recounts
        everyone, by a heartbeat."""
        if not look.snapshot.ready:
            look.buffer.heartbeat()
        return bool(look.snapshot.ready)

    def _note(self, position: str) -> None:
        self.counter.buffers[0].upkeep.note_recounted(position)

    def _settle(self, look: Look, counts: Counts) -> None:
        """Correct the differences. Look again at owners who were active meanwhile, and mark dirty those who are active
        all the time."""
        groups = [(self._fix(look, counts), TRIES - 1)]
        left: list[str] = []
        while groups:
            group, tries = groups.pop()
            if not tries:
                left += group
                continue
            self.result.retried += len(group)
            for some in chunked(list(group), max(1, len(group) // 4)):
                again = self._look(look.buffer, {owner_key: group[owner_key] for owner_key in some})
                if active := self._fix(again, self._counts(again.keys)):
                    groups.append((active, tries - 1))
        if left:
            look.buffer.mark_dirty(left)
            self.result.postponed += len(left)

    def _fix(self, look: Look, counts: Counts) -> dict[str, Key]:
        """Correct what is wrong. Returns the owners who were active meanwhile, or whose count is unknown:
        the script refuses to correct them (rules: lease, fix_flying)."""
        buffer, snapshot = look.buffer, look.snapshot
        ahead = max((counts[owner_key].batch for owner_key in counts.keys() & look.keys.keys()), default=0)
        # Above both: otherwise it was cut and flushed since the snapshot.
        if ahead > snapshot.batch and ahead > buffer.upkeep.status().batch:
            # rule: ahead: no flusher of this epoch wrote such a total, which would refuse every correction.
            self.started_epoch |= start_epoch(self.counter, buffer, ahead=ahead)
        differences = look.differences(counts)
        corrections = dict.fromkeys(look.keys, 0)
        for owner_key, difference in differences.items():
            if difference.was is None:
                del corrections[owner_key]
            else:
                corrections[owner_key] = difference.rows - difference.was
        fixed = buffer.fix(snapshot.epoch, look.token, corrections)
        corrected = [differences[key] for key, correction in corrections.items() if correction and fixed[key]]
        self.result.corrected += len(corrected)
        self._report(corrected)
        return {owner_key: key for owner_key, key in look.keys.items() if not fixed.get(owner_key)}
