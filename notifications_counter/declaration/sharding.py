"""Distributes owners over the shards of a counter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import mod
from zlib import crc32

from ..buffer import Buffer
from .primary_keys import Key

Shares = list[tuple[Buffer, Sequence[Key]]]
"""Owner keys, or primary keys, by shard."""

EncodedShares = list[tuple[Buffer, Sequence[Key], Sequence[bytes]]]
"""Primary keys, and their owner keys, encoded for Redis, by shard."""


def shards_of(owner_keys: Iterable[bytes], number: int) -> list[int]:
    """Return which of so many shards each owner key belongs to."""
    return list(map(mod, map(crc32, owner_keys), repeat(number)))


def split(buffers: Sequence[Buffer], keys: Sequence[Key], owner_keys: Sequence[bytes]) -> EncodedShares:
    """Group keys by shard. Sorting them is faster than a step of Python for each key."""
    shards = shards_of(owner_keys, len(buffers))
    order = sorted(range(len(keys)), key=shards.__getitem__)
    keys, owner_keys = list(map(keys.__getitem__, order)), list(map(owner_keys.__getitem__, order))
    shares: EncodedShares = []
    first = 0
    for shard, size in sorted(Counter(shards).items()):
        share = slice(first, first := first + size)
        shares.append((buffers[shard], keys[share], owner_keys[share]))
    return shares
