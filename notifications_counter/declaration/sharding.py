"""The shards of a counter, and the owners in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import mod
from typing import Any
from zlib import crc32

from django.db import connections

from ..buffer import Buffer
from ..buffer.client import client_of
from ..buffer.keys import Keys
from ..conf import options
from ..databases.identity import Database, identify
from ..databases.routing import alias_for
from ..exceptions import BufferUnavailable
from ..internals import BaseDatabaseWrapper
from .owners import Owners
from .primary_keys import TAB, as_bytes

Shares = list[tuple[Buffer, Sequence[Any]]]
"""Owner keys, or primary keys, by shard."""

EncodedShares = list[tuple[Buffer, Sequence[Any], Sequence[bytes]]]
"""Primary keys, and their owner keys, encoded for Redis, by shard."""


class Sharded(Owners):
    """The part of a declaration that is about its shards. Each has a buffer."""

    disabled: str
    fingerprint: Any

    @property
    def db(self) -> str:
        """The alias of the database in which this thread or task uses this counter."""
        return alias_for(self.source)

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers of all shards, in the database that this thread works on. BufferUnavailable if it has no id
        yet."""
        return self.buffers_in(connections[self.db])

    def buffers_in(self, connection: BaseDatabaseWrapper) -> list[Buffer]:
        """Return the buffers of all shards in the database of a connection."""
        database = identify(connection)
        try:
            return database.buffers[self]
        except KeyError:
            shards = options.SHARDS
            buffers = [self.make_buffer(database, shard, shards) for shard in range(shards)]
            return database.buffers.setdefault(self, buffers)

    def make_buffer(self, database: Database, shard: int, shards: int) -> Buffer:
        """Return the buffer of one of so many ``shards``."""
        keys = Keys.of(options.KEY_PREFIX, self.name, shard, shards, database.id, database.address)
        fingerprint = "" if self.disabled else self.fingerprint
        epoch = database.epoch_of(self.name, shard, shards)
        return Buffer(client_of(options.CACHE_ALIAS), keys, shard, database.ttl, fingerprint, epoch)

    def buffer_of(self, owner_key: str, connection: BaseDatabaseWrapper | None = None) -> Buffer:
        """Return the buffer of an owner's shard."""
        connection = connection or connections[self.db]
        buffers = identify(connection).buffers.get(self) or self.buffers_in(connection)
        if len(buffers) == 1:
            return buffers[0]
        (hash_,) = self._hashes(as_bytes([owner_key]))
        return buffers[hash_ % len(buffers)]

    def by_shard(self, owner_keys: Sequence[Any], connection: BaseDatabaseWrapper | None = None) -> Shares:
        """Return owner keys, or primary keys, grouped by shard."""
        if not owner_keys:
            return []
        connection = connection or connections[self.db]
        buffers = identify(connection).buffers.get(self) or self.buffers_in(connection)
        if len(buffers) == 1:
            return [(buffers[0], owner_keys)]
        return [(buffer, mine) for buffer, mine, _ in self._grouped(buffers, owner_keys, as_bytes(owner_keys))]

    def mark_dirty(self, owner_keys: Sequence[str]) -> list[str]:
        """Send owners to a recount. Returns those for whom Redis was unreachable."""
        failed: list[str] = []
        try:
            shards = self.by_shard(owner_keys)
        except BufferUnavailable:  # nobody knows which keys are those of this database
            return list(owner_keys)
        for buffer, mine in shards:
            try:
                buffer.mark_dirty(mine)
            except BufferUnavailable:
                failed += mine
        return failed

    def encoded_by_shard(self, keys: Sequence[Any]) -> EncodedShares:
        """Return primary keys grouped by shard, each group also as owner keys, encoded for Redis."""
        if not keys:
            return []
        buffers, (keys, owner_keys) = self.buffers, self.encoded(keys)
        return [(buffers[0], keys, owner_keys)] if len(buffers) == 1 else self._grouped(buffers, keys, owner_keys)

    def _grouped(self, buffers: Sequence[Buffer], keys: Sequence[Any], owner_keys: Sequence[bytes]) -> EncodedShares:
        """Take apart what belongs to several shards, by sorting: a step of Python for each key takes longer."""
        shards = list(map(mod, self._hashes(owner_keys), repeat(len(buffers))))
        order = sorted(range(len(keys)), key=shards.__getitem__)
        keys, owner_keys = list(map(keys.__getitem__, order)), list(map(owner_keys.__getitem__, order))
        grouped: EncodedShares = []
        first = 0
        for shard, number in sorted(Counter(shards).items()):
            mine = slice(first, first := first + number)
            grouped.append((buffers[shard], keys[mine], owner_keys[mine]))
        return grouped

    def _hashes(self, owner_keys: Iterable[bytes]) -> Iterable[int]:
        """Return a number for each owner key, which decides about its shard."""
        if self.has_several_columns:  # owners that differ only in the last of them share a shard
            owner_keys = (owner_key.rpartition(TAB.encode())[0] for owner_key in owner_keys)
        return map(crc32, owner_keys)
