"""What a transaction announces in Redis before it commits, and confirms afterwards."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections

from ..buffer import Buffer
from ..buffer.commands import OWNERS_PER_CALL, Call, chunked, in_groups, owners_as_json
from ..buffer.patience import Patience
from ..buffer.pipeline import Pipeline, pipelines_for
from ..buffer.types import Delta
from ..conf import options
from ..databases.routing import in_schema, schema_of
from ..declaration import Declaration
from ..exceptions import BufferUnavailable
from ..internals import in_manual_transaction
from .requests import Owner, request_or_log

logger = logging.getLogger("notifications_counter")


class Intent:
    """Owners of one shard that are announced together; everyone if there are none. ``call`` announces them or, after
    ``set_deltas``, confirms their deltas."""

    __slots__ = ("id", "counter", "buffer", "owner_keys", "json", "deltas", "call")

    def __init__(self, counter: Declaration, buffer: Buffer, owner_keys: Sequence[str]):
        self.id = os.urandom(16).hex()
        self.counter, self.buffer, self.owner_keys = counter, buffer, owner_keys
        self.json = owners_as_json(owner_keys)
        self.deltas: Sequence[Delta] = ()
        self.call = buffer.announce_call(self.id, self.json)

    def set_deltas(self, deltas: Mapping[str, Delta]) -> None:
        """Set the owners' deltas; 0 for a missing one."""
        self.deltas = list(map(deltas.get, self.owner_keys, repeat(0)))
        self.call = self.buffer.confirm_call(self.id, self.json, self.deltas)

    @property
    def owners(self) -> list[Owner]:
        """Whom it announces."""
        return [(self.counter, owner_key) for owner_key in self.owner_keys or (None,)]

    @property
    def changed(self) -> list[Owner]:
        """The owners whose counts have changed."""
        return [owner for owner, delta in zip(self.owners, self.deltas or (None,), strict=True) if delta != 0]


CALL: Callable[[Intent], Call] = attrgetter("call")


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
    ``unread``        pipelines that announce some of them, with replies to read
    """

    announced_at = math.inf

    def __init__(self, connection: Any):
        self.using: str = connection.alias
        self.schema = schema_of(connection)  # it may be another one when the transaction commits
        self.all: list[Intent] = []
        self.announced: dict[Declaration, set[str]] = {}
        self.everyone_of: set[Declaration] = set()
        self.unread: list[Pipeline] = []
        self._refused: list[Owner] = []

    def announce(self, owners: Mapping[Declaration, Iterable[str] | None], connection: Any) -> None:
        """Announce the owners, each given once, that are not announced yet. None: everyone. ``settle`` reads the
        replies to the last pipeline."""
        intents: list[Intent] = []
        with Patience(options.WRITE_TIMEOUT):
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
                    self._refused += [(counter, owner_key) for owner_key in new]
            for group in _grouped(intents):
                if self.unread:
                    self._refused = self.settle()
                self._announce(group)

    def _announce(self, intents: Sequence[Intent]) -> None:
        if not self.all:
            self.announced_at = time.monotonic()
        for intent in intents:  # first, in case of an exception; Redis can handle the confirmation of an unknown one
            self.all.append(intent)
            self.announced[intent.counter].update(intent.owner_keys)
            if not intent.owner_keys:
                self.everyone_of.add(intent.counter)
        client = intents[0].buffer.client
        self.unread += pipelines_for(client, list(map(CALL, intents)), intents)
        for pipeline in self.unread:
            pipeline.send()
        if client.is_limited:
            self._refused = self.settle()

    def settle(self) -> list[Owner]:
        """Read the unread replies. Returns the owners that could not be announced."""
        refused, self._refused = self._refused, []
        while self.unread:
            pipeline = self.unread[-1]
            for intent, outcome in zip(pipeline.subjects, pipeline.outcomes(), strict=True):
                if isinstance(outcome, BufferUnavailable):
                    self.all = [other for other in self.all if other is not intent]
                    self.announced.get(intent.counter, set()).difference_update(intent.owner_keys)
                    self.everyone_of -= set() if intent.owner_keys else {intent.counter}
                    refused += intent.owners
            self.unread.pop()
        return refused

    def confirm(self, deltas: Mapping[Declaration, Mapping[str, Delta]]) -> list[Owner]:
        """Confirm all intents, with the deltas of their owners. Returns the owners whose deltas Redis did not accept,
        as far as is known."""
        for intent in self.all:
            intent.set_deltas(deltas.get(intent.counter, {}))
        failed: list[Owner] = []
        for group in _grouped(self.all):
            failed += self._confirm(group)
        return failed

    def _confirm(self, intents: Sequence[Intent]) -> list[Owner]:
        failed: list[Owner] = []
        client = intents[0].buffer.client
        pipelines = pipelines_for(client, list(map(CALL, intents)), intents)
        try:
            with Patience(options.WRITE_TIMEOUT):
                for pipeline in pipelines:
                    pipeline.send(urgent=True)
                for pipeline in pipelines:
                    late = partial(_request_late, self.using, self.schema, pipeline)
                    if self.must_wait() or not pipeline.leave_replies(late):
                        failed += _failed_owners(pipeline)
        except BaseException:
            for pipeline in pipelines:
                pipeline.close()
            raise
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


def _failed_owners(pipeline: Pipeline) -> list[Owner]:
    """Return the owners whose deltas Redis did not accept."""
    outcomes = zip(pipeline.subjects, pipeline.outcomes(), strict=True)
    return [owner for intent, outcome in outcomes if isinstance(outcome, BufferUnavailable) for owner in intent.changed]


def _request_late(using: str, schema: str | None, pipeline: Pipeline) -> bool:
    """Write RecountRequests for confirmations that failed after the app went on. Returns False inside a transaction,
    where they can't be written."""
    try:
        connection = connections[using]
        if connection.in_atomic_block or in_manual_transaction(connection):  # without connecting
            return False
        with in_schema(connection, schema):
            request_or_log(using, _failed_owners(pipeline))
    except SynchronousOnlyOperation:
        return False
    return True
