"""The changes of one database transaction, from its statements to Redis.

A transaction log adds up how the counts of each owner change. It announces these owners before the database commits,
and confirms their deltas afterwards. It doesn't follow savepoints: once anything may have been rolled back, all deltas
so far are unknown (rule: unknown). If Redis is unreachable, it writes a RecountRequest in the same transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from django.db import DatabaseError

from ..buffer.types import Delta
from ..conf import options
from ..databases.routing import in_schema, working_on
from ..declaration import Declaration
from ..exceptions import BufferUnavailable
from ..signals import counts_changed
from ..timeseries import LARGEST, TimeSeries
from .intents import Intents
from .requests import Owner, doubt, request_or_log, request_recounts

logger = logging.getLogger("notifications_counter")


class Change(NamedTuple):
    """How a statement changes counts: deltas by counter and owner key, where None stands for an owner in doubt, and the
    counters of which it may have changed anyone's count."""

    deltas: Mapping[Declaration, Mapping[str, Delta]] = {}
    everyone_of: Sequence[Declaration] = ()


class TransactionLog:
    """The changes of a transaction, and the intents that announce them.

    ``deltas``       by counter and owner key, also those that add up to 0; None: unknown
    ``everyone_of``  counters of which anyone's count may have changed; whether counts_changed has told so
    """

    def __init__(self, connection: Any):
        self.using: str = connection.alias
        self.intents = Intents(connection)
        self.deltas: dict[Declaration, dict[str, Delta]] = {}
        self.everyone_of: dict[Declaration, bool] = {}
        self._unannounced: dict[Declaration, dict[str, None]] = {}  # owners since the last announcement
        self._requested: set[Owner] = set()  # owners with a RecountRequest
        self._signaled: dict[Declaration, dict[str, Delta]] = {}  # deltas that counts_changed has told

    # ----------------------------------------------------------------- record
    def add(self, change: Change) -> None:
        """Add the change of a statement."""
        for counter, deltas in change.deltas.items():
            self._unannounced.setdefault(counter, {}).update(dict.fromkeys(deltas))
            if counter not in self.deltas:
                self.deltas[counter] = dict(deltas)
                continue
            sums, told = self.deltas[counter], self._signaled.get(counter, {})
            for owner_key, delta in deltas.items():
                before = sums.get(owner_key, 0)
                sums[owner_key] = None if delta is None or before is None else before + delta
                if sums[owner_key] is None:
                    told.pop(owner_key, None)
        self.everyone_of.update(dict.fromkeys(change.everyone_of, False))

    def mark_unknown(self) -> None:
        """Put all owners so far in doubt: what was done may have been undone, or may not."""
        self.deltas = {counter: dict.fromkeys(deltas) for counter, deltas in self.deltas.items()}
        if self._requested:  # the requests may have been undone as well
            for counter, owner_key in self._requested:
                if owner_key is not None:  # everyone is announced again anyway
                    self._unannounced[counter][owner_key] = None
            self._requested.clear()

    def has_touched(self, counter: Declaration, owner_key: str) -> bool:
        """Return whether the transaction may have changed the count of this owner."""
        return owner_key in self.deltas.get(counter, ()) or counter in self.everyone_of

    # --------------------------------------------------------------- announce
    def announce_alone(self, owners: Mapping[Declaration, Iterable[str]], connection: Any) -> bool:
        """Announce the owners of a statement that commits by itself. Returns False if Redis refuses any of them."""
        self.deltas = {counter: dict.fromkeys(owner_keys, 0) for counter, owner_keys in owners.items()}
        return not self.intents.announce(owners, connection)

    def announce(self, connection: Any) -> None:
        """Announce every owner whose count has changed since the last call, or everyone, or write RecountRequests for
        them, before the database commits."""
        owners: dict[Declaration, list[str] | None] = {}
        unchanged: dict[Declaration, dict[str, None]] = {}  # so far
        for counter, new in self._unannounced.items():
            deltas = self.deltas[counter]
            owners[counter] = [owner_key for owner_key in new if deltas[owner_key] != 0]
            unchanged[counter] = {owner_key: None for owner_key in new if deltas[owner_key] == 0}
        owners.update(dict.fromkeys(self.everyone_of, None))
        if not any(owner_keys is None or owner_keys for owner_keys in owners.values()):
            return
        with in_schema(connection, self.intents.schema):
            refused = self.intents.announce(owners, connection)
            failed = [owner for owner in refused if owner not in self._requested]
            try:
                request_recounts(self.using, failed)
            except DatabaseError:
                about = {"event": "requests_failed", "database": self.using, "owners": len(failed)}
                logger.exception("RecountRequests of %d owners could not be written.", len(failed), extra=about)
            else:
                self._requested.update(failed)
                self._unannounced = unchanged

    # ------------------------------------------------------------------- send
    def send(self, connection: Any) -> None:
        """Confirm the deltas, after the database has committed. A failure does not reach the site, but an exception
        that is meant for it does, such as a time limit."""
        with in_schema(connection, self.intents.schema):
            try:
                self._send()
            except BaseException:
                self._send()  # nothing is added twice: an intent that is gone puts its owners in doubt
                raise
            if options.RECORD_ACTIVITY:
                self._record_activity()
            if counts_changed.receivers:
                self.signal()

    def undo(self, connection: Any) -> None:
        """Put the announced owners in doubt: the database has rolled back, at least what came last."""
        self.mark_unknown()
        self.everyone_of.clear()
        with in_schema(connection, self.intents.schema):
            self._send(request=False)  # if that fails, healing finds the intents

    def _send(self, request: bool = True) -> None:
        intents, deltas = self.intents, self.deltas
        failed = intents.confirm(deltas)
        rest: list[Owner] = [(counter, None) for counter in self.everyone_of if counter not in intents.everyone_of]
        rest += [
            (counter, owner_key)
            for counter, sums in deltas.items()
            if counter not in self.everyone_of
            for owner_key in sums.keys() - intents.announced.get(counter, ())
            if sums[owner_key] != 0
        ]
        if rest and request:  # rule: anyway: Redis has refused to announce them, but may answer again
            failed += doubt(rest)
        if failed and request:
            request_or_log(self.using, [owner for owner in failed if owner not in self._requested])

    def signal(self) -> None:
        """Send ``counts_changed`` for the owners whose counts may have changed since the last call."""
        changed: dict[Declaration, list[Any] | None] = {}
        for counter, deltas in self.deltas.items():
            told = self._signaled.setdefault(counter, {})
            if owner_keys := [owner_key for owner_key, delta in deltas.items() if delta != told.get(owner_key, 0)]:
                changed[counter] = [counter.parse(owner_key) for owner_key in owner_keys]
                told.update(deltas)
        changed.update((counter, None) for counter, is_told in self.everyone_of.items() if not is_told)
        self.everyone_of = dict.fromkeys(self.everyone_of, True)
        for counter, owners in changed.items():
            counts_changed.send_robust(sender=counter, counter=counter, owners=owners, using=self.using)

    def _record_activity(self) -> None:
        """Add the rises and falls of the counts to the time-sliced counters, at most once."""
        counts: dict[str, int] = {}
        for counter, deltas in self.deltas.items():
            known = [delta for delta in deltas.values() if delta]
            counts[f"{counter.name}:added"] = sum(delta for delta in known if delta > 0)
            counts[f"{counter.name}:removed"] = -sum(delta for delta in known if delta < 0)
        if counts := {name: min(n, LARGEST) for name, n in counts.items() if n}:
            with suppress(BufferUnavailable), working_on(self.using):
                TimeSeries().update_counters(counts)
