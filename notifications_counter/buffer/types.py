"""Arguments and replies of a counter's scripts, as Python types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

UNREADABLE = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""The exceptions that foreign data raises when it is read."""

Delta = int | None
"""The change of one owner's count. None: unknown, so the owner is doubted."""

LIMIT = 2**63
"""Redis and databases store integers of 64 bits."""


OFF = "off"
"""The value of `ready` while counting is off."""


class Absent(Enum):
    """Why a reader has no cached total.

    ``MISSING``  nobody has cached it: count the rows under a lease, and keep their number
    ``UNSURE``   Redis does not vouch for it, or does not answer: count the rows
    """

    MISSING = 1
    UNSURE = 2


MISSING, UNSURE = Absent.MISSING, Absent.UNSURE

Total = int | Absent


class Lease(NamedTuple):
    """The right to cache the counts of these owners in a generation. Without owners, nothing may be cached."""

    generation: str
    token: str
    owner_keys: frozenset[str]


class Fetched(NamedTuple):
    """An owner of a batch: the sum of its deltas, None after a doubt, and its cached total, None if it is not
    cached."""

    owner_key: str
    delta: Delta
    total: int | None


Epoch = tuple[str, ...]
"""`ready`, the batch under way, and the mark of the last one that was dropped: what generations and flushes change."""


class Look(NamedTuple):
    """What Redis holds of an owner at a moment, as Redis replies: a total, maybe with a flag, or a lease as ``cached``,
    and the ``pending`` and ``flushing`` deltas. None where there is nothing."""

    epoch: Epoch
    cached: Any
    pending: Any
    flushing: Any

    @property
    def total(self) -> int | None:
        """The cached total; None if there is none."""
        return as_integer(as_text(self.cached or "").removesuffix("!"))

    @property
    def waits(self) -> bool:
        """Whether the owner's count is still to be flushed, as everyone's is where nobody counts."""
        return self.pending is not None or self.flushing is not None or self.epoch[0] in ("", OFF)


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """The state of a counter in Redis, as ``status.lua`` returns it. Times are seconds of the Redis clock.

    ``ready`` is what readers may use, and ``server`` the name of the server when the generation began. ``batch`` is the
    batch under way, and ``mark`` that of the last one that was dropped, or of the generation.
    ``cut_at`` is when `pending` was last empty. The flusher last ``ran_at`` this time of its own clock,
    and ``failure`` says why it failed, if it did.
    """

    ready: str = ""
    server: str = ""
    batch: str = ""
    mark: str = ""
    failure: str = ""
    cut_at: int = 0
    ran_at: int = 0
    now: int = 0
    pending: int = 0
    flushing: int = 0
    intents: int = 0

    @classmethod
    def of(cls, reply: Sequence[Sequence[Any]]) -> BufferStatus:
        """Return the status in the reply of ``status.lua``: texts and numbers."""
        texts, numbers = reply
        values: list[Any] = [as_text(text or "") for text in texts]
        return cls(*values, *(as_integer(number or 0) or 0 for number in numbers))

    @property
    def epoch(self) -> Epoch:
        return self.ready, self.batch, self.mark

    @property
    def age(self) -> int:
        """Seconds for which the oldest change may have waited to be flushed."""
        return max(0, self.now - self.cut_at) if self.pending or self.flushing else 0


@dataclass(frozen=True, slots=True)
class IntentAge:
    """An intent in Redis: when it was announced, and last ``checked``, in seconds of the Redis clock; its owners, none
    for everyone. If it cannot be read, it is as old as can be, and for everyone."""

    id: str
    began: int = 0
    checked: int = 0
    owner_keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, id: str, entry: str | bytes) -> IntentAge:
        """Return the intent in an entry of ``intents``."""
        try:
            about = json.loads(entry)
            return cls(id, int(about["began"]), int(about["checked"]), tuple(about["owners"]))
        except UNREADABLE:
            return cls(id)


def as_totals(values: Sequence[Any]) -> list[Total]:
    """Return what is cached as totals. Those in flight, foreign data and leases are UNSURE."""
    with suppress(TypeError, ValueError):
        return list(map(int, values))  # faster
    integers = map(as_integer, values)
    return [MISSING if v is None else UNSURE if i is None else i for v, i in zip(values, integers, strict=True)]


def as_text(value: object) -> str:
    """Return a reply as text. Bytes that are not UTF-8 become surrogates, which can be sent to Redis again."""
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def as_bytes(text: str) -> bytes:
    """Return the bytes that ``as_text`` turned into this text."""
    return text.encode(errors="surrogateescape")


def as_integer(number: Any) -> int | None:
    """Return a number in a reply; None if it is missing, or no integer of 64 bits, as the score of an unknown delta."""
    with suppress(TypeError, ValueError):
        found = int(number)
        return found if -LIMIT <= found < LIMIT else None
    return None


def as_pairs(reply: Any) -> Iterable[tuple[Any, Any]]:
    """Return a reply of fields and values as pairs. Depending on the protocol, it is a flat list or a dict."""
    return reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
