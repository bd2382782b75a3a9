"""One shard of one counter in Redis: a typed method for each script."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple

from ..conf import options
from .client import Argument, Client, Reply
from .keys import Keys
from .scripts import script

BATCHES = 10**9
"""Batches are numbered epoch × BATCHES + cuts in the epoch."""

LEASE = 60_000
"""Milliseconds a lease lasts. A correction that takes longer is tried again; safety does not rest on it."""

PART = 1000
"""Users in one script call at the most, so that no script holds Redis for more than a few milliseconds."""

HOUR = 3600
"""Seconds for which an interrupted recount can go on where it was."""

Delta = int | None
"""None: unknown, the user goes to a recount."""


class Waiting(NamedTuple):
    """What waits for one user. ``pending`` and ``flushing`` are None where the score is no whole number."""

    pending: int | None
    flushing: int | None
    dirty: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What waits for some users at one moment."""

    ready: str
    epoch: int
    batch: int
    cut: bool
    users: dict[str, Waiting]

    def value(self, member: str, count: int, flushed_batch: int) -> int | None:
        """The counter of a user, given its row, read after the snapshot. None: it cannot be told."""
        if flushed_batch > self.batch:  # a later cut carried the snapshot's pending along
            return count
        pending, flushing, _ = self.users[member]
        if pending is None or flushing is None:
            return None
        return count + pending + (flushing if self.cut and flushed_batch < self.batch else 0)


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a shard. Times are seconds of the Redis clock; None: nothing waits."""

    epoch: int
    completed: int
    server: str
    run_id: str
    ready: str
    batch: int
    waiting_since: int | None
    flushing_since: int | None
    dirty_since: int | None
    now: int
    pending: int
    flushing: int
    open: int
    dirty: int
    rejected: int

    @property
    def backlog_age(self) -> int:
        """Seconds that the oldest change has waited to be flushed, or its user to be recounted."""
        since = [s for s in (self.waiting_since, self.flushing_since, self.dirty_since) if s is not None]
        return max(0, self.now - min(since)) if since else 0


@dataclass(frozen=True, slots=True)
class Stats:
    """What has happened to a shard since its Redis was new: ``batches`` finished, users ``flushed`` in them and the
    ``flush_ms``, milliseconds, that took; users ``recounted``, and how many of them were ``corrected``, those of a
    recovery, which may be everyone, as ``restored``."""

    batches: int = 0
    flushed: int = 0
    flush_ms: int = 0
    recounted: int = 0
    corrected: int = 0
    restored: int = 0

    def __add__(self, other: Stats) -> Stats:
        return Stats(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Monitored:
    """What monitoring asks of a shard beside its status. ``oldest_open`` is the age of the oldest part in seconds."""

    suspected: int
    oldest_open: int
    stats: Stats


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A part of a transaction that has begun and not committed to Redis. Times are seconds of the Redis clock."""

    id: str
    seq: int
    began: int
    checked: int
    users: list[str]


def text(value: Any) -> str:
    """What Redis holds, as text; bytes that are none are kept, so that they can be named to Redis again."""
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def whole(score: Any) -> int | None:
    """A score as an int, None if it is not one."""
    try:
        return int(score)
    except ValueError:
        pass
    try:
        number = float(score)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


def pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


class Buffer:
    """One shard of one counter in Redis. Every method raises BufferUnavailable when Redis is out of reach."""

    def __init__(self, client: Client, keys: Keys):
        self.client = client
        self.keys = keys
        # What `ready` was when totals were read last, and how their keys begin with that.
        self._seen: tuple[str | bytes | None, str] = (None, keys.total("0", ""))

    # ------------------------------------------------------------------ reads
    def totals(self, members: Sequence[object]) -> list[int | None] | None:
        """The cached totals, None for each that is not cached; None for all if no recovery is complete.

        ``members``, or keys that are written like them.
        """
        while True:
            seen, prefix = self._seen
            ready, *totals = self.client.call(
                self.keys.ready, "MGET", self.keys.ready, *[f"{prefix}{member}" for member in members]
            )
            if ready is None:
                return None
            if ready == seen:
                try:
                    return [None if t is None else int(t) for t in totals]
                except ValueError:  # somebody else wrote one; those that are no numbers are made anew
                    return [None if t is None else whole(t) for t in totals]
            self._seen = ready, self.keys.total(text(ready), "")

    def snapshot(self, members: Sequence[str], lease: str = "") -> Snapshot:
        """What waits for these users; with a token, take leases for their correction."""
        k = self.keys
        ready, epoch, batch, cut, *flat = self.client.run(
            script("snapshot"), (k.pending, k.flushing, k.state, k.ready, k.dirty), (k.base, lease, LEASE, *members)
        )
        waiting = (Waiting(whole(flat[i]), whole(flat[i + 1]), bool(flat[i + 2])) for i in range(0, len(flat), 3))
        return Snapshot(
            text(ready), int(epoch or 0), int(batch or 0), bool(cut), dict(zip(members, waiting, strict=True))
        )

    def keep(self, snapshot: Snapshot, totals: dict[str, int]) -> int:
        """Cache totals that were made from the snapshot, where nothing has moved since."""
        k = self.keys
        args: list[Argument] = [k.base, snapshot.ready, snapshot.batch, int(snapshot.cut), options.TOTAL_TTL]
        for member, total in totals.items():
            args += (member, snapshot.users[member].pending or 0, total)
        return self.client.run(script("keep"), (k.state, k.ready, k.pending, k.dirty, k.flushing), args)

    # ----------------------------------------------------------------- writes
    def begin(self, part: str, members: Sequence[str]) -> Reply:
        """Register a part of a transaction; its reply must be read before the database commits."""
        k = self.keys
        return self.client.start(script("begin"), (k.state, k.ready, k.open), (part, *members))

    def commit(self, parts: Iterable[tuple[str, dict[str, Delta]]]) -> int:
        """Take parts out of ``open`` and add their deltas. Returns how many users must be recounted instead."""
        k = self.keys
        args: list[Argument] = [k.base]
        for part, deltas in parts:
            args += (part, len(deltas))
            for member, delta in deltas.items():
                args += (member, "?" if delta is None else delta)
        return self.client.run(
            script("commit"), (k.open, k.ready, k.state, k.pending, k.fences, k.dirty), args, urgent=True
        )

    def mark_dirty(self, members: Sequence[str]) -> None:
        """Send users to a recount; until then readers count their rows."""
        k = self.keys
        for i in range(0, len(members), PART):
            self.client.run(script("mark_dirty"), (k.ready, k.dirty, k.state), (k.base, *members[i : i + PART]))

    def fix(self, epoch: int, lease: str, corrections: dict[str, int]) -> dict[str, bool]:
        """Add corrections where the lease is still ours. False for a user that was active meanwhile."""
        k = self.keys
        args: list[Argument] = [k.base, epoch, lease]
        for member, correction in corrections.items():
            args += (member, correction)
        keys = (k.state, k.ready, k.pending, k.open, k.fences, k.dirty, k.stats)
        done = self.client.run(script("fix"), keys, args)
        return {member: bool(ok) for member, ok in zip(corrections, done, strict=True)}

    def listen(self, seconds: int) -> None:
        """Ask for messages on channel ``keys.live``, for so long: lists of users whose counter changed, in JSON."""
        self.client.run(script("listen"), (self.keys.state,), (seconds,))

    # ------------------------------------------------------------------ flush
    def cut(self, epoch: int) -> tuple[int, int] | None:
        """The batch to flush and its number of users; None if nothing waits, or Redis is in another epoch."""
        k = self.keys
        batch, size = self.client.run(script("cut"), (k.state, k.pending, k.flushing), (epoch,))
        return (int(batch), size) if batch else None

    def fetch(self, batch: int, first: int, last: int) -> list[tuple[str, str]]:
        """A slice of the batch by rank: (member, score). Empty if the batch is no longer this one, short if it ends
        meanwhile."""
        parts = self._fetch(batch, first, last, "list")
        return [(text(member), text(score)) for flat in parts for member, score in pairs(flat)]

    def fetch_joined(self, batch: int, first: int, last: int) -> tuple[str, str] | None:
        """The same as two texts of comma-joined values. None if the batch is no longer this one."""
        parts = [reply for reply in self._fetch(batch, first, last, "joined") if reply]
        members, scores = (",".join(text(reply[i]) for reply in parts) for i in (0, 1))
        return (members, scores) if parts else None

    def _fetch(self, batch: int, first: int, last: int, form: str) -> Iterator[list[Any]]:
        k = self.keys
        for rank in range(first, last + 1, PART):
            args = (batch, rank, min(rank + PART - 1, last), form)
            yield self.client.run(script("fetch"), (k.state, k.flushing), args)

    def finish(self, batch: int, refused: Sequence[str] = (), seconds: float = 0) -> bool:
        """Drop the batch, which the database has, as that took this flusher; users whose delta it refused go to a
        recount."""
        k = self.keys
        keys = (k.flushing, k.state, k.ready, k.dirty, k.stats)
        return bool(self.client.run(script("finish"), keys, (k.base, batch, round(seconds * 1000), *refused)))

    def reject(self, members: dict[str, str], dirty: bool = False) -> None:
        """Keep what cannot be stored, with what was to be done, for inspection; ``dirty``: it does not wait for a
        recount any more."""
        k = self.keys
        keys = (k.rejected, k.dirty) if dirty else (k.rejected,)
        flat = [value.encode(errors="surrogateescape") for pair in members.items() for value in pair]
        for i in range(0, len(flat), 2 * PART):
            self.client.run(script("reject"), keys, flat[i : i + 2 * PART])

    def waiting(self) -> Iterator[list[str]]:
        """Members with something to flush, a page at a time; some may come twice."""
        for key in (self.keys.pending, self.keys.flushing):
            cursor = "0"
            while True:
                reply = self.client.call(key, "ZSCAN", key, cursor, "COUNT", PART)
                yield [text(member) for member, _ in pairs(reply[1])]
                if (cursor := text(reply[0])) == "0":
                    break

    # ---------------------------------------------------------------- recount
    def recounted(self) -> str:
        """How far a recount of everyone had come that was interrupted less than an hour ago; empty if none was."""
        return text(self.client.call(self.keys.recounted, "GET", self.keys.recounted) or "")

    def note_recounted(self, position: str) -> None:
        """Keep how far a recount of everyone has come. Empty: to its end."""
        key = self.keys.recounted
        if position:
            self.client.call(key, "SET", key, position, "EX", HOUR)
        else:
            self.client.call(key, "DEL", key)

    # --------------------------------------------------------------- recovery
    def status(self) -> Status:
        """The state of the shard at one moment."""
        k = self.keys
        reply = self.client.run(
            script("status"), (k.state, k.ready, k.pending, k.flushing, k.open, k.dirty, k.rejected), ()
        )
        epoch, completed, server, run_id, ready, batch, waiting, flushing, dirty, now, *sizes = reply
        return Status(
            int(epoch or 0), int(completed or 0), text(server), text(run_id), text(ready), int(batch or 0),
            int(waiting) if waiting else None, int(flushing) if flushing else None, int(dirty) if dirty else None,
            int(now), *sizes,
        )  # fmt: skip

    def info(self) -> dict[str, str]:
        """What the server that holds the shard says of itself, also where CONFIG GET is forbidden."""
        lines = text(self.client.call(self.keys.state, "INFO")).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def monitor(self, heal_after: float) -> Monitored:
        """How many open parts are older than ``heal_after`` seconds, of at most PART; and what has happened so far."""
        args = (math.ceil(heal_after), PART)
        suspected, oldest, *flat = self.client.run(script("monitor"), (self.keys.open, self.keys.stats), args)
        known = {f.name for f in fields(Stats)}
        stats = {name: int(value) for field, value in pairs(flat) if (name := text(field)) in known}
        return Monitored(suspected, oldest, Stats(**stats))

    def recover(self, epoch: int) -> bool:
        """Start an epoch: void what is unflushed. False if Redis is in this epoch, or a later one."""
        k = self.keys
        return bool(
            self.client.run(script("recover"), (k.ready, k.pending, k.flushing, k.state), (epoch, epoch * BATCHES))
        )

    def forget(self) -> None:
        """Have readers count rows until a recovery has recounted everyone, as if this were another Redis."""
        self.client.call(self.keys.state, "HDEL", self.keys.state, "server")
        self.client.call(self.keys.ready, "DEL", self.keys.ready)

    def complete(self, epoch: int) -> bool:
        """End the recovery of this epoch. False if that was done before, or Redis is not the one that was recovered."""
        return bool(self.client.run(script("complete"), (self.keys.ready, self.keys.state), (epoch,)))

    # ---------------------------------------------------------------- healing
    def dirty(self, first: int, number: int) -> list[str]:
        """Users to recount, longest waiting first, from this rank on."""
        last = first + number - 1
        return [text(m) for m in self.client.call(self.keys.dirty, "ZRANGE", self.keys.dirty, first, last)]

    def open_parts(self) -> Iterator[OpenPart]:
        """Every part that has begun and not committed, a page at a time."""
        cursor = "0"
        while True:
            reply = self.client.call(self.keys.open, "HSCAN", self.keys.open, cursor, "COUNT", 100)
            for part, entry in pairs(reply[1]):
                about = json.loads(entry)
                yield OpenPart(text(part), about["seq"], about["began"], about["checked"], about["users"])
            if (cursor := text(reply[0])) == "0":
                return

    def recheck(self, part: str, checked: int | None) -> None:
        """Note when the users of an open part were recounted; None: drop the part, its transaction must be dead."""
        self.client.run(script("recheck"), (self.keys.open,), (part, "" if checked is None else checked))

    def seq(self) -> int:
        """The newest begin or correction."""
        return int(self.client.call(self.keys.state, "HGET", self.keys.state, "seq") or 0)

    def drop_fences(self, before: int) -> None:
        """Drop the fences that are older than every open part."""
        while self.client.run(script("drop_fences"), (self.keys.fences,), (before, PART)) == PART:
            pass
