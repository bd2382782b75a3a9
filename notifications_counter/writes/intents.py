"""What a transaction announces in Redis before it commits, and confirms afterwards."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections

from ..buffer import Buffer
from ..buffer.commands import OWNERS_PER_CALL, chunked, in_groups
from ..buffer.patience import Patience
from ..buffer.pipeline import Call, Pipeline, pipelines_for
from ..buffer.types import Delta
from ..conf import options
from ..declaration import Declaration, each_shard
from ..declaration.databases import in_schema
from ..declaration.transactions import in_transaction
from ..exceptions import BufferUnavailable, DatabaseChanged
from .recounts import request_recounts

logger = logging.getLogger("notifications_counter")

Owner = tuple[Declaration, str]
"""A counter, and the owner key that stands for one of its owners."""


@dataclass(slots=True, eq=False)
class Intent:
    """Owners of one shard that are announced together."""

    id: str
    counter: Declaration
    buffer: Buffer
    owner_keys: Sequence[str]


Deltas = tuple[Intent, dict[str, Delta]]
"""An intent, and the deltas that confirm it."""


class Intents:
    """The intents of one transaction.

    ``announced``     all owners that are in an intent
    ``announced_at``  when the first of them was, by the monotonic clock
    ``unread``        pipelines that announce some, and whose replies were not read yet
    """

    def __init__(self, using: str, schema: str | None):
        self.using = using
        self.schema = schema
        self.all: list[Intent] = []
        self.announced: dict[Declaration, set[str]] = defaultdict(set)
        self.unread: list[Pipeline] = []
        self._refused: list[Owner] = []
        self.announced_at = math.inf

    def announce(self, owners: Mapping[Declaration, Iterable[str]], connection: Any) -> None:
        """Announce owners, each named once, that were not announced yet. The replies to the last pipeline stay unread
        until ``settle``."""
        calls: list[tuple[Call, Intent]] = []

        def add(buffer: Buffer, owner_keys: Sequence[str]) -> None:
            for some in chunked(owner_keys, OWNERS_PER_CALL):
                id_ = os.urandom(16).hex()
                calls.append((buffer.announce_call(id_, some), Intent(id_, counter, buffer, some)))

        with Patience(options.WRITE_TIMEOUT):
            for counter, owner_keys in owners.items():
                announced = self.announced[counter]
                new = [m for m in owner_keys if m not in announced] if announced else list(owner_keys)
                self._refused += [(counter, m) for m in each_shard(counter, new, add, connection)]
            for some in in_groups(calls, [len(intent.owner_keys) for _, intent in calls], OWNERS_PER_CALL):
                if self.unread:
                    self._refused = self.settle()
                self._announce(some)

    def _announce(self, calls: Sequence[tuple[Call, Intent]]) -> None:
        self.announced_at = min(self.announced_at, time.monotonic())
        for _, intent in calls:  # first, in case of an exception; Redis can handle the confirmation of an unknown one
            self.all.append(intent)
            self.announced[intent.counter].update(intent.owner_keys)
        client = calls[0][1].buffer.client
        self.unread += pipelines_for(client, calls)
        for pipeline in self.unread:
            pipeline.send(urgent=False)
        if client.is_limited:
            self._refused = self.settle()

    def settle(self) -> list[Owner]:
        """Read the replies that are unread. Returns the owners that could not be announced."""
        refused, self._refused = self._refused, []
        while self.unread:
            for intent, outcome in self.unread[-1].read():
                if isinstance(outcome, BufferUnavailable):
                    self.all = [other for other in self.all if other is not intent]
                    self.announced[intent.counter].difference_update(intent.owner_keys)
                    refused += [(intent.counter, owner_key) for owner_key in intent.owner_keys]
            self.unread.pop()
        return refused

    def confirm(self, net: dict[Declaration, dict[str, Delta]]) -> list[Owner]:
        """Confirm all intents, with the deltas of their owners. Returns the owners whose deltas Redis did not accept,
        as far as that is known."""
        calls, sizes, failed = [], [], []
        for intent in self.all:
            sums, owner_keys = net.get(intent.counter, {}), intent.owner_keys
            deltas: dict[str, Delta] = dict(zip(owner_keys, map(sums.get, owner_keys, repeat(0)), strict=True))
            if 0 in deltas.values():
                deltas = {owner_key: delta for owner_key, delta in deltas.items() if delta != 0}
            calls.append((intent.buffer.confirm_call(intent.id, deltas), (intent, deltas)))
            sizes.append(1 + len(deltas))
        for some in in_groups(calls, sizes, OWNERS_PER_CALL):
            failed += self._confirm(some)
        return failed

    def _confirm(self, calls: Sequence[tuple[Call, Deltas]]) -> list[Owner]:
        failed: list[Owner] = []
        pipelines = pipelines_for(calls[0][1][0].buffer.client, calls)
        try:
            with Patience(options.WRITE_TIMEOUT):
                for pipeline in pipelines:
                    pipeline.send(urgent=True)
                for pipeline in pipelines:
                    late = partial(_finish_late, self.using, self.schema, pipeline)
                    if not (self.may_leave() and pipeline.leave(late)):
                        failed += _finish(pipeline)
        except BaseException:
            for pipeline in pipelines:
                pipeline.close()
            raise
        return failed

    def may_leave(self) -> bool:
        """Return whether nobody has to wait for the reply to a confirmation: the owners are in flight until it has
        arrived. After HEAL_AFTER seconds, they may be so no longer."""
        return time.monotonic() - self.announced_at < options.HEAL_AFTER / 2


def _finish(pipeline: Pipeline) -> list[Owner]:
    """Return the owners whose deltas Redis did not accept."""
    failed: list[Owner] = []
    for (intent, deltas), outcome in pipeline.read():
        if isinstance(outcome, DatabaseChanged):  # it was moved to the new keys, where nobody knows what the rows say
            try:
                intent.counter.buffer_of(intent.owner_keys[0]).confirm(intent.id, dict.fromkeys(deltas))
            except BufferUnavailable as error:
                outcome = error
        if isinstance(outcome, BufferUnavailable):
            failed += [(intent.counter, owner_key) for owner_key in deltas]
    return failed


def _finish_late(using: str, schema: str | None, pipeline: Pipeline) -> bool:
    """Do what is to be done about confirmations that failed although nobody waited for them. Returns False if it cannot
    be done here, inside a transaction."""
    try:
        connection = connections[using]
        if in_transaction(connection):
            return False
        with in_schema(connection, schema):
            write_requests(using, _finish(pipeline))
    except SynchronousOnlyOperation:
        return False
    return True


def write_requests(using: str, failed: Sequence[Owner]) -> None:
    """Write RecountRequests for owners whose deltas Redis did not accept."""
    try:
        request_recounts(using, failed)
    except Error:
        about = {"event": "send_failed", "database": using, "owners": len(failed)}
        text = "Deltas of %d owners could not be sent. The owners are recounted after HEAL_AFTER seconds."
        logger.exception(text, len(failed), extra=about)
