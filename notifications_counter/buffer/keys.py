"""The keys of a shard in Redis. Scripts build the keys of cached totals: see ``shared.lua``."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields


def trouble(prefix: str) -> str:
    """Return the key that holds the last trouble with Redis. It belongs to all counters with this prefix."""
    return f"{{{prefix}:trouble}}"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one shard of one counter in one database.

    All share the hash tag in ``base``, so a shard lives on one node of a cluster. If there are several shards, the tag
    includes their number, so that after a change of SHARDS no key of the old partition is read. ``live`` is a channel.
    """

    base: str
    pending: str = field(init=False)
    flushing: str = field(init=False)
    state: str = field(init=False)
    ready: str = field(init=False)
    intents: str = field(init=False)
    in_flight: str = field(init=False)
    aside: str = field(init=False)
    walked: str = field(init=False)
    last_run: str = field(init=False)
    listeners: str = field(init=False)
    live: str = field(init=False)

    def __post_init__(self) -> None:
        for key in fields(self)[1:]:
            object.__setattr__(self, key.name, f"{self.base}:{key.name}")

    @classmethod
    def of(cls, prefix: str, counter: str, shard: int, shards: int, database: str) -> "Keys":
        of_many = f"of{shards}" if shards > 1 else ""
        return cls(f"{{{prefix}:{counter}:{shard}{of_many}}}:{database}")

    def total(self, generation: str, owner: str) -> str:
        """Return the key of an owner's cached total. ``lua/shared.lua`` builds the same."""
        return f"{self.base}:total:{generation}:{owner}"


NAMES = {field.name for field in fields(Keys)[1:]}


def is_of_shard(names: Iterable[str]) -> bool:
    """Return whether these are names of a shard's keys. Others may have the same key at the end of theirs."""
    return NAMES.issuperset(names)
