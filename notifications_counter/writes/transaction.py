"""The deltas of one database transaction, from the statements to Redis.

A transaction log follows savepoints, so a rollback also drops its deltas. It announces every owner whose count changes
before the database commits. If Redis is unreachable, it writes a RecountRequest in the same transaction.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from django.db import DatabaseError

from ..buffer.patience import Patience
from ..buffer.pipeline import late_failures
from ..buffer.types import Delta
from ..conf import options
from ..databases.routing import in_schema, working_on
from ..declaration import Declaration
from ..exceptions import BufferUnavailable
from ..signals import counts_changed
from ..timeseries import LARGEST, TimeSeries
from .intents import Intents
from .requests import Owner, forget, mark_dirty, request_or_log, request_recounts

logger = logging.getLogger("notifications_counter")

Entry = tuple[Declaration, Mapping[str, Delta] | None]
"""The deltas of one counter after a statement; None if anyone's count may have changed."""


class TransactionLog:
    """The deltas of a transaction, in the order of its statements, and the intents that announce them."""

    def __init__(self, connection: Any):
        self.using: str = connection.alias
        self.intents = Intents(connection)
        self.entries: list[Entry] = []
        self.touched: dict[Declaration, set[str]] = {}  # owners, also those of deltas that were rolled back
        self.everyone_of: set[Declaration] = set()  # counters that are recounted for everyone
        self.requested: set[Owner] = set()  # owners with a RecountRequest
        self.savepoints: list[tuple[str, int]] = []  # name, entries before it
        self.maybe_committed = 0  # intents that were announced before a statement that may have committed
        self._announced_up_to = 0  # positions in entries
        self._signaled_up_to = 0

    def announce(self, connection: Any) -> None:
        """Announce every owner whose count has changed since the last call, or write a RecountRequest for it, before
        the database commits. If anyone's count may have changed, make readers count rows: in each call, because an
        epoch may have begun in between."""
        net = self.net(self._announced_up_to)
        owners = {c: [owner_key for owner_key, delta in deltas.items() if delta != 0] for c, deltas in net.items()}
        counters = self._counters_to_forget()
        if not counters and not any(owners.values()):
            return
        with in_schema(connection, self.intents.schema):
            for counter in counters:
                forget(counter)  # rule: forget
            try:
                self.intents.announce(owners, connection)
            finally:
                failed = self.intents.settle()  # an unread reply would keep its connection
            try:
                request_recounts(self.using, failed)
            except DatabaseError:
                about = {"event": "requests_failed", "database": self.using, "owners": len(failed)}
                logger.exception("RecountRequests of %d owners could not be written.", len(failed), extra=about)
            else:
                self.requested.update(failed)
                self._announced_up_to = len(self.entries)

    # ----------------------------------------------------------------- record
    def add(self, deltas: Mapping[Declaration, Mapping[str, Delta]], everyone_of: Iterable[Declaration] = ()) -> None:
        """Add the deltas of a statement. If one is None, the owner is recounted (rule: unknown), and so is everyone of
        the counters in ``everyone_of``."""
        for entry in deltas.items():
            self.entries.append(entry)
            self.touched.setdefault(entry[0], set()).update(entry[1])
        for counter in everyone_of:
            self.entries.append((counter, None))
            self.everyone_of.add(counter)

    def _counters_to_forget(self) -> list[Declaration]:
        """Return the counters with an entry that may have changed anyone's count."""
        counters = (counter for counter, deltas in self.entries if deltas is None)
        return list(dict.fromkeys(counters)) if self.everyone_of else []

    def has_touched(self, counter: Declaration, owner_key: str) -> bool:
        """Return whether rows of this owner may have changed, with deltas that are not sent yet."""
        return (
            owner_key in self.touched.get(counter, ())
            or owner_key in self.intents.announced.get(counter, ())
            or counter in self.everyone_of
        )

    @property
    def is_unsent(self) -> bool:
        """Whether some deltas are not sent yet."""
        return bool(self.touched or self.intents.announced or self.everyone_of)

    def touched_of(self, counter: Declaration) -> set[str]:
        """Return every owner whose rows may have changed, with deltas that are not sent yet."""
        return self.touched.get(counter, set()) | self.intents.announced.get(counter, set())

    def net(self, first: int = 0) -> dict[Declaration, dict[str, Delta]]:
        """Return the sum of the entries, from position ``first`` on."""
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
        """Drop the entries after a savepoint that was rolled back. All others are announced again: the dropped ones may
        have cancelled them out, and the rollback may have undone their RecountRequests."""
        del self.entries[position:]
        self._announced_up_to = 0
        self._signaled_up_to = min(self._signaled_up_to, position)

    def start_again(self) -> None:
        """Drop all entries: the database has rolled back the whole transaction. Recount the owners that were announced
        before a statement that may have committed."""
        self.cut_back(0)
        self.requested.clear()
        self.savepoints.clear()
        for intent in self.intents.all[: self.maybe_committed]:
            self.add({intent.counter: dict.fromkeys(intent.owner_keys)})

    def before_savepoint(self, statement: re.Match[str]) -> None:
        """Before a rollback to a savepoint, treat the deltas after it as unknown until ``after_savepoint``."""
        made, released, _ = statement.groups()
        if not made and not released:
            self.recount_since(self._before(self._find(statement)))

    def recount_since(self, position: int) -> None:
        """Recount the owners of the entries from this position on, which may be rolled back."""
        self._announced_up_to = min(self._announced_up_to, position)
        self.entries[position:] = [(c, d if d is None else dict.fromkeys(d)) for c, d in self.entries[position:]]

    def after_savepoint(self, statement: re.Match[str]) -> None:
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
        """Recount the announced owners, because the statement may have been executed or not."""
        self.add({counter: dict.fromkeys(owner_keys) for counter, owner_keys in self.intents.announced.items()})

    # ------------------------------------------------------------------- send
    def undo(self, connection: Any) -> None:
        """Tell Redis that nothing has changed, because the database has rolled back."""
        self.start_again()
        if self.intents.all:
            self.send(connection, request=False)  # if that fails, healing finds the intents

    def send(self, connection: Any, request: bool = True) -> None:
        """Send the deltas to Redis, after the database has committed. A failure does not reach the site, but an
        exception that is meant for it does, such as a time limit. ``request``: whether a failure leaves
        RecountRequests."""
        with in_schema(connection, self.intents.schema):
            try:
                self._send(request)
            except BaseException:
                self._send(request)  # nothing is added twice: the owners of an intent that is gone are recounted
                raise
            finally:
                self.touched.clear()
                self.intents.announced.clear()
                self.everyone_of.clear()
            if options.RECORD_ACTIVITY:
                self._record_activity()
            if counts_changed.receivers:
                self.signal(0)

    def signal(self, first: int) -> None:
        """Send ``counts_changed`` for the entries from position ``first`` on, once for each."""
        first = max(first, self._signaled_up_to)
        self._signaled_up_to = len(self.entries)
        changed: dict[Declaration, list[Any] | None] = {}
        for counter, deltas in self.net(first).items():
            if owner_keys := [owner_key for owner_key, delta in deltas.items() if delta != 0]:
                changed[counter] = [counter.parse(owner_key) for owner_key in owner_keys]
        changed |= {counter: None for counter, deltas in self.entries[first:] if deltas is None}
        for counter, owners in changed.items():
            counts_changed.send_robust(sender=counter, counter=counter, owners=owners, using=self.using)

    def _send(self, request: bool) -> None:
        intents = self.intents
        if intents.unread:
            intents.settle()
        net = self.net()
        for counter, owner_key in self.requested:
            net.setdefault(counter, {})[owner_key] = None
        if self.everyone_of:
            for counter in self._counters_to_forget():
                forget(counter)  # rule: forget_again
        failed = intents.confirm(net)
        for counter, sums in net.items():
            if rest := sums.keys() - intents.announced.get(counter, ()):
                failed += mark_dirty((counter, owner_key) for owner_key in rest if sums[owner_key] != 0)
        if request and failed:
            request_or_log(self.using, [owner for owner in failed if owner not in self.requested])
        if late_failures:
            late_failures.handle()

    def _record_activity(self) -> None:
        """Add the rises and falls of the counts to the time-sliced counters, at most once."""
        counts: dict[str, int] = {}
        for counter, deltas in self.net().items():
            known = [delta for delta in deltas.values() if delta]
            counts[f"{counter.name}:added"] = sum(delta for delta in known if delta > 0)
            counts[f"{counter.name}:removed"] = -sum(delta for delta in known if delta < 0)
        if counts := {name: min(n, LARGEST) for name, n in counts.items() if n}:
            with suppress(BufferUnavailable), Patience(options.WRITE_TIMEOUT), working_on(self.using):
                TimeSeries().update_counters(counts)


def _plain(name: str) -> str:
    """Return the name of a savepoint without quotes."""
    return name.rstrip(";").strip('"`').lower()
