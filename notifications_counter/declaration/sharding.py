"""Distributes owners over the shards of a counter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import mod
from zlib import crc32

from ..buffer import Buffer
from ..buffer.types import as_bytes
from .primary_keys import Key

Shares = list[tuple[Buffer, Sequence[Key]]]
"""Owner keys, or primary keys, by shard."""


def shards_of(owner_keys: Iterable[bytes], number: int) -> list[int]:
    """Return which of so many shards each owner key belongs to."""
    return list(map(mod, map(crc32, owner_keys), repeat(number)))


def split(buffers: Sequence[Buffer], keys: Sequence[Key]) -> Shares:
    """Group keys by shard. Sorting them is faster than a step of Python for each key."""
    shards = shards_of(as_bytes(keys), len(buffers))
    keys = list(map(keys.__getitem__, sorted(range(len(keys)), key=shards.__getitem__)))
    shares: Shares = []
    first = 0
    for shard, size in sorted(Counter(shards).items()):
        shares.append((buffers[shard], keys[first : (first := first + size)]))
    return shares
