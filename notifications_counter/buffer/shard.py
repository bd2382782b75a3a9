"""One shard of one counter in Redis: a typed method for each script."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, Literal, TypeVar

from ..conf import options
from ..exceptions import BufferUnavailable, DatabaseChanged
from .cached import DOUBT_SECONDS, as_integers, is_in_flight, pauses_before_rows
from .client import Argument, Client, Reply
from .keys import Keys
from .pipeline import Call, Get, pipelines_for
from .scripts import script
from .types import (
    NOTHING,
    Cut,
    Delta,
    Intent,
    Monitored,
    Snapshot,
    Stats,
    Status,
    Waiting,
    decode,
    encode,
    pairs,
    parse_int,
)

logger = logging.getLogger("notifications_counter")

BATCHES = 10**9
"""Batches are numbered epoch × BATCHES + cuts in the epoch."""

LEASE = 60
"""Seconds after which a lease is old, or HEAL_AFTER if that is less. Safety does not depend on it."""

USERS_PER_CALL = 1000
"""The most users in one call, so that no script blocks Redis for more than a few milliseconds, or has more than
ARGUMENTS arguments: a user takes three at most."""

CORRECTIONS_PER_CALL = 500
"""The most corrections in one call: a wrong count takes several times as long as a right one."""

WRITES = ("announce", "confirm")
"""Scripts without which Redis does not learn of changes."""

T = TypeVar("T")

IDENTITY = ("run_id", "master_replid")
"""Fields of INFO that name a process and a history of writes. A failover and back changes only the second."""

NAMELESS = "nameless"
"""The name of a server whose INFO is refused, or has none of these fields."""

HEARD_SECONDS = 1
"""Seconds after which a process that counts rows says again that it is alive."""

HOUR = 3600
"""Seconds for which an interrupted recount can be resumed."""

left_databases: set[str] = set()
"""Ids of databases whose keys were left for another database, as far as this process knows."""


def in_calls(users: Sequence[T], most: int = USERS_PER_CALL) -> Iterator[Sequence[T]]:
    """Yield users in groups of at most ``most``, one for each call."""
    for i in range(0, len(users), most):
        yield users[i : i + most]


def as_json(users: Sequence[str]) -> str:
    """Return users as one argument, which is faster than a thousand."""
    return json.dumps(users, ensure_ascii=False)


def totals_of(asked: Sequence[tuple[Buffer, Sequence[bytes]]]) -> list[list[int | None] | None]:
    """Return the cached totals of members in each shard; None for each that is not cached, and for a shard that raises
    BufferUnavailable. All are asked before the first reply is read."""
    found: list[list[int | None] | None] = [None] * len(asked)
    calls: list[tuple[Get, tuple[int, str | bytes]]] = []
    for i, (buffer, members) in enumerate(asked):
        with suppress(BufferUnavailable):
            buffer._before_read()
            seen, prefix = buffer._seen
            calls.append((Get(buffer.keys.ready, prefix, members), (i, seen)))
    pipelines = pipelines_for(asked[0][0].client, calls) if calls else []
    try:
        for pipeline in pipelines:
            pipeline.send(urgent=False)
        for pipeline in pipelines:
            for (i, seen), outcome in pipeline.read():
                if isinstance(outcome, BufferUnavailable):
                    continue
                ready, *totals = outcome
                if ready == seen:
                    found[i] = as_integers(totals)
                    continue
                with suppress(BufferUnavailable):
                    asked[i][0]._follow(ready)
                    (found[i],) = totals_of([asked[i]])
        return found
    finally:
        for pipeline in pipelines:
            pipeline.close()


class _KeysOf(dict[str, list[str]]):
    """The keys of a shard that each script names, looked up once."""

    def __init__(self, keys: Keys):
        self._keys = keys

    def __missing__(self, name: str) -> list[str]:
        keys = self[name] = [getattr(self._keys, key) for key in script(name).keys]
        return keys


class Buffer:
    """One shard of one counter in Redis. Every method raises BufferUnavailable if Redis is unavailable.

    ``ttl``          seconds after which the lasting keys of a test database expire, '' for other databases
    ``fingerprint``  of the counter's declaration
    ``epoch``        that the database knew at first, or a later one that Redis has told
    """

    def __init__(self, client: Client, keys: Keys, ttl: int | str = "", fingerprint: str = "", epoch: int = 0):
        self.client = client
        self.keys = keys
        self.ttl = ttl
        self.fingerprint = fingerprint
        self.epoch = epoch
        self._heard_at = self._doubted_at = -math.inf
        # The value of `ready` when totals were last read, and the beginning of their keys, which depends on it.
        self._seen: tuple[str | bytes, str] = ("", keys.total("0", ""))
        self._keys_of = _KeysOf(keys)
        self._entered = False
        self._is_behind = False

    def _run(self, name: str, *args: Argument, urgent: bool = False) -> Any:
        """Call a script and return its reply."""
        if not self._entered:
            self.enter()
        return self.client.run(script(name), self._keys_of[name], args, urgent)

    def enter(self) -> None:
        """Register these keys as those of the database, before their first use; again, while Redis is behind the
        database.

        This and every other method raises DatabaseChanged if these keys were left.
        """
        id_ = self.keys.base.rpartition(":")[2]
        try:
            is_behind = self.client.run(script("enter"), self._keys_of["enter"], (id_, self.ttl, self.epoch))
        except DatabaseChanged:
            left_databases.add(id_)
            raise
        if is_behind and not self._is_behind:
            about = {"event": "redis_behind", "cache": self.client.alias, "keys": self.keys.base}
            text = (
                "Redis (cache %r) has lost data, or the last run of flush_counters had other settings: another Redis, "
                "or other SHARDS. Counts are read from the rows until flush_counters has run with the same settings as "
                "this process."
            )
            logger.warning(text, self.client.alias, extra=about)
        self._is_behind = bool(is_behind)
        self._entered = not is_behind

    # ------------------------------------------------------------------ reads
    def total(self, member: str) -> int | None:
        """Return a cached total, None if it is not cached. BufferUnavailable also if rows must be counted, because
        Redis is new or has lost ``ready``, or because the user stays in flight."""
        if not self._entered or self.client.breaker.refused:
            self._before_read()
        key, pauses = self.keys.ready, None
        while True:
            seen, prefix = self._seen
            ready, total = self.client.call(key, "MGET", key, prefix + member)
            if ready != seen:
                self._follow(ready)
                continue
            try:
                return int(total)
            except (TypeError, ValueError):
                if not is_in_flight(total):
                    return as_integers([total])[0]
            pauses = pauses or pauses_before_rows(total)
            if (pause := next(pauses, None)) is None:
                if (now := time.monotonic()) - self._doubted_at > DOUBT_SECONDS:
                    self._doubted_at = now
                    return None
                raise BufferUnavailable("The user is in flight. Its rows are counted meanwhile.")
            time.sleep(pause)

    def _before_read(self) -> None:
        """Raise BufferUnavailable if cached counts may be too old."""
        if not self.client.breaker.refused.keys().isdisjoint(WRITES):
            raise BufferUnavailable(f"Redis (cache {self.client.alias!r}) does not accept changes.")
        if not self._entered:
            self.enter()

    def _follow(self, ready: str | bytes | None) -> None:
        """Use another value of ``ready`` from now on. BufferUnavailable if readers must count rows."""
        if ready is None or not (epoch := self._ready(ready)):
            self.be_heard()
            raise BufferUnavailable(f"Redis (cache {self.client.alias!r}) has no counts that are ready.")
        if not self.ttl:  # the Redis of a test database may be emptied between two tests
            self.epoch = max(self.epoch, parse_int(epoch.rstrip("?")) or 0)
        self._seen = ready, self.keys.total(decode(ready), "")

    def _ready(self, value: Any) -> str:
        """Return ``ready`` without the fingerprint of the declaration; empty if the fingerprint is another one."""
        epoch, _, fingerprint = decode(value).partition(":")
        mark = "?" if fingerprint.endswith("?") else ""
        return epoch + mark if fingerprint == self.fingerprint + mark else ""

    def be_heard(self) -> None:
        """Tell Redis that this process is alive, once in HEARD_SECONDS. If it has another declaration of the counter
        than the one in force, all readers count rows until the processes of one of the two are gone."""
        now = time.monotonic()
        if now - self._heard_at > HEARD_SECONDS:
            self._heard_at = now
            self._run("hear", self.fingerprint)

    def group(self, group: str) -> dict[str, int] | None:
        """Return the cached counts of the users whose members begin with ``group``, by the rest of the member. None if
        they are not cached. BufferUnavailable as for ``total``.
        """
        self._before_read()
        key = self.keys.ready
        while True:
            seen = self._seen[0]
            # The counts come first. No value of ready ever comes back, so if it is the same afterwards, it was so then.
            kept: Any = seen and self.client.call(key, "HGETALL", self.keys.group(decode(seen), group))
            ready = self.client.call(key, "GET", key)
            if ready == seen:
                break
            self._follow(ready)
        fields = kept.items() if isinstance(kept, dict) else pairs(kept)  # RESP3 has dictionaries
        counts = {decode(last): parse_int(count) for last, count in fields}
        stamp = counts.pop("", None)
        return None if stamp is None or None in counts.values() else counts  # type: ignore[return-value]

    def prepare_group(self, group: str, token: str) -> str:
        """Prepare to cache the counts of a group, before its rows are counted. Returns what to pass to ``keep_group``;
        empty if the counts cannot be cached."""
        ready = decode(self._run("prepare_group", group, token, LEASE, USERS_PER_CALL))
        return ready if self._ready(ready) else ""

    def keep_group(self, ready: str, group: str, token: str, counts: dict[str, int]) -> bool:
        """Cache the counts of a group, by the rest of the member. Returns False if something has changed meanwhile."""
        left = list(counts.items())
        while True:
            some, left = left[:USERS_PER_CALL], left[USERS_PER_CALL:]
            flat = [value for pair in some for value in pair]
            if not self._run("keep_group", ready, group, token, "" if left else options.TOTAL_TTL, *flat):
                return False
            if not left:
                return True

    def snapshot(
        self, members: Sequence[str], leases: Literal["", "take", "take free", "end"] = "", token: str = ""
    ) -> Snapshot:
        """Return what waits for these users. Also take ``leases`` for their correction, under this token; or only those
        that nobody holds, and only during a recovery; or end all leases on them."""
        ready, epoch, batch, cut, *flat = self._run("snapshot", as_json(members), leases, token, LEASE)
        users = dict.fromkeys(members, NOTHING)
        for i in range(0, len(flat), 4):
            place, pending, flushing, dirty = flat[i : i + 4]
            users[members[place - 1]] = Waiting(parse_int(pending), parse_int(flushing), bool(dirty))
        return Snapshot(self._ready(ready), parse_int(epoch or 0) or 0, parse_int(batch or 0) or 0, bool(cut), users)

    def keep(self, snapshot: Snapshot, totals: dict[str, int]) -> int:
        """Cache totals that follow from the snapshot, for users whose pending delta has not changed since."""
        args: list[Argument] = [self._final(snapshot.epoch), snapshot.batch, int(snapshot.cut), options.TOTAL_TTL]
        for member, total in totals.items():
            args += (member, snapshot.users[member].pending or 0, total)
        return self._run("keep", *args)

    # ----------------------------------------------------------------- writes
    def announce(self, intent: str, members: Sequence[str]) -> Reply:
        """Announce an intent to change these users' counts. Read the reply before the database commits."""
        return self.client.start(*self.announce_call(intent, members))

    def announce_call(self, intent: str, members: Sequence[str]) -> Call:
        """Return the call of ``announce``, to be sent together with others. BufferUnavailable if Redis is behind the
        database, because the next flush may come from another Redis."""
        if not self._entered:
            self.enter()
        if self._is_behind:
            raise BufferUnavailable(f"Redis (cache {self.client.alias!r}) is behind the database.")
        return Call(script("announce"), self._keys_of["announce"], (intent, self.epoch, *members))

    def confirm(self, intent: str, deltas: dict[str, Delta]) -> int:
        """Take an intent back and add its deltas. Returns how many users must be recounted instead."""
        return self.client.run(*self.confirm_call(intent, deltas), urgent=True)

    def confirm_call(self, intent: str, deltas: dict[str, Delta]) -> Call:
        """Return the call of ``confirm``, to be sent together with others."""
        args: list[Argument] = [self.fingerprint, intent]
        for member, delta in deltas.items():
            args += (member, "?" if delta is None else delta)
        return Call(script("confirm"), self._keys_of["confirm"], args)

    def mark_dirty(self, members: Sequence[str]) -> None:
        """Send users to a recount. Until then, readers count their rows."""
        for some in in_calls(members):
            self._run("mark_dirty", *some)

    def fix(
        self, epoch: int, token: str, corrections: dict[str, int], totals: Mapping[str, int] | None = None
    ) -> dict[str, bool]:
        """Add corrections where the lease is still ours, and cache ``totals``, if given. Returns for each user whether
        it was fixed; False if it was active meanwhile, or is in flight."""
        fixed = dict.fromkeys(corrections, True)
        few = sum(map(bool, corrections.values())) <= CORRECTIONS_PER_CALL
        for members in in_calls(list(corrections), USERS_PER_CALL if few else CORRECTIONS_PER_CALL):
            theirs = json.dumps([corrections[member] for member in members])
            adopted = json.dumps([totals[member] for member in members]) if totals else ""
            users = as_json(members)
            for place in self._run("fix", self._final(epoch), token, users, theirs, adopted, options.TOTAL_TTL):
                fixed[members[place - 1]] = False
        return fixed

    def listen(self, seconds: int) -> None:
        """Have lists of users whose counter has changed published on the channel ``keys.live``, as JSON."""
        self._run("listen", seconds)

    # ------------------------------------------------------------------ flush
    def cut(self, epoch: int, finished: int = 0) -> Cut | None:
        """Return the batch to flush. None if nothing waits, or Redis is in another epoch, or behind the last batch that
        the database has ``finished``."""
        batch, size, mark = self._run("cut", epoch, finished)
        return Cut(int(batch), size, decode(mark)) if batch else None

    def fetch(self, batch: int, first: int, last: int) -> list[tuple[str, str]]:
        """Return members of the batch and their deltas, from one rank to another.

        Empty if another batch is under way, and shorter than asked for if the batch ends meanwhile.
        """
        replies = self._fetch(batch, first, last, "")
        return [(decode(member), decode(score)) for flat in replies for member, score in pairs(flat)]

    def fetch_joined(self, batch: int, first: int, last: int, separator: str = ",") -> tuple[str, str] | None:
        """Return the same as two texts of joined values. None if another batch is under way."""
        replies = [reply for reply in self._fetch(batch, first, last, separator) if reply]
        members, scores = (separator.join(decode(reply[i]) for reply in replies) for i in (0, 1))
        return (members, scores) if replies else None

    def _fetch(self, batch: int, first: int, last: int, separator: str) -> Iterator[list[Any]]:
        for rank in range(first, last + 1, USERS_PER_CALL):
            yield self._run("fetch", batch, rank, min(rank + USERS_PER_CALL - 1, last), separator)

    def finish(self, batch: int, mark: str, refused: Sequence[str] = (), seconds: float = 0) -> bool:
        """Drop the batch, which the database now has under this mark. Writing it took this flusher ``seconds``.

        Users whose delta the database refused are recounted. Returns False if another batch is under way.
        """
        first, others = refused[:USERS_PER_CALL], refused[USERS_PER_CALL:]
        self.mark_dirty(others)
        finished = bool(self._run("finish", batch, mark, round(seconds * 1000), *first))
        self.mark_dirty(others)  # again: they may have been recounted before their delta was dropped
        return finished

    def reject(self, members: dict[str, str], dirty: bool = False) -> None:
        """Keep members that cannot be stored, each with its delta, for inspection.

        ``dirty``: they are no longer to be recounted.
        """
        for some in in_calls(list(members.items())):
            flat = [encode(value) for pair in some for value in pair]
            self._run("reject", int(dirty), *flat)

    def waiting(self) -> Iterator[list[str]]:
        """Yield members with something to flush, in pages. A member may come twice."""
        for key in (self.keys.pending, self.keys.flushing):
            for page in self._scan("ZSCAN", key, USERS_PER_CALL):
                yield [decode(member) for member, _ in pairs(page)]

    def _scan(self, command: str, key: str, count: int) -> Iterator[list[Any]]:
        cursor = "0"
        while True:
            reply, page = self.client.call(key, command, key, cursor, "COUNT", count)
            yield page
            if (cursor := decode(reply)) == "0":
                return

    # ---------------------------------------------------------------- recount
    def recounted(self) -> str:
        """Return where a recount of everyone was interrupted, if that was less than an hour ago; else empty."""
        return decode(self.client.call(self.keys.recounted, "GET", self.keys.recounted) or "")

    def note_recounted(self, position: str) -> None:
        """Remember how far a recount of everyone has come. Empty: it is complete."""
        key = self.keys.recounted
        if position:
            self.client.call(key, "SET", key, position, "EX", HOUR)
        else:
            self.client.call(key, "DEL", key)

    # --------------------------------------------------------------- recovery
    def status(self) -> Status:
        """Return the state of the shard at one moment. If Redis has lost whose keys these are, the next call enters
        again."""
        *reply, is_known, unreadable = self._run("status")
        self._entered = self._entered and bool(is_known)
        epoch, declared, foreign, server, ready, batch, mark, counted, waiting, flushing, dirty, now, *sizes = reply
        return Status(
            parse_int(epoch) or 0, decode(declared), parse_int(foreign), decode(server), self._ready(ready),
            parse_int(batch) or 0, decode(mark), parse_int(counted) or 0, parse_int(waiting), parse_int(flushing),
            parse_int(dirty), int(now), bool(unreadable), *sizes,
        )  # fmt: skip

    def info(self) -> dict[str, str]:
        """Return INFO of the server that holds the shard; empty if the server refuses it. Managed servers allow it,
        unlike CONFIG GET."""
        lines = decode(self.client.send(self.keys.state, "INFO").read(may_be_refused=True) or "").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def server(self) -> str:
        """Return the name of the server that holds the shard. It changes with each restart and failover, even one there
        and back. NAMELESS if the server does not tell.

        Scripts do not ask for it, because not every server lets them call INFO.
        """
        info = self.info()
        return " ".join(info[name] for name in IDENTITY if info.get(name)) or NAMELESS

    def monitor(self, heal_after: float) -> Monitored:
        """Return the statistics, and how many intents are older than ``heal_after`` seconds. Looks at about
        USERS_PER_CALL intents at most."""
        overdue, oldest, *flat = self._run("monitor", math.ceil(heal_after), USERS_PER_CALL)
        known = {f.name for f in fields(Stats)}
        stats = {name: parse_int(value) or 0 for field, value in pairs(flat) if (name := decode(field)) in known}
        return Monitored(overdue, oldest, Stats(**stats))

    def recover(self, epoch: int, server: str) -> bool:
        """Start an epoch and its recovery, and drop what is unflushed. Returns False if Redis is in this epoch, or a
        later one.

        Ask for ``server`` before this call: if another one takes over in between, its name will differ.
        """
        return bool(self._run("recover", epoch, epoch * BATCHES, server, self.fingerprint))

    def drop_state(self) -> None:
        """Drop a state that cannot be read, before ``recover`` writes another one."""
        self.client.call(self.keys.state, "DEL", self.keys.state)

    def forget(self, awaited: str = "") -> None:
        """Have readers count rows until a new epoch begins, as if this Redis were new.

        ``awaited`` is the fingerprint of the declaration in force, if the epoch waits for processes of another one.
        """
        self._run("forget", awaited)

    def complete(self, epoch: int, server: str) -> bool:
        """End the recovery of this epoch. Returns False if it had ended before, or if another ``server`` was
        recovered."""
        return bool(self._run("complete", self._final(epoch), server))

    def _final(self, epoch: int) -> str:
        """Return the value of ``ready`` once the recovery of an epoch is complete."""
        return f"{epoch}:{self.fingerprint}"

    # -------------------------------------------------- another number of shards
    def retire(self) -> None:
        """Put the shard out of use, after a change of SHARDS. Only its intents stay."""
        self._run("retire", self.ttl)

    def reuse(self) -> None:
        """Let the shard be used again if it was out of use. It is as if this Redis were new."""
        if decode(self.client.call(self.keys.state, "HGET", self.keys.state, "epoch") or "") == "-1":
            self.client.call(self.keys.ready, "DEL", self.keys.ready, self.keys.state)

    def register(self, intent: str, members: Sequence[str]) -> None:
        """Register an intent of a shard that is out of use."""
        for i, some in enumerate(in_calls(members)):
            self._run("announce", f"{intent}:{i}" if i else intent, 0, *some)

    def drop_intents(self) -> None:
        """Forget all intents, which are registered elsewhere."""
        self.client.call(self.keys.intents, "DEL", self.keys.intents)

    # ---------------------------------------------------------------- healing
    def take_dirty(self, first: int, number: int) -> list[str]:
        """Return users to recount whom nobody else is recounting, longest waiting first, from this rank on."""
        limit = math.ceil(min(LEASE, options.HEAL_AFTER))
        return [decode(member) for member in self._run("take_dirty", first, number, limit, LEASE)]

    def intents(self) -> Iterator[Intent]:
        """Yield every intent that is announced and not confirmed."""
        for page in self._scan("HSCAN", self.keys.intents, 100):
            for intent, entry in pairs(page):
                yield Intent.of(decode(intent), entry)

    def ground(self, intent: str, drop: bool = False) -> None:
        """Send the users of an intent to a recount, which needs no longer wait for it. ``drop`` it if its transaction
        must be dead."""
        self._run("ground", intent, int(drop))
