"""The deltas of one database transaction, and what has begun in Redis for them.

A transaction log follows savepoints, so that a rollback also drops its deltas. Every owner whose count changes has
begun in Redis before the database commits; if Redis is unreachable, the same transaction writes a RecountRequest.
"""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import DatabaseError, Error, connections

from ..buffer import Buffer
from ..buffer.client import Reply, in_groups
from ..buffer.packet import Call, PacketReply, send_together
from ..buffer.patience import Patience
from ..buffer.shard import USERS_PER_CALL, in_calls
from ..buffer.types import Delta
from ..conf import options
from ..databases import in_schema, schema_of, working_on
from ..declaration import Declaration, each_shard
from ..exceptions import BufferUnavailable, DatabaseChanged
from ..signals import counts_changed
from ..timeseries import TimeSeries
from .doubt import forget, mark_dirty, request_recounts

logger = logging.getLogger("notifications_counter")


@dataclass(slots=True, eq=False)
class Part:
    """Owners of one shard that one begin registers, and the reply to it if it was sent."""

    id: str
    counter: Declaration
    buffer: Buffer
    members: tuple[str, ...]
    call: Call
    reply: Reply | PacketReply | None = None


PartDeltas = tuple[Part, dict[str, Delta]]
"""A part, and the deltas that its commit sends."""


class TransactionLog:
    """Deltas in the order of their statements, and what has begun for them."""

    def __init__(self, using: str):
        self.using = using
        self.schema = schema_of(connections[using])  # it may be another one when the transaction commits
        # The deltas of each statement; None if anyone's count may have changed.
        self.entries: list[tuple[Declaration, dict[str, Delta] | None]] = []
        self.touched: dict[Declaration, set[str]] = defaultdict(set)  # also by what was rolled back
        self.begun: dict[Declaration, set[str]] = defaultdict(set)
        self.parts: list[Part] = []
        self.early = 0  # parts that began before a statement that may have committed
        self._net: dict[Declaration, dict[str, tuple[int, int]]] = defaultdict(dict)  # known, and how many unknown
        self._changed: dict[Declaration, dict[str, None]] = defaultdict(dict)  # owners to look at before the commit
        self.requested: set[tuple[Declaration, str]] = set()  # owners with a RecountRequest
        self.activity: list[tuple[str, int]] = []  # time-sliced counters to raise
        self.savepoints: list[tuple[str, int, int]] = []  # name, entries and activity before it
        self.unread: list[Part] = []
        self.doubted: set[Declaration] = set()  # counters of which everyone is to be recounted
        self.announced = 0  # entries for which counts_changed was sent

    # ------------------------------------------------------------------ begin
    def begin(self, owners: Mapping[Declaration, Iterable[str]]) -> list[tuple[Declaration, str]]:
        """Register owners, each named once, that have not begun in this transaction. The replies to the last packet
        stay unread until ``settle``.

        Returns the owners that Redis has refused so far; ``settle`` returns the others.
        """
        failed: list[tuple[Declaration, str]] = []
        parts: list[Part] = []
        with Patience(options.WRITE_TIMEOUT):
            for counter, members in owners.items():
                begun = self.begun[counter]
                new = [m for m in members if m not in begun]
                failed += [(counter, m) for m in each_shard(counter, new, partial(_add_parts, parts, counter))]
            for packet in in_groups(parts, lambda part: len(part.members), USERS_PER_CALL):
                if self.unread:
                    failed += self.settle()
                failed += self._begin(packet)
        return failed

    def _begin(self, parts: list[Part]) -> list[tuple[Declaration, str]]:
        self.parts += parts  # first, in case of an exception; Redis can handle the commit of an unknown part
        self.unread += parts
        client = parts[0].buffer.client
        replies: Sequence[Reply | PacketReply] = ()
        try:
            replies = send_together(client, [part.call for part in parts])
            for part, reply in zip(parts, replies, strict=True):
                part.reply = reply
                self.begun[part.counter].update(part.members)
                self.touched[part.counter].update(part.members)
        except BufferUnavailable:
            del self.unread[-len(parts) :]
            return [owner for part in parts for owner in self._not_begun(part)]
        except BaseException:
            for reply in replies:
                reply.close()
            raise
        return self.settle() if client.is_limited else []

    def _not_begun(self, part: Part) -> list[tuple[Declaration, str]]:
        self.parts = [other for other in self.parts if other is not part]
        self.begun[part.counter].difference_update(part.members)
        return [(part.counter, m) for m in part.members]

    def settle(self) -> list[tuple[Declaration, str]]:
        """Read the replies that are unread. Returns the owners that Redis refused."""
        failed: list[tuple[Declaration, str]] = []
        while self.unread:
            part = self.unread[-1]
            try:
                if part.reply is not None:
                    part.reply.read()
            except BufferUnavailable:
                failed += self._not_begun(part)
            self.unread.pop()
        return failed

    def begin_the_changed(self) -> None:
        """Register every owner whose count changes, or write a RecountRequest for it, before the database commits. Only
        owners that have changed since the last call are looked at."""
        owners = {c: [m for m in members if self._delta(c, m) != 0] for c, members in self._changed.items()}
        if not any(owners.values()):
            return
        with in_schema(connections[self.using], self.schema):
            try:
                failed = self.begin(owners) + self.settle()
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

    def record_activity(self, activity: Mapping[tuple[Declaration, str], int]) -> None:
        """Record what a statement did, for the time-sliced counters."""
        self.activity += [(f"{c.activity}:{what}", n) for (c, what), n in activity.items() if c.activity and n]

    def cut_back(self, position: int, activity: int) -> None:
        """Forget what came after a savepoint that was rolled back, which may have undone RecountRequests as well."""
        for entry in self.entries[position:]:
            self._add(entry, -1)
        for counter, member in self.requested:
            if member in self._net[counter]:
                self._changed[counter][member] = None
        del self.entries[position:]
        del self.activity[activity:]
        self.announced = min(self.announced, position)

    def start_again(self) -> None:
        """Forget everything: the database has rolled back the whole transaction by itself."""
        self.cut_back(0, 0)
        self.requested.clear()
        self.savepoints.clear()

    def foresee(self, statement: re.Match[str]) -> None:
        """If the statement rolls back to a savepoint, doubt what came after it, until ``follow`` knows that it did."""
        made, released, _ = statement.groups()
        if not made and not released:
            self.doubt_since(self._before(self._find(statement))[0])

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
            self.savepoints.append((_plain(name), len(self.entries), len(self.activity)))
        elif not released:
            self.cut_back(*self._before(at))
            del self.savepoints[at + 1 :]
        elif at >= 0:
            del self.savepoints[at:]

    def _find(self, statement: re.Match[str]) -> int:
        """Return the index of a savepoint, or -1 if it is older than the log."""
        name = _plain(statement[3])
        return next((i for i in reversed(range(len(self.savepoints))) if self.savepoints[i][0] == name), -1)

    def _before(self, savepoint: int) -> tuple[int, int]:
        """Return how many entries, and how many of ``activity``, there were before a savepoint."""
        return self.savepoints[savepoint][1:] if savepoint >= 0 else (0, 0)

    def mark_unknown(self) -> None:
        """Have the owners that have begun recounted, because nobody knows what was executed."""
        for counter, members in self.begun.items():
            self.record_deltas(counter, dict.fromkeys(members))

    def leave_open(self) -> None:
        """Leave what has begun to healing, because the statement may still be running. A recount that ends before it
        commits would miss it."""
        self.parts.clear()

    # ------------------------------------------------------------------- send
    def undo(self) -> None:
        """Tell Redis that nothing has changed, because the database has rolled back. Owners that had begun before a
        statement that may have committed are recounted."""
        early = self.parts[: self.early]
        self.start_again()
        for part in early:
            self.record_deltas(part.counter, dict.fromkeys(part.members))
        if self.parts:
            self.send(request=False)  # if that fails, healing finds what is open

    def send(self, request: bool = True) -> None:
        """Send the deltas to Redis, after the database has committed. A failure does not reach the site, except for an
        exception that is meant for it, such as a time limit. ``request``: whether to write RecountRequests then."""
        with in_schema(connections[self.using], self.schema):
            try:
                self._send(request)
            except BaseException:
                # Again: nothing is added twice, because a part that is gone sends its users to a recount.
                self._send(request)
                raise
            finally:
                self.touched.clear()
                self.doubted.clear()
            self.announce(0)

    def announce(self, first: int) -> None:
        """Send ``counts_changed`` for the entries from ``first`` on, unless it was sent for them already."""
        first = max(first, self.announced)
        self.announced = len(self.entries)
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
        for counter in dict.fromkeys(counter for counter, deltas in self.entries if deltas is None):
            forget(counter)
        failed: list[tuple[Declaration, str]] = []
        grouped: dict[Buffer, list[PartDeltas]] = defaultdict(list)
        for part in self.parts:
            sums = net.get(part.counter, {})
            deltas = {m: delta for m in part.members if (delta := sums.pop(m, 0)) != 0}
            grouped[part.buffer].append((part, deltas))
        commits = [
            (buffer, group)
            for buffer, parts in grouped.items()
            for group in in_groups(parts, lambda part: 1 + len(part[1]), USERS_PER_CALL)
        ]
        for packet in in_groups(commits, lambda commit: sum(1 + len(part[1]) for part in commit[1]), USERS_PER_CALL):
            failed += self._commit(packet)
        failed += mark_dirty((counter, m) for counter, sums in net.items() for m, delta in sums.items() if delta != 0)
        self._send_activity()
        if not request:
            return
        try:
            request_recounts(self.using, [owner for owner in failed if owner not in self.requested])
        except Error:
            about = {"event": "send_failed", "database": self.using, "users": len(failed)}
            text = "Deltas of %d users could not be sent. The users are recounted after HEAL_AFTER seconds."
            logger.exception(text, len(failed), extra=about)

    def _commit(self, commits: list[tuple[Buffer, list[PartDeltas]]]) -> list[tuple[Declaration, str]]:
        """Send deltas, and wait for the replies. Returns the owners whose deltas Redis did not accept."""
        failed: list[tuple[Declaration, str]] = []
        calls = [buffer.commit_call([(part.id, deltas) for part, deltas in parts]) for buffer, parts in commits]
        replies: Sequence[Reply | PacketReply] = ()
        try:
            with Patience(options.WRITE_TIMEOUT):
                replies = send_together(commits[0][0].client, calls, urgent=True)
                for (_, parts), reply in zip(commits, replies, strict=True):
                    failed += self._finish(reply, parts)
        except BufferUnavailable:
            return _owners(parts for _, parts in commits)
        except BaseException:
            for reply in replies:
                reply.close()
            raise
        return failed

    def _finish(self, reply: Reply | PacketReply, parts: list[PartDeltas]) -> list[tuple[Declaration, str]]:
        try:
            try:
                reply.read()
            except DatabaseChanged:  # the parts were moved to the new keys, where nobody knows what the rows say
                part = parts[0][0]
                buffer = part.counter.buffer_of(part.members[0])
                buffer.commit([(part.id, dict.fromkeys(deltas)) for part, deltas in parts])
        except BufferUnavailable:
            return _owners([parts])
        return []

    def _send_activity(self) -> None:
        """Add to the time-sliced counters, at most once."""
        counts: dict[str, int] = defaultdict(int)
        while self.activity:
            name, n = self.activity.pop()
            counts[name] += n
        if counts:
            with suppress(BufferUnavailable), Patience(options.WRITE_TIMEOUT), working_on(self.using):
                TimeSeries().update_counters(counts)


def _add_parts(parts: list[Part], counter: Declaration, buffer: Buffer, members: Sequence[str]) -> None:
    for some in in_calls(members):
        id_ = os.urandom(16).hex()
        parts.append(Part(id_, counter, buffer, tuple(some), buffer.begin_call(id_, some)))


def _owners(commits: Iterable[list[PartDeltas]]) -> list[tuple[Declaration, str]]:
    return [(part.counter, member) for parts in commits for part, deltas in parts for member in deltas]


def _plain(name: str) -> str:
    """Return the name of a savepoint without quotes."""
    return name.rstrip(";").strip('"`').lower()
