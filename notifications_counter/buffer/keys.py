"""The keys of a counter in Redis. Scripts build the same: see ``shared.lua``."""

from __future__ import annotations


class Keys:
    """The keys of one counter in one database. All share the hash tag in ``base``, so they are on one node of a
    cluster. ``live`` is a channel."""

    base: str
    pending: str
    flushing: str
    state: str
    ready: str
    intents: str
    in_flight: str
    listeners: str
    live: str

    def __init__(self, prefix: str, counter: str, database: str):
        self.base = f"{{{prefix}:counter:{counter}}}:{database}"
        for name in NAMES:
            setattr(self, name, f"{self.base}:{name}")

    def total(self, generation: str, owner: str) -> str:
        """Return the key of an owner's cached total. ``lua/shared.lua`` builds the same."""
        return f"{self.base}:total:{generation}:{owner}"


NAMES = list(Keys.__annotations__)[1:]  # without base


def trouble(prefix: str) -> str:
    """Return the key of the last trouble with Redis, of all counters with this prefix."""
    return f"{{{prefix}:trouble}}"
