"""Arguments and replies of a counter's scripts, as Python types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from ..conf import options
from ..redis.replies import UNREADABLE, as_integer, as_pairs, as_text

OWNERS_PER_CALL = 1000
"""The most owners in one call, and so in a page of a walk. No script blocks Redis for more than a few milliseconds, or
has more than MAX_ARGUMENTS arguments: an owner takes three at most."""

Delta = int | None
"""The change of one owner's count. None: unknown, so the owner is doubted."""

EVERYONE = "\0"
"""Stands for everyone wherever an owner key may stand, in Redis, too. No primary key may contain it."""

OFF = "off"
"""The value of `ready` while counting is off."""


def parse_ready(value: str) -> tuple[str, str]:
    """Return the generation in a value of ``ready``, and the fingerprint of its declaration; empty if there is none."""
    generation, _, fingerprint = value.partition(":")
    return (generation, fingerprint) if fingerprint else ("", "")


class Lease(NamedTuple):
    """The right to cache the counts of these owners, while the generation lasts. Without owners, nothing may be."""

    token: str
    owner_keys: frozenset[str]


class Fetched(NamedTuple):
    """An owner of a batch: the sum of its deltas, None after a doubt, and its cached total, None if it is not
    cached."""

    owner_key: str
    delta: Delta
    total: int | None


class Look(NamedTuple):
    """What Redis holds of an owner at a moment, as Redis replies: a total, maybe with a flag, or a lease as ``cached``,
    and the ``pending`` and ``flushing`` deltas. None where there is nothing. In the ``epoch`` is what generations and
    flushes change: `ready`, the batch under way, and the mark of the last one that was dropped."""

    epoch: tuple[str, ...]
    cached: Any
    pending: Any
    flushing: Any

    @property
    def total(self) -> int | None:
        """The cached total; None if there is none."""
        return total_in(self.cached)

    @property
    def is_flagged(self) -> bool:
        """Whether the total is that of an owner in flight."""
        return as_text(self.cached or "").endswith("!")

    @property
    def waits(self) -> bool:
        """Whether the owner's count is still to be flushed."""
        return self.pending is not None or self.flushing is not None


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """The state of a counter in Redis, as ``status.lua`` returns it. Times are seconds of the Redis clock.

    ``ready`` is what readers may use, and ``server`` the name of the server when the generation began. ``batch`` is the
    batch under way, and ``mark`` that of the last one that was dropped, or of the generation.
    Redis was told of the oldest change that waits ``since`` this time. The flusher last ``ran_at`` this time of its own
    clock, and ``failure`` says why it failed, if it did. ``refusal`` says why Redis refuses changes, if it does.
    """

    ready: str = ""
    refusal: str = ""
    server: str = ""
    batch: str = ""
    mark: str = ""
    failure: str = ""
    since: int = 0
    ran_at: int = 0
    now: int = 0
    pending: int = 0
    flushing: int = 0
    intents: int = 0

    @classmethod
    def of(cls, reply: Sequence[Sequence[Any]]) -> BufferStatus:
        """Return the status in the reply of ``status.lua``: texts and numbers, by name."""
        texts, numbers = map(as_pairs, reply)
        values: dict[str, Any] = {as_text(name): as_text(text or "") for name, text in texts}
        values |= {as_text(name): as_integer(number or 0) or 0 for name, number in numbers}
        return cls(**values)

    @property
    def generation(self) -> str:
        """The generation whose totals readers may use; empty if there is none."""
        return parse_ready(self.ready)[0]

    @property
    def age(self) -> int:
        """Seconds for which the oldest change has waited to be flushed."""
        return max(0, self.now - self.since) if self.pending or self.flushing else 0


@dataclass(frozen=True, slots=True)
class IntentAge:
    """An intent in Redis: when it was announced, last ``checked``, in seconds of the Redis clock, and its owners. If
    it cannot be read, it is as old as can be, and for everyone."""

    id: str
    began: int = 0
    checked: int = 0
    owner_keys: tuple[str, ...] = (EVERYONE,)

    @classmethod
    def of(cls, id: str, entry: str | bytes) -> IntentAge:
        """Return the intent in an entry of ``intents``."""
        try:
            about = json.loads(entry)
            return cls(id, int(about["began"]), int(about["checked"]), tuple(about["owners"]))
        except UNREADABLE:
            return cls(id)

    def late(self, now: int) -> float:
        """Return for how many seconds a flusher should have looked at it, at HEAL_AFTER and whenever its age has
        doubled; below 0 if it is not due."""
        return now - self.began - max(options.HEAL_AFTER, 2 * (self.checked - self.began))


def total_in(cached: Any) -> int | None:
    """Return the total in what is cached of an owner; None if there is none."""
    return as_integer(as_text(cached).removesuffix("!")) if cached else None


def as_json(owner_keys: Sequence[str]) -> str:
    """Return owner keys as one argument, which is faster than a thousand. For one owner, ``json.dumps`` would take ten
    times as long."""
    return f"[{','.join(map(encode_basestring, owner_keys))}]"
