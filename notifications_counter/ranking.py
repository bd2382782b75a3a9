"""Reads the largest counts: from the stored totals where nothing waits, and as any read does for the other owners."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from django.core.exceptions import ValidationError

from .buffer import Snapshot
from .buffer.patience import Patience
from .buffer.several import snapshots_of
from .conf import options
from .declaration.primary_keys import First, Key, group_of
from .exceptions import BufferUnavailable
from .reader import NO_STORED_TOTAL, Reader
from .sql.largest import Largest
from .writes.ledger import Ledger

MOST = 4000
"""Owners for whom something may wait in a shard. If there are more, rows are counted: a script that reads all of them
would block Redis."""

TRIES = 2
"""Attempts that a flush may disturb before rows are counted."""

Top = list[tuple[Key, int]]


class Ranking(Reader):
    """The largest counts of one counter."""

    __slots__ = ()

    def top(self, number: int, first: First) -> Top:
        """Return the owners with the largest counts, of all, or of those with these values in all columns but the
        last."""
        ledger = Ledger.of(self.counter.db)
        largest = Largest(self.counter, number, first)
        if (
            not (ledger.may_see_old_data() or ledger.may_have_changed_anyone(self.counter))
            and self._view(ledger).is_current
        ):
            with Patience(options.READ_TIMEOUT), suppress(BufferUnavailable):
                for _ in range(TRIES):
                    if (found := self._of_totals(ledger, largest)) is not None:
                        return found
        return largest.of_rows()

    def _of_totals(self, ledger: Ledger, largest: Largest) -> Top | None:
        """Return the largest counts by the stored totals and all that waits in Redis. None if they cannot be known:
        Redis is not ready, too much waits there, or a flush came in between (rule: later)."""
        counter, group = self.counter, group_of(largest.first) if largest.first else ""
        buffers = [counter.buffer_of(group)] if group else counter.buffers
        by_rows = {owner_key for owner_key in ledger.all_touched(counter) if owner_key.startswith(group)}
        waiting: dict[str, Snapshot] = {}
        batches: dict[int, int] = {}
        for buffer, snapshot in zip(buffers, snapshots_of(buffers, group, MOST), strict=True):
            if snapshot is None or not snapshot.complete:  # rules: ready, declared_read
                return None
            batches[buffer.shard] = snapshot.batch
            waiting |= dict.fromkeys(snapshot.owners, snapshot)
            # rules: flying, dirty_counts
            by_rows |= {owner_key for owner_key, its in snapshot.owners.items() if its.needs_rows}
        sure = self._decoded(waiting.keys() - by_rows)
        found = largest.of_totals(list(sure), list(self._decoded(by_rows)), batches)
        if found is None:
            return None
        counts = found.counts
        for key, owner_key in sure.items():
            count = waiting[owner_key].value(owner_key, *found.waiting.get(key, NO_STORED_TOTAL))
            if count is None:
                return None
            counts[key] = count
        counts |= self._negative([key for key, count in counts.items() if count < counter.least])
        ranked = sorted(filter(counts.get, counts), key=lambda key: (-counts[key], found.order[key]))
        return [(key, counts[key]) for key in ranked[: largest.number]]

    def _decoded(self, owner_keys: Iterable[str]) -> dict[Key, str]:
        """Return owner keys by primary key, without keys that are no owner's, such as a group's."""
        keys: dict[Key, str] = {}
        for owner_key in owner_keys:
            with suppress(ValidationError):
                keys[self.counter.decode(owner_key)] = owner_key
        return keys
