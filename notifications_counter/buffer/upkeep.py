"""The maintenance of a shard in Redis: its flushes, recounts, recoveries and monitoring."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ..conf import options
from .commands import OWNERS_PER_CALL, chunked, owners_as_json
from .shard import LEASE, Shard
from .types import AnnouncedIntent, Cut, LastRun, Monitored, Status, decode, encode, pairs

BATCHES = 10**9
"""Batches are numbered epoch × BATCHES + cuts in the epoch."""

IDENTITY = ("run_id", "master_replid")
"""Fields of INFO that name a process and a history of writes. A failover and back changes only the second."""

NAMELESS = "nameless"
"""The name of a server whose INFO is refused, or has none of these fields."""

HOUR = 3600
"""Seconds for which an interrupted recount can be resumed."""

DAY = 86400
"""Seconds for which the last run of the flusher is known."""

REASON = 500
"""The most characters of a failure that are noted."""


class Upkeep:
    """The maintenance of one shard, which no reader or writer of the site needs."""

    def __init__(self, shard: Shard):
        self._shard, self._client, self._keys, self._run = shard, shard.client, shard.keys, shard.run

    # ------------------------------------------------------------------ flush
    def cut(self, epoch: int, finished: int = 0) -> Cut | None:
        """Return the batch to flush. None if nothing waits, or Redis is in another epoch, or behind the last batch that
        the database has ``finished``."""
        batch, size, batch_id = self._run("cut", epoch, finished)
        return Cut(int(batch), size, decode(batch_id)) if batch else None

    def fetch(self, batch: int, first: int, last: int) -> list[tuple[str, str]]:
        """Return owners of the batch and their deltas, from one rank to another.

        Empty if another batch is under way, and shorter than asked for if the batch ends meanwhile.
        """
        replies = self._fetch(batch, first, last, "")
        return [(decode(owner), decode(score)) for flat in replies for owner, score in pairs(flat)]

    def fetch_joined(self, batch: int, first: int, last: int, separator: str = ",") -> tuple[str, str] | None:
        """Return owners of the batch and their deltas, as two texts of joined values. None if another batch is under
        way."""
        replies = [reply for reply in self._fetch(batch, first, last, separator) if reply]
        owners, scores = (separator.join(decode(reply[i]) for reply in replies) for i in (0, 1))
        return (owners, scores) if replies else None

    def _fetch(self, batch: int, first: int, last: int, separator: str) -> Iterator[list[Any]]:
        for rank in range(first, last + 1, OWNERS_PER_CALL):
            yield self._run("fetch", batch, rank, min(rank + OWNERS_PER_CALL - 1, last), separator)

    def finish(self, batch: int, batch_id: str, refused: Sequence[str] = ()) -> bool:
        """Drop the batch, which the database now has under this id.

        Owners whose delta the database refused are recounted. Returns False if another batch is under way.
        """
        first, others = refused[:OWNERS_PER_CALL], refused[OWNERS_PER_CALL:]
        self._shard.mark_dirty(others)
        finished = bool(self._run("finish", batch, batch_id, *first))
        self._shard.mark_dirty(others)  # again: they may have been recounted before their delta was dropped
        return finished

    def reject(self, deltas: dict[str, str]) -> dict[str, str]:
        """Keep deltas that cannot be stored, by owner key, for inspection. Returns those that were not kept yet."""
        return self._reject(deltas, 0)

    def reject_dirty(self, reasons: dict[str, str]) -> dict[str, str]:
        """Move dirty owners that cannot be recounted to ``rejected``. Returns those that were not there before."""
        return self._reject(reasons, 1)

    def _reject(self, about: dict[str, str], dirty: int) -> dict[str, str]:
        new: dict[str, str] = {}
        for some in chunked(list(about.items()), OWNERS_PER_CALL):
            flat = [encode(value) for pair in some for value in pair]
            new |= dict(some[i - 1] for i in self._run("reject", dirty, *flat))
        return new

    def waiting(self) -> Iterator[list[str]]:
        """Yield owners with something to flush, in pages. An owner may come twice."""
        for key in (self._keys.pending, self._keys.flushing):
            for page in self._scan("ZSCAN", key, OWNERS_PER_CALL):
                yield [decode(owner) for owner, _ in pairs(page)]

    # ---------------------------------------------------------------- recount
    def recounted(self) -> str:
        """Return where a recount of everyone was interrupted, if that was less than an hour ago; else empty."""
        return decode(self._client.call(self._keys.recounted, "GET", self._keys.recounted) or "")

    def note_recounted(self, position: str) -> None:
        """Remember how far a recount of everyone has come. Empty: it is complete."""
        key = self._keys.recounted
        if position:
            self._client.call(key, "SET", key, position, "EX", HOUR)
        else:
            self._client.call(key, "DEL", key)

    # --------------------------------------------------------------- recovery
    def status(self) -> Status:
        """Return the state of the shard at one moment. If Redis has lost the registration of these keys, the next call
        enters again."""
        state, others = ({decode(name): value for name, value in pairs(flat)} for flat in self._run("status"))
        if not others.pop("known"):
            self._shard.is_entered = False
        return Status.of(state, {**others, "ready": self._shard.epoch_in(others["ready"])})

    def info(self) -> dict[str, str]:
        """Return INFO of the server that holds the shard; empty if the server refuses it."""
        return self._client.info(self._keys.state)

    def server(self) -> str:
        """Return the name of the server that holds the shard. It changes with each restart and failover, even after a
        failover and back. NAMELESS if the server does not report it.

        Scripts do not ask for it, because not every server lets them call INFO.
        """
        info = self.info()
        return " ".join(info[name] for name in IDENTITY if info.get(name)) or NAMELESS

    def monitor(self, heal_after: float) -> Monitored:
        """Return how many intents are older than ``heal_after`` seconds, and the last run of the flusher. Looks at
        about OWNERS_PER_CALL intents at most."""
        overdue, last_run = self._run("monitor", math.ceil(heal_after), OWNERS_PER_CALL)
        return Monitored(overdue, LastRun.of(decode(last_run)))

    def note_run(self, failure: str = "") -> None:
        """Note that the flusher has just run, and why it failed, if it did."""
        key, run = self._keys.last_run, LastRun(time.time(), failure[:REASON])
        self._client.call(key, "SET", key, json.dumps(run), "EX", DAY)

    def recover(self, epoch: int, server: str) -> bool:
        """Start an epoch and its recovery, and drop unflushed changes. Returns False if Redis is in this epoch, or a
        later one.

        Ask for ``server`` before this call: if another one takes over in between, its name will differ.
        """
        return bool(self._run("recover", epoch, epoch * BATCHES, server, self._shard.fingerprint))

    def drop_state(self) -> None:
        """Drop a state that cannot be read, before ``recover`` writes another one."""
        self._client.call(self._keys.state, "DEL", self._keys.state)

    def forget(self, awaited: str = "") -> None:
        """Have readers count rows until a new epoch begins, as if this Redis were new.

        ``awaited`` is the fingerprint of the declaration in force, if the epoch waits for processes of another one.
        """
        self._run("forget", awaited)

    def complete(self, epoch: int, server: str) -> bool:
        """End the recovery of this epoch. Returns False if it had ended before, or if another ``server`` was
        recovered."""
        return bool(self._run("complete", self._shard.ready_in(epoch), server))

    # -------------------------------------------------- another number of shards
    def retire(self) -> None:
        """Put the shard out of use, after a change of SHARDS. Only its intents stay."""
        self._run("retire", self._shard.ttl)

    def reuse(self) -> None:
        """Put the shard back into use if it is retired, as if this Redis were new."""
        if decode(self._client.call(self._keys.ready, "GET", self._keys.ready) or "") == "retired":
            self._client.call(self._keys.ready, "DEL", self._keys.ready)

    def register(self, intent: str, owners: Sequence[str]) -> None:
        """Announce an intent of a retired shard here, in any epoch."""
        for i, some in enumerate(chunked(owners, OWNERS_PER_CALL)):
            self._run("announce", f"{intent}:{i}" if i else intent, 0, owners_as_json(some))

    def drop_intents(self) -> None:
        """Drop all intents, which are registered elsewhere."""
        self._client.call(self._keys.intents, "DEL", self._keys.intents)

    # ---------------------------------------------------------------- healing
    def take_dirty(self, first: int, number: int) -> list[str]:
        """Return a ``number`` of dirty owners that nobody else is recounting, longest waiting first, from a rank on."""
        limit = math.ceil(min(LEASE, options.HEAL_AFTER))
        return [decode(owner) for owner in self._run("take_dirty", first, number, limit, LEASE)]

    def intents(self) -> Iterator[AnnouncedIntent]:
        """Yield every intent that is announced and not confirmed."""
        for page in self._scan("HSCAN", self._keys.intents, 100):
            for intent, entry in pairs(page):
                yield AnnouncedIntent.of(decode(intent), entry)

    def ground(self, intent: str) -> None:
        """Send the owners of an intent to a recount that does not wait for it."""
        self._run("ground", intent, 0)

    def drop(self, intent: str) -> None:
        """Send the owners of an intent to a recount, and drop it, because its transaction must be dead."""
        self._run("ground", intent, 1)

    def _scan(self, command: str, key: str, count: int) -> Iterator[list[Any]]:
        cursor = "0"
        while True:
            reply, page = self._client.call(key, command, key, cursor, "COUNT", count)
            yield page
            if (cursor := decode(reply)) == "0":
                return
