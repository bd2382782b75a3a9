"""The deltas of one database transaction, and what has begun in Redis for them.

A transaction log follows savepoints, so that a rollback also drops its deltas. Every owner whose count changes has
begun in Redis before the database commits; if Redis is out of reach, the same transaction writes a RecountRequest.
"""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, connections

from ..buffer import Buffer
from ..buffer.client import Reply
from ..buffer.shard import USERS_PER_CALL
from ..buffer.types import Delta
from ..databases import in_schema, schema_of
from ..declaration import Declaration
from ..exceptions import BufferUnavailable, DatabaseChanged
from ..signals import counts_changed
from ..timeseries import TimeSeries
from .doubt import forget, mark_dirty, request_recounts

logger = logging.getLogger("notifications_counter")


@dataclass(slots=True, eq=False)
class Part:
    """What one begin registered: owners of one shard. ``reply`` is None once it is read."""

    id: str
    counter: Declaration
    buffer: Buffer
    members: tuple[str, ...]
    reply: Reply | None


PartDeltas = tuple[Part, dict[str, Delta]]
"""A part, and the deltas that its commit sends."""


class TransactionLog:
    """Deltas in the order of their statements, and what has begun for them."""

    def __init__(self, using: str):
        self.using = using
        self.schema = schema_of(connections[using])  # it may be another one when the transaction commits
        # Each statement's deltas; None if anyone's count may have changed.
        self.entries: list[tuple[Declaration, dict[str, Delta] | None]] = []
        self.touched: dict[Declaration, set[str]] = defaultdict(set)  # also by what was rolled back
        self.begun: dict[Declaration, set[str]] = defaultdict(set)
        self.parts: list[Part] = []
        self.requested: set[tuple[Declaration, str]] = set()  # owners with a RecountRequest
        self.activity: list[tuple[str, int]] = []  # time-sliced counters to raise
        self.savepoints: list[tuple[str, int, int]] = []  # name, entries and activity before it
        self.unread: list[Part] = []
        self.doubted: set[Declaration] = set()  # counters of which everyone is to be recounted

    # ------------------------------------------------------------------ begin
    def begin(self, owners: Mapping[Declaration, Iterable[str]]) -> list[tuple[Declaration, str]]:
        """Register owners, each named once, that have not begun here. The last reply stays unread until ``settle``.

        Returns those that Redis has refused so far; ``settle`` returns the rest.
        """
        failed: list[tuple[Declaration, str]] = []
        for counter, members in owners.items():
            begun = self.begun[counter]
            new = [m for m in members if m not in begun]
            try:
                shards = list(counter.by_shard(new))
            except BufferUnavailable:
                shards = []
                failed += [(counter, m) for m in new]
            for buffer, mine in shards:
                for i in range(0, len(mine), USERS_PER_CALL):
                    if self.unread:
                        failed += self.settle()
                    failed += self._begin(counter, buffer, tuple(mine[i : i + USERS_PER_CALL]))
        return failed

    def _begin(self, counter: Declaration, buffer: Buffer, members: tuple[str, ...]) -> list[tuple[Declaration, str]]:
        part = Part(os.urandom(16).hex(), counter, buffer, members, None)
        try:
            part.reply = buffer.begin(part.id, members)
        except BufferUnavailable:
            return [(counter, m) for m in members]
        self.begun[counter].update(members)
        self.touched[counter].update(members)
        self.parts.append(part)
        self.unread.append(part)
        return []

    def settle(self) -> list[tuple[Declaration, str]]:
        """Read the replies of what has begun. Returns the owners that Redis refused."""
        if not self.unread:
            return []
        failed: list[tuple[Declaration, str]] = []
        while self.unread:
            part = self.unread.pop()
            reply, part.reply = part.reply, None
            try:
                assert reply is not None
                reply.read()
            except BufferUnavailable:
                self.parts.remove(part)
                self.begun[part.counter].difference_update(part.members)
                failed += [(part.counter, m) for m in part.members]
        return failed

    def begin_the_changed(self) -> None:
        """Register every owner whose count changes, or write a RecountRequest for it, before the database commits."""
        with in_schema(connections[self.using], self.schema):
            self._begin_the_changed()

    def _begin_the_changed(self) -> None:
        owners = {counter: [m for m, delta in deltas.items() if delta != 0] for counter, deltas in self.net().items()}
        failed = self.begin(owners) + self.settle()
        try:
            request_recounts(self.using, failed)
        except DatabaseError:
            about = {"event": "requests_failed", "database": self.using, "users": len(failed)}
            logger.exception("RecountRequests of %d users could not be written.", len(failed), extra=about)
        else:
            self.requested.update(failed)

    # ----------------------------------------------------------------- record
    def record_deltas(self, counter: Declaration, deltas: Mapping[str, Delta]) -> None:
        """Note what a statement changed. None means unknown: the owner is recounted."""
        self.entries.append((counter, dict(deltas)))
        self.touched[counter].update(deltas)

    def doubt(self, counter: Declaration) -> None:
        """Note that a statement may have changed any owner's count."""
        self.entries.append((counter, None))
        self.doubted.add(counter)

    def net(self) -> dict[Declaration, dict[str, Delta]]:
        """Return the sum of all entries."""
        net: dict[Declaration, dict[str, Delta]] = {}
        for counter, deltas in self.entries:
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
        """Note what a statement did, for the time-sliced counters."""
        self.activity += [(f"{c.activity}:{what}", n) for (c, what), n in activity.items() if c.activity and n]

    def cut_back(self, position: int, activity: int) -> None:
        """Forget what came after a savepoint that was rolled back."""
        del self.entries[position:]
        del self.activity[activity:]

    def start_again(self) -> None:
        """Forget everything: the database has rolled back the whole transaction by itself."""
        self.cut_back(0, 0)
        self.requested.clear()
        self.savepoints.clear()

    def follow(self, statement: re.Match[str]) -> None:
        """A savepoint was set, released or rolled back to."""
        made, released, name = statement.groups()
        name = name.rstrip(";").strip('"`').lower()
        if made:
            self.savepoints.append((name, len(self.entries), len(self.activity)))
            return
        at = next((i for i in reversed(range(len(self.savepoints))) if self.savepoints[i][0] == name), None)
        if released:
            if at is not None:
                del self.savepoints[at:]
        else:  # an unknown savepoint is older than the log
            self.cut_back(*(self.savepoints[at][1:] if at is not None else (0, 0)))
            del self.savepoints[at + 1 if at is not None else 0 :]

    def mark_unknown(self) -> None:
        """Have owners recounted that have begun, and whose deltas are unknown."""
        net = self.net()
        for counter, members in self.begun.items():
            self.record_deltas(counter, dict.fromkeys(members - net.get(counter, {}).keys()))

    # ------------------------------------------------------------------- send
    def send(self) -> None:
        """Send the deltas to Redis, after the database has committed. Never raises."""
        with in_schema(connections[self.using], self.schema):
            try:
                self._send()
            except Exception:
                users = sum(map(len, self.touched.values()))
                about = {"event": "send_failed", "database": self.using, "users": users}
                text = "Deltas of %d users could not be sent. The users are recounted after HEAL_AFTER seconds."
                logger.exception(text, users, extra=about)
            finally:
                self.touched.clear()
                self.doubted.clear()
            if counts_changed.receivers:
                self._announce()

    def _announce(self) -> None:
        """Tell the site whose counts the transaction has changed."""
        changed: dict[Declaration, list[Any] | None] = {}
        for counter, deltas in self.net().items():
            if members := [member for member, delta in deltas.items() if delta != 0]:
                changed[counter] = [counter.key_field.to_python(member) for member in members]
        changed |= {counter: None for counter, deltas in self.entries if deltas is None}
        for counter, owners in changed.items():
            counts_changed.send_robust(sender=counter, counter=counter, owners=owners, using=self.using)

    def _send(self) -> None:
        self.settle()
        net = self.net()
        for counter, member in self.requested:
            net.setdefault(counter, {})[member] = None
        for counter in dict.fromkeys(counter for counter, deltas in self.entries if deltas is None):
            forget(counter)
        on_its_way = self._send_activity() if self.activity else ()
        failed: list[tuple[Declaration, str]] = []
        grouped: dict[Buffer, list[PartDeltas]] = defaultdict(list)
        for part in self.parts:
            sums = net.get(part.counter, {})
            deltas = {m: delta for m in part.members if (delta := sums.pop(m, 0)) != 0}
            grouped[part.buffer].append((part, deltas))
        for buffer, parts in grouped.items():
            for group in _groups(parts) if len(parts) > 1 else (parts,):
                try:
                    try:
                        buffer.commit([(part.id, deltas) for part, deltas in group])
                    except DatabaseChanged:  # the parts went along to the new keys, where nothing is known of the rows
                        buffer = group[0][0].counter.buffer_of(group[0][0].members[0])
                        buffer.commit([(part.id, dict.fromkeys(deltas)) for part, deltas in group])
                except BufferUnavailable:
                    failed += [(part.counter, m) for part, deltas in group for m in deltas]
        failed += mark_dirty((counter, m) for counter, sums in net.items() for m, delta in sums.items() if delta != 0)
        for reply in on_its_way:
            with suppress(BufferUnavailable):
                reply.read()
        if failed:
            request_recounts(self.using, [owner for owner in failed if owner not in self.requested])

    def _send_activity(self) -> list[Reply]:
        """Add to the time-sliced counters, without waiting for the replies."""
        counts: dict[str, int] = defaultdict(int)
        for name, n in self.activity:
            counts[name] += n
        try:
            return list(TimeSeries().send(counts))
        except BufferUnavailable:
            return []


def _groups(parts: list[PartDeltas]) -> Iterator[list[PartDeltas]]:
    """Parts in groups of at most USERS_PER_CALL owners, a part without deltas counting as one."""
    group: list[PartDeltas] = []
    size = 0
    for part in parts:
        weight = max(1, len(part[1]))
        if group and size + weight > USERS_PER_CALL:
            yield group
            group, size = [], 0
        group.append(part)
        size += weight
    if group:
        yield group
