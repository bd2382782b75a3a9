"""What a transaction announces in Redis before it commits, and confirms afterwards."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

from ..buffer import Buffer
from ..buffer.calls import OWNERS_PER_CALL, Call, chunked, in_groups
from ..buffer.types import Delta
from ..conf import options
from ..databases.routing import schema_of
from ..declaration import Declaration
from ..exceptions import BufferUnavailable
from .requests import Owner


class Intent:
    """Owners of one shard that are announced together; everyone if there are none."""

    __slots__ = ("id", "counter", "buffer", "owner_keys", "deltas")

    def __init__(self, counter: Declaration, buffer: Buffer, owner_keys: Sequence[str]):
        self.id = os.urandom(16).hex()
        self.counter, self.buffer, self.owner_keys = counter, buffer, owner_keys
        self.deltas: Sequence[Delta] = ()

    def announcement(self) -> Call:
        """Return the call that announces it."""
        return self.buffer.announcement(self.id, self.owner_keys)

    def confirmation(self, deltas: Mapping[str, Delta]) -> Call:
        """Return the call that confirms the owners' deltas; 0 for a missing one."""
        self.deltas = list(map(deltas.get, self.owner_keys, repeat(0)))
        return self.buffer.confirmation(self.id, self.owner_keys, self.deltas)

    @property
    def owners(self) -> list[Owner]:
        """Whom it announces."""
        return [(self.counter, owner_key) for owner_key in self.owner_keys or (None,)]

    @property
    def changed(self) -> list[Owner]:
        """The owners whose counts have changed."""
        return [owner for owner, delta in zip(self.owners, self.deltas or (None,), strict=True) if delta != 0]


def _grouped(intents: Sequence[Intent]) -> list[Sequence[Intent]]:
    """Group intents that are sent together."""
    if len(intents) == 1:
        return [intents]
    return in_groups(intents, [len(intent.owner_keys) for intent in intents], OWNERS_PER_CALL)


class Intents:
    """The intents of one transaction.

    ``all``           the intents, in order
    ``announced``     their owners
    ``everyone_of``   the counters of which everyone is announced
    ``announced_at``  when the first one was announced, by the monotonic clock
    """

    announced_at = math.inf

    def __init__(self, connection: Any):
        self.schema = schema_of(connection)  # it may be another one when the transaction commits
        self.all: list[Intent] = []
        self.announced: dict[Declaration, set[str]] = {}
        self.everyone_of: set[Declaration] = set()

    def announce(self, owners: Mapping[Declaration, Iterable[str] | None], connection: Any) -> list[Owner]:
        """Announce the owners, each given once, that are not announced yet. None: everyone. Returns those whom Redis
        refused."""
        intents: list[Intent] = []
        refused: list[Owner] = []
        for counter, owner_keys in owners.items():
            if counter in self.everyone_of:
                continue
            announced = self.announced.setdefault(counter, set())
            new: list[str | None] = [None] if owner_keys is None else [k for k in owner_keys if k not in announced]
            try:
                if owner_keys is None:
                    intents += (Intent(counter, buffer, ()) for buffer in counter.buffers_in(connection))
                else:
                    for buffer, mine in counter.by_shard(new, connection):
                        intents += (Intent(counter, buffer, some) for some in chunked(mine, OWNERS_PER_CALL))
            except BufferUnavailable:  # the id of the database is unknown
                refused += [(counter, owner_key) for owner_key in new]
        if intents and not self.all:
            self.announced_at = time.monotonic()
        for group in _grouped(intents):
            self.all += group  # first, in case of an exception; Redis can handle the confirmation of an unknown one
            for intent in group:
                self.announced[intent.counter].update(intent.owner_keys)
                if not intent.owner_keys:
                    self.everyone_of.add(intent.counter)
            for intent, reply in zip(group, _ask(group, map(Intent.announcement, group)), strict=True):
                if reply != 1:
                    refused += intent.owners
                    self._forget(intent)
        return refused

    def _forget(self, intent: Intent) -> None:
        self.all = [other for other in self.all if other is not intent]
        self.announced.get(intent.counter, set()).difference_update(intent.owner_keys)
        if not intent.owner_keys:
            self.everyone_of.discard(intent.counter)

    def confirm(self, deltas: Mapping[Declaration, Mapping[str, Delta]]) -> list[Owner]:
        """Confirm all intents, with the deltas of their owners. Returns the owners whose deltas Redis did not accept,
        as far as is known."""
        failed: list[Owner] = []
        groups = _grouped(self.all)
        for group in groups:
            calls = [intent.confirmation(deltas.get(intent.counter, {})) for intent in group]
            wait = group is not groups[-1] or self.must_wait()
            for intent, reply in zip(group, _ask(group, calls, urgent=True, wait=wait), strict=True):
                if reply not in (1, None):
                    failed += intent.changed
        return failed

    def must_wait(self) -> bool:
        """Return whether to wait for the reply to a confirmation. Usually not: the owners are in flight until Redis has
        run it. After HEAL_AFTER seconds, they may no longer be (rule: slow)."""
        return time.monotonic() - self.announced_at >= options.HEAL_AFTER / 2

    def leave_to_healing(self) -> None:
        """Confirm nothing, because the statement may still be running. A reader that counts rows before it commits
        would miss it."""
        self.all.clear()
        self.announced.clear()
        self.everyone_of.clear()


def _ask(intents: Sequence[Intent], calls: Iterable[Call], urgent: bool = False, wait: bool = True) -> list[Any]:
    return intents[0].buffer.client.ask_all(list(calls), urgent, wait)
