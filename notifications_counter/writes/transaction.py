"""The deltas of one database transaction, and what is announced in Redis for them.

A transaction log follows savepoints, so that a rollback also drops its deltas. Every owner whose count changes is
announced in Redis before the database commits; if Redis is unreachable, the same transaction writes a RecountRequest.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, Error, connections

from ..buffer import Buffer
from ..buffer.client import in_groups, late_failures, see_to_late
from ..buffer.packet import Call, PacketReply, send_together
from ..buffer.patience import Patience
from ..buffer.shard import USERS_PER_CALL, in_calls
from ..buffer.types import Delta
from ..conf import options
from ..databases import in_schema, in_transaction, schema_of, working_on
from ..declaration import Declaration, each_shard
from ..exceptions import BufferUnavailable, DatabaseChanged
from ..signals import counts_changed
from ..timeseries import TimeSeries
from .doubt import forget, mark_dirty, request_recounts

logger = logging.getLogger("notifications_counter")


@dataclass(slots=True, eq=False)
class Intent:
    """Owners of one shard that are announced together, and the reply to that if it was sent."""

    id: str
    counter: Declaration
    buffer: Buffer
    members: tuple[str, ...]
    call: Call
    reply: PacketReply | None = None


Deltas = tuple[Intent, dict[str, Delta]]
"""An intent, and the deltas that confirm it."""


class TransactionLog:
    """Deltas in the order of their statements, and what is announced for them."""

    def __init__(self, using: str):
        self.using = using
        self.schema = schema_of(connections[using])  # it may be another one when the transaction commits
        # The deltas of each statement; None if anyone's count may have changed.
        self.entries: list[tuple[Declaration, dict[str, Delta] | None]] = []
        self.touched: dict[Declaration, set[str]] = defaultdict(set)  # also by what was rolled back
        self.announced: dict[Declaration, set[str]] = defaultdict(set)
        self.intents: list[Intent] = []
        self.announced_at = math.inf
        self.early = 0  # intents that were announced before a statement that may have committed
        self._net: dict[Declaration, dict[str, tuple[int, int]]] = defaultdict(dict)  # known, and how many unknown
        self._changed: dict[Declaration, dict[str, None]] = defaultdict(dict)  # owners to look at before the commit
        self.requested: set[tuple[Declaration, str]] = set()  # owners with a RecountRequest
        self.savepoints: list[tuple[str, int]] = []  # name, entries before it
        self.unread: list[Intent] = []
        self.doubted: set[Declaration] = set()  # counters of which everyone is to be recounted
        self.told = 0  # entries for which counts_changed was sent

    # --------------------------------------------------------------- announce
    def announce(self, owners: Mapping[Declaration, Iterable[str]]) -> list[tuple[Declaration, str]]:
        """Announce owners, each named once, that this transaction has not announced yet. The replies to the last packet
        stay unread until ``settle``.

        Returns the owners that Redis has refused so far; ``settle`` returns the others.
        """
        failed: list[tuple[Declaration, str]] = []
        intents: list[Intent] = []
        with Patience(options.WRITE_TIMEOUT):
            for counter, members in owners.items():
                announced = self.announced[counter]
                new = [m for m in members if m not in announced]
                failed += [(counter, m) for m in each_shard(counter, new, partial(_add_intents, intents, counter))]
            for packet in in_groups(intents, [len(intent.members) for intent in intents], USERS_PER_CALL):
                if self.unread:
                    failed += self.settle()
                failed += self._announce(packet)
        return failed

    def _announce(self, intents: Sequence[Intent]) -> list[tuple[Declaration, str]]:
        self.intents += intents  # first, in case of an exception; Redis can handle the confirmation of an unknown one
        self.unread += intents
        self.announced_at = min(self.announced_at, time.monotonic())
        client = intents[0].buffer.client
        replies: Sequence[PacketReply] = ()
        try:
            replies = send_together(client, [intent.call for intent in intents])
            for intent, reply in zip(intents, replies, strict=True):
                intent.reply = reply
                self.announced[intent.counter].update(intent.members)
                self.touched[intent.counter].update(intent.members)
        except BufferUnavailable:
            del self.unread[-len(intents) :]
            return [owner for intent in intents for owner in self._not_announced(intent)]
        except BaseException:
            for reply in replies:
                reply.close()
            raise
        return self.settle() if client.is_limited else []

    def _not_announced(self, intent: Intent) -> list[tuple[Declaration, str]]:
        self.intents = [other for other in self.intents if other is not intent]
        self.announced[intent.counter].difference_update(intent.members)
        return [(intent.counter, m) for m in intent.members]

    def settle(self) -> list[tuple[Declaration, str]]:
        """Read the replies that are unread. Returns the owners that Redis refused."""
        failed: list[tuple[Declaration, str]] = []
        while self.unread:
            intent = self.unread[-1]
            try:
                if intent.reply is not None:
                    intent.reply.read()
            except BufferUnavailable:
                failed += self._not_announced(intent)
            self.unread.pop()
        return failed

    def announce_the_changed(self) -> None:
        """Announce every owner whose count changes, or write a RecountRequest for it, before the database commits. Only
        owners that have changed since the last call are looked at."""
        owners = {c: [m for m in members if self._delta(c, m) != 0] for c, members in self._changed.items()}
        if not any(owners.values()):
            return
        with in_schema(connections[self.using], self.schema):
            try:
                failed = self.announce(owners) + self.settle()
            except BaseException:
                self.settle()  # an unread reply would keep its connection
                raise
            try:
                request_recounts(self.using, failed)
            except DatabaseError:
                about = {"event": "requests_failed", "database": self.using, "users": len(failed)}
                logger.exception("RecountRequests of %d users could not be written.", len(failed), extra=about)
            else:
                self.requested.update(failed)
                self._changed.clear()

    # ----------------------------------------------------------------- record
    def record_deltas(self, counter: Declaration, deltas: Mapping[str, Delta]) -> None:
        """Record what a statement changed. None means unknown: the owner is recounted."""
        self.entries.append((counter, dict(deltas)))
        self._add(self.entries[-1], 1)
        self.touched[counter].update(deltas)

    def doubt(self, counter: Declaration) -> None:
        """Record that a statement may have changed any owner's count."""
        self.entries.append((counter, None))
        self.doubted.add(counter)

    def _add(self, entry: tuple[Declaration, dict[str, Delta] | None], times: int) -> None:
        """Add an entry to the sums, or, with -1, remove it."""
        counter, deltas = entry
        for member, delta in (deltas or {}).items():
            known, unknown = self._net[counter].get(member, (0, 0))
            self._net[counter][member] = (known, unknown + times) if delta is None else (known + times * delta, unknown)
            self._changed[counter][member] = None

    def _delta(self, counter: Declaration, member: str) -> Delta:
        known, unknown = self._net[counter][member]
        return None if unknown else known

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
            for member, delta in deltas.items():
                before = sums.get(member, 0)
                sums[member] = None if delta is None or before is None else before + delta
        return net

    def cut_back(self, position: int) -> None:
        """Forget what came after a savepoint that was rolled back, which may have undone RecountRequests as well."""
        for entry in self.entries[position:]:
            self._add(entry, -1)
        for counter, member in self.requested:
            if member in self._net[counter]:
                self._changed[counter][member] = None
        del self.entries[position:]
        self.told = min(self.told, position)

    def start_again(self) -> None:
        """Forget everything: the database has rolled back the whole transaction by itself."""
        self.cut_back(0)
        self.requested.clear()
        self.savepoints.clear()

    def foresee(self, statement: re.Match[str]) -> None:
        """If the statement rolls back to a savepoint, doubt what came after it, until ``follow`` knows that it did."""
        made, released, _ = statement.groups()
        if not made and not released:
            self.doubt_since(self._before(self._find(statement)))

    def doubt_since(self, position: int) -> None:
        """Have the owners of the entries from this position on recounted: they may be rolled back."""
        for i, (counter, deltas) in enumerate(self.entries[position:], position):
            if deltas is not None:
                self._add((counter, deltas), -1)
                self.entries[i] = (counter, dict.fromkeys(deltas))
                self._add(self.entries[i], 1)

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
        for counter, members in self.announced.items():
            self.record_deltas(counter, dict.fromkeys(members))

    def leave_open(self) -> None:
        """Leave what was announced to healing, because the statement may still be running. A recount that ends before
        it commits would miss it."""
        self.intents.clear()

    # ------------------------------------------------------------------- send
    def undo(self) -> None:
        """Tell Redis that nothing has changed, because the database has rolled back. Owners that were announced before
        a statement that may have committed are recounted."""
        early = self.intents[: self.early]
        self.start_again()
        for intent in early:
            self.record_deltas(intent.counter, dict.fromkeys(intent.members))
        if self.intents:
            self.send(request=False)  # if that fails, healing finds what is open

    def send(self, request: bool = True) -> None:
        """Send the deltas to Redis, after the database has committed. A failure does not reach the site, except for an
        exception that is meant for it, such as a time limit. ``request``: whether to write RecountRequests then."""
        with in_schema(connections[self.using], self.schema):
            try:
                self._send(request)
            except BaseException:
                # Again: nothing is added twice, because an intent that is gone sends its users to a recount.
                self._send(request)
                raise
            finally:
                self.touched.clear()
                self.doubted.clear()
            if options.RECORD_ACTIVITY:
                self._record_activity()
            self.tell(0)

    def tell(self, first: int) -> None:
        """Send ``counts_changed`` for the entries from ``first`` on, unless it was sent for them already."""
        first = max(first, self.told)
        self.told = len(self.entries)
        if not counts_changed.receivers:
            return
        changed: dict[Declaration, list[Any] | None] = {}
        for counter, deltas in self.net(first).items():
            if members := [member for member, delta in deltas.items() if delta != 0]:
                changed[counter] = [counter.parse(member) for member in members]
        changed |= {counter: None for counter, deltas in self.entries[first:] if deltas is None}
        for counter, owners in changed.items():
            counts_changed.send_robust(sender=counter, counter=counter, owners=owners, using=self.using)

    def _send(self, request: bool) -> None:
        self.settle()
        net = self.net()
        for counter, member in self.requested:
            net.setdefault(counter, {})[member] = None
        if self.doubted:
            for counter in dict.fromkeys(counter for counter, deltas in self.entries if deltas is None):
                forget(counter)
        failed: list[tuple[Declaration, str]] = []
        grouped: dict[Buffer, list[Deltas]] = defaultdict(list)
        for intent in self.intents:
            sums = net.get(intent.counter, {})
            deltas = {m: delta for m in intent.members if (delta := sums.pop(m, 0)) != 0}
            grouped[intent.buffer].append((intent, deltas))
        confirms = [
            (buffer, group)
            for buffer, intents in grouped.items()
            for group in in_groups(intents, [1 + len(deltas) for _, deltas in intents], USERS_PER_CALL)
        ]
        sizes = [sum([1 + len(deltas) for _, deltas in intents]) for _, intents in confirms]
        for packet in in_groups(confirms, sizes, USERS_PER_CALL):
            failed += self._confirm(packet)
        if rest := [(counter, m) for counter, sums in net.items() for m, delta in sums.items() if delta != 0]:
            failed += mark_dirty(rest)
        if request and failed:
            self._request(failed)
        if late_failures:
            see_to_late()

    def _confirm(self, confirms: Sequence[tuple[Buffer, Sequence[Deltas]]]) -> list[tuple[Declaration, str]]:
        """Send deltas. Returns the owners whose deltas Redis did not accept, as far as that is known."""
        failed: list[tuple[Declaration, str]] = []
        calls = [buffer.confirm_call([(i.id, deltas) for i, deltas in intents]) for buffer, intents in confirms]
        replies: Sequence[PacketReply] = ()
        try:
            with Patience(options.WRITE_TIMEOUT):
                replies = send_together(confirms[0][0].client, calls, urgent=True)
                for (_, intents), reply in zip(confirms, replies, strict=True):
                    if not (self._may_leave() and reply.leave(partial(self._finish_late, reply, intents))):
                        failed += self._finish(reply, intents)
        except BufferUnavailable:
            return [owner for _, intents in confirms for owner in _owners(intents)]
        except BaseException:
            for reply in replies:
                reply.close()
            raise
        return failed

    def _finish(self, reply: PacketReply, intents: Sequence[Deltas]) -> list[tuple[Declaration, str]]:
        try:
            try:
                reply.read()
            except DatabaseChanged:  # the intents were moved to the new keys, where nobody knows what the rows say
                intent = intents[0][0]
                buffer = intent.counter.buffer_of(intent.members[0])
                buffer.confirm([(i.id, dict.fromkeys(deltas)) for i, deltas in intents])
        except BufferUnavailable:
            return _owners(intents)
        return []

    def _may_leave(self) -> bool:
        """Return whether nobody has to wait for the reply to a confirmation: the owners are in flight until it has
        arrived. After HEAL_AFTER seconds, they may be so no longer."""
        return time.monotonic() - self.announced_at < options.HEAL_AFTER / 2

    def _finish_late(self, reply: PacketReply, intents: Sequence[Deltas]) -> bool:
        """Do what is to be done about a confirmation that failed although nobody waited for it. Returns False if it
        cannot be done here, inside a transaction."""
        try:
            connection = connections[self.using]
            if in_transaction(connection):
                return False
            with in_schema(connection, self.schema):
                self._request(self._finish(reply, intents))
        except SynchronousOnlyOperation:
            return False
        return True

    def _request(self, failed: list[tuple[Declaration, str]]) -> None:
        """Write RecountRequests for owners whose deltas Redis did not accept."""
        try:
            request_recounts(self.using, [owner for owner in failed if owner not in self.requested])
        except Error:
            about = {"event": "send_failed", "database": self.using, "users": len(failed)}
            text = "Deltas of %d users could not be sent. The users are recounted after HEAL_AFTER seconds."
            logger.exception(text, len(failed), extra=about)

    def _record_activity(self) -> None:
        """Add to the time-sliced counters by how much the counts have risen and fallen, at most once."""
        counts: dict[str, int] = {}
        for counter, deltas in self.net().items():
            known = [delta for delta in deltas.values() if delta]
            counts[f"{counter.name}:added"] = sum(delta for delta in known if delta > 0)
            counts[f"{counter.name}:removed"] = -sum(delta for delta in known if delta < 0)
        if counts := {name: n for name, n in counts.items() if n}:
            with suppress(BufferUnavailable), Patience(options.WRITE_TIMEOUT), working_on(self.using):
                TimeSeries().update_counters(counts)


def _add_intents(intents: list[Intent], counter: Declaration, buffer: Buffer, members: Sequence[str]) -> None:
    for some in in_calls(members):
        id_ = os.urandom(16).hex()
        intents.append(Intent(id_, counter, buffer, tuple(some), buffer.announce_call(id_, some)))


def _owners(intents: Iterable[Deltas]) -> list[tuple[Declaration, str]]:
    return [(intent.counter, member) for intent, deltas in intents for member in deltas]


def _plain(name: str) -> str:
    """Return the name of a savepoint without quotes."""
    return name.rstrip(";").strip('"`').lower()
