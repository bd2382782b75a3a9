"""Arguments and replies of a shard's scripts, as Python types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

UNREADABLE = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""The exceptions that foreign data raises when it is read."""

Delta = int | None
"""The change of one owner's count. None: unknown, so the owner is recounted."""


class Waiting(NamedTuple):
    """The pending and flushing changes of one owner, None if the score is not an integer. ``needs_rows``: it is dirty
    or in flight, so readers count its rows."""

    pending: int | None
    flushing: int | None
    needs_rows: bool


NOTHING = Waiting(0, 0, False)

NUMBERS = ("epoch", "batch", "dirty", "waiting_since", "flushing_since", "heartbeat_at", "live_until")
"""Fields of ``state`` that are numbers."""

LIMIT = 2**63
"""Redis and databases store integers of 64 bits."""


class InEpoch:
    """The epoch of a snapshot or a status. ``ready`` is empty before the first epoch, and while another declaration of
    the counter is in force."""

    __slots__ = ()

    ready: str
    epoch: int

    @property
    def recovering(self) -> bool:
        """Whether everyone is being recounted. Cached totals are right; the rows of other owners must be counted."""
        return self.ready.endswith("?")

    @property
    def complete(self) -> bool:
        """Whether everyone has been recounted since the epoch began."""
        return self.ready == str(self.epoch)


@dataclass(frozen=True, slots=True)
class Snapshot(InEpoch):
    """The changes that wait for some owners at one moment. ``cut``: whether a batch is being flushed."""

    ready: str
    epoch: int
    batch: int
    cut: bool
    owners: dict[str, Waiting]

    @property
    def waiting(self) -> list[str]:
        """The owners for whom something waits."""
        return [owner for owner, waiting in self.owners.items() if waiting is not NOTHING]

    def value(self, owner: str, count: int, flushed_batch: int) -> int | None:
        """Return the count of an owner, given its stored total, read after the snapshot. None if it cannot be known.

        A stored total with a later batch than the snapshot's tells nothing, because the owner may have become dirty
        before that cut.
        """
        pending, flushing, _ = self.owners[owner]
        if flushed_batch > self.batch or pending is None or flushing is None:
            return None
        return count + pending + (flushing if self.cut and flushed_batch < self.batch else 0)


class Cut(NamedTuple):
    """A batch that was cut: its number, how many owners are in it, and the id of the previous batch."""

    batch: int
    size: int
    batch_id: str


@dataclass(frozen=True, slots=True)
class Status(InEpoch):
    """The state of a shard. Times are seconds of the Redis clock, None if nothing waits.

    ``declared`` is the fingerprint of the declaration in force, and ``heartbeat_at`` the last sign of life of a process
    with another one. ``server`` is the name of the server at the last recovery, ``batch_id`` the id of the last batch
    that was finished. ``counted_dirty`` is the size that ``dirty`` should have. ``unreadable``: something else wrote to
    ``state``.
    """

    epoch: int
    declared: str
    heartbeat_at: int | None
    server: str
    ready: str
    batch: int
    batch_id: str
    counted_dirty: int
    waiting_since: int | None
    flushing_since: int | None
    dirty_since: int | None
    now: int
    unreadable: bool
    pending: int
    flushing: int
    intents: int
    dirty: int
    rejected: int

    @classmethod
    def of(cls, state: dict[str, Any], others: dict[str, Any]) -> Status:
        """Return the status in the reply of ``status.lua``: the fields of ``state``, and other values."""
        texts = {name: decode(state.get(name, "")) for name in (*NUMBERS, "declared", "server", "batch_id")}
        numbers = {name: parse_int(texts[name]) for name in NUMBERS}
        return cls(
            epoch=numbers["epoch"] or 0,
            batch=numbers["batch"] or 0,
            counted_dirty=numbers["dirty"] or 0,
            waiting_since=numbers["waiting_since"],
            flushing_since=numbers["flushing_since"],
            heartbeat_at=numbers["heartbeat_at"],
            declared=texts["declared"],
            server=texts["server"],
            batch_id=texts["batch_id"],
            unreadable=not all(_is_number(name, texts[name]) for name in NUMBERS if name in state),
            **{**others, "now": int(others["now"]), "dirty_since": parse_int(others["dirty_since"])},
        )

    @property
    def finished(self) -> int:
        """The last batch that was finished."""
        return self.batch - (self.flushing > 0)

    @property
    def lost_key(self) -> str:
        """The key that is missing although others say that it holds something; empty if there is none.

        A lost ``flushing`` shows in the database instead, which has not finished the batch.
        """
        if self.waiting_since is not None and not self.pending:
            return "pending"
        return "dirty" if self.counted_dirty != self.dirty else ""

    @property
    def backlog_age(self) -> int:
        """Seconds for which the oldest change has waited to be flushed, or a dirty owner to be recounted. During a
        recovery, dirty owners wait for the audit, and do not count."""
        dirty_since = None if self.recovering else self.dirty_since
        since = [s for s in (self.waiting_since, self.flushing_since, dirty_since) if s is not None]
        return max(0, self.now - min(since)) if since else 0


class LastRun(NamedTuple):
    """The last run of the flusher: when it ended, in seconds since 1970, 0 if there was none within a day; and why it
    failed, if it did."""

    at: float = 0
    failure: str = ""

    @classmethod
    def of(cls, text: str) -> LastRun:
        """Return the last run in the value of ``last_run``."""
        try:
            at, failure = json.loads(text)
            return cls(float(at), str(failure))
        except UNREADABLE:
            return cls()


class Monitored(NamedTuple):
    """The number of ``overdue`` intents, and in the first shard the counter's ``last_run``."""

    overdue: int
    last_run: LastRun


@dataclass(frozen=True, slots=True)
class AnnouncedIntent:
    """An intent in Redis: owners whose counts a transaction was about to change when it was announced. Times are
    seconds of the Redis clock. ``owners`` is None if the intent is foreign and cannot be read."""

    id: str
    began: int = 0
    checked: int = 0
    owners: list[str] | None = None

    @classmethod
    def of(cls, id: str, entry: Any) -> AnnouncedIntent:
        """Return the intent in an entry of ``intents``."""
        try:
            about = json.loads(entry)
            owners = [owner for owner in about["owners"] if owner.encode() or True]
            return cls(id, int(about["began"]), int(about["checked"]), owners)
        except UNREADABLE:
            return cls(id)


def _is_number(name: str, text: str) -> bool:
    """Return whether a field of ``state`` is a number that the app may have written."""
    return re.fullmatch(rf"-?[0-9]{{1,{7 if name == 'epoch' else 16}}}", text) is not None


def decode(value: Any) -> str:
    """Return a reply as text. Bytes that are not UTF-8 become surrogates, which can be sent to Redis again."""
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def encode(text: str) -> bytes:
    """Return the bytes that ``decode`` turned into this text."""
    return text.encode(errors="surrogateescape")


def parse_int(score: Any) -> int | None:
    """Return a score as an int, or None if it is not an integer of 64 bits."""
    try:
        number = int(score)
    except ValueError:
        try:
            number = int(float(score))
        except (OverflowError, ValueError):
            return None
        if number != float(score):
            return None
    return number if -LIMIT <= number < LIMIT else None


def pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield a flat list of field, value, … as pairs."""
    return zip(flat[::2], flat[1::2], strict=True)
