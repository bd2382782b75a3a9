"""The deltas of one database transaction, and when they are announced and sent.

A transaction log follows savepoints, so that a rollback also drops its deltas. Every owner whose count changes is
announced in Redis before the database commits; if Redis is unreachable, the same transaction writes a RecountRequest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from django.db import DatabaseError

from ..buffer.patience import Patience
from ..buffer.pipeline import late_failures, see_to_late
from ..buffer.types import Delta
from ..conf import options
from ..databases.routing import in_schema, working_on
from ..declaration import Declaration
from ..exceptions import BufferUnavailable
from ..signals import counts_changed
from ..timeseries import LARGEST, TimeSeries
from .intents import Intents, Owner, write_requests
from .requests import forget, mark_dirty, request_recounts

logger = logging.getLogger("notifications_counter")

Entry = tuple[Declaration, Mapping[str, Delta] | None]
"""What a statement has changed; None if anyone's count may have changed."""


class TransactionLog(Intents):
    """Deltas in the order of their statements, and what is announced for them.

    ``early``   intents that were announced before a statement that may have committed
    ``told``    entries for which counts_changed was sent
    """

    early = told = 0
    _looked = 0  # entries whose owners were announced, unless they cancel each other out

    def __init__(self, connection: Any):
        super().__init__(connection)
        self.entries: list[Entry] = []
        self.touched: dict[Declaration, set[str]] = {}  # also by what was rolled back
        self.requested: set[Owner] = set()  # owners with a RecountRequest
        self.savepoints: list[tuple[str, int]] = []  # name, entries before it
        self.everyone: set[Declaration] = set()  # counters of which everyone is to be recounted

    def announce_the_changed(self, connection: Any) -> None:
        """Announce every owner whose count changes, or write a RecountRequest for it, before the database commits. If
        anyone's may change, have readers count rows: each time, because an epoch may have begun since the last call. Of
        the owners, only those that have changed since then are looked at."""
        owners = {c: [key for key, delta in its.items() if delta != 0] for c, its in self.net(self._looked).items()}
        unsaid = self._unsaid()
        if not unsaid and not any(owners.values()):
            return
        with in_schema(connection, self.schema):
            for counter in unsaid:
                forget(counter)  # rule: forget
            try:
                self.announce(owners, connection)
            finally:
                failed = self.settle()  # an unread reply would keep its connection
            try:
                request_recounts(self.using, failed)
            except DatabaseError:
                about = {"event": "requests_failed", "database": self.using, "owners": len(failed)}
                logger.exception("RecountRequests of %d owners could not be written.", len(failed), extra=about)
            else:
                self.requested.update(failed)
                self._looked = len(self.entries)

    # ----------------------------------------------------------------- record
    def add(self, deltas: Mapping[Declaration, Mapping[str, Delta]], everyone: Iterable[Declaration] = ()) -> None:
        """Add what a statement has changed. A delta of None means that the owner is recounted (rule: unknown). So is
        everyone of the ``everyone`` counters."""
        for entry in deltas.items():
            self.entries.append(entry)
            self.touched.setdefault(entry[0], set()).update(entry[1])
        for counter in everyone:
            self.entries.append((counter, None))
            self.everyone.add(counter)

    def _unsaid(self) -> list[Declaration]:
        """Return the counters of which anyone's count may have changed."""
        unsaid = (counter for counter, deltas in self.entries if deltas is None)
        return list(dict.fromkeys(unsaid)) if self.everyone else []

    def has_touched(self, counter: Declaration, owner_key: str) -> bool:
        """Return whether rows of this owner may have changed, and the deltas are not sent yet."""
        return (
            owner_key in self.touched.get(counter, ())
            or owner_key in self.announced.get(counter, ())
            or counter in self.everyone
        )

    def touched_of(self, counter: Declaration) -> set[str]:
        """Return every owner whose rows may have changed, and whose deltas are not sent yet."""
        return self.touched.get(counter, set()) | self.announced.get(counter, set())

    def net(self, first: int = 0) -> dict[Declaration, dict[str, Delta]]:
        """Return the sum of all entries, from the ``first`` on."""
        net: dict[Declaration, dict[str, Delta]] = {}
        for counter, deltas in self.entries[first:]:
            if deltas is None:
                continue
            if counter not in net:
                net[counter] = dict(deltas)
                continue
            sums = net[counter]
            for owner_key, delta in deltas.items():
                before = sums.get(owner_key, 0)
                sums[owner_key] = None if delta is None or before is None else before + delta
        return net

    def cut_back(self, position: int) -> None:
        """Forget what came after a savepoint that was rolled back, which may have undone RecountRequests as well, or
        have cancelled out what came before it."""
        del self.entries[position:]
        self._looked = 0
        self.told = min(self.told, position)

    def start_again(self) -> None:
        """Forget everything: the database has rolled back the whole transaction. Owners that were announced before a
        statement that may have committed are recounted."""
        self.cut_back(0)
        self.requested.clear()
        self.savepoints.clear()
        for intent in self.intents[: self.early]:
            self.add({intent.counter: dict.fromkeys(intent.owner_keys)})

    def foresee(self, statement: re.Match[str]) -> None:
        """If the statement rolls back to a savepoint, take what came after it for unknown, until ``follow`` knows that
        it did."""
        made, released, _ = statement.groups()
        if not made and not released:
            self.recount_since(self._before(self._find(statement)))

    def recount_since(self, position: int) -> None:
        """Have the owners of the entries from this position on recounted: they may be rolled back."""
        self._looked = min(self._looked, position)
        self.entries[position:] = [(c, d if d is None else dict.fromkeys(d)) for c, d in self.entries[position:]]

    def follow(self, statement: re.Match[str]) -> None:
        """Note that a savepoint was set, released or rolled back to."""
        made, released, name = statement.groups()
        at = self._find(statement)
        if made:
            self.savepoints.append((_plain(name), len(self.entries)))
        elif not released:
            self.cut_back(self._before(at))
            del self.savepoints[at + 1 :]
        elif at >= 0:
            del self.savepoints[at:]

    def _find(self, statement: re.Match[str]) -> int:
        """Return the index of a savepoint, or -1 if it is older than the log."""
        name = _plain(statement[3])
        return next((i for i in reversed(range(len(self.savepoints))) if self.savepoints[i][0] == name), -1)

    def _before(self, savepoint: int) -> int:
        """Return how many entries there were before a savepoint."""
        return self.savepoints[savepoint][1] if savepoint >= 0 else 0

    def mark_unknown(self) -> None:
        """Have the owners that were announced recounted, because nobody knows what was executed."""
        self.add({counter: dict.fromkeys(owner_keys) for counter, owner_keys in self.announced.items()})

    def leave_open(self) -> None:
        """Leave what was announced to healing, because the statement may still be running. A recount that ends before
        it commits would miss it."""
        self.intents.clear()
        self.announced.clear()

    # ------------------------------------------------------------------- send
    def undo(self, connection: Any) -> None:
        """Tell Redis that nothing has changed, because the database has rolled back."""
        self.start_again()
        if self.intents:
            self.send(connection, request=False)  # if that fails, healing finds what is open

    def send(self, connection: Any, request: bool = True) -> None:
        """Send the deltas to Redis, after the database has committed. A failure does not reach the site, except for an
        exception that is meant for it, such as a time limit. ``request``: whether to write RecountRequests then."""
        with in_schema(connection, self.schema):
            try:
                self._send(request)
            except BaseException:
                # Again: nothing is added twice, because an intent that is gone sends its owners to a recount.
                self._send(request)
                raise
            finally:
                self.touched.clear()
                self.announced.clear()
                self.everyone.clear()
            if options.RECORD_ACTIVITY:
                self._record_activity()
            if counts_changed.receivers:
                self.tell(0)

    def tell(self, first: int) -> None:
        """Send ``counts_changed`` for the entries from ``first`` on, unless it was sent for them already."""
        first = max(first, self.told)
        self.told = len(self.entries)
        changed: dict[Declaration, list[Any] | None] = {}
        for counter, deltas in self.net(first).items():
            if owner_keys := [owner_key for owner_key, delta in deltas.items() if delta != 0]:
                changed[counter] = [counter.parse(owner_key) for owner_key in owner_keys]
        changed |= {counter: None for counter, deltas in self.entries[first:] if deltas is None}
        for counter, owners in changed.items():
            counts_changed.send_robust(sender=counter, counter=counter, owners=owners, using=self.using)

    def _send(self, request: bool) -> None:
        if self.unread:
            self.settle()
        net = self.net()
        for counter, owner_key in self.requested:
            net.setdefault(counter, {})[owner_key] = None
        if self.everyone:
            for counter in self._unsaid():
                forget(counter)  # rule: forget_again
        failed = self.confirm(net)
        for counter, sums in net.items():
            if rest := sums.keys() - self.announced.get(counter, ()):
                failed += mark_dirty((counter, owner_key) for owner_key in rest if sums[owner_key] != 0)
        if request and failed:
            write_requests(self.using, [owner for owner in failed if owner not in self.requested])
        if late_failures:
            see_to_late()

    def _record_activity(self) -> None:
        """Add to the time-sliced counters by how much the counts have risen and fallen, at most once."""
        counts: dict[str, int] = {}
        for counter, deltas in self.net().items():
            known = [delta for delta in deltas.values() if delta]
            counts[f"{counter.name}:added"] = sum(delta for delta in known if delta > 0)
            counts[f"{counter.name}:removed"] = -sum(delta for delta in known if delta < 0)
        if counts := {name: min(n, LARGEST - 1) for name, n in counts.items() if n}:
            with suppress(BufferUnavailable), Patience(options.WRITE_TIMEOUT), working_on(self.using):
                TimeSeries().update_counters(counts)


def _plain(name: str) -> str:
    """Return the name of a savepoint without quotes."""
    return name.rstrip(";").strip('"`').lower()
