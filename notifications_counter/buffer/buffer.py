"""The buffer of a counter in Redis: what is read and written there, as methods. Those that ask Redis raise
BufferUnavailable if it does not answer or refuses, except those for reads."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any
from uuid import uuid4

from ..conf import options
from ..exceptions import BufferUnavailable
from ..redis.calls import MAX_ARGUMENTS, MAX_REASON_LENGTH, Argument, Call, Scripts, T, chunked, command
from ..redis.client import Client
from ..redis.replies import as_bytes, as_integer, as_pairs, as_text
from .types import (
    OFF,
    OWNERS_PER_CALL,
    BufferStatus,
    Delta,
    Fetched,
    IntentAge,
    Lease,
    Look,
    as_json,
    parse_ready,
    total_in,
)

SCRIPTS = Scripts(__package__)

LEASE_SECONDS = 10
"""Seconds after which a lease ends. Safety does not depend on it."""

OWNERS_PER_READ = MAX_ARGUMENTS - 1
"""The most owners whose totals one call reads."""

EXACT_LIMIT = 2**53
"""Redis adds integers below this exactly. A larger change is unknown to it."""

OFF_SECONDS = 5
"""Seconds for which a process that has met that counting is off asks no more."""

ANNOUNCED, COUNTING_IS_OFF = 1, 2
"""What Redis replies to an announcement. Any other reply refuses it."""

IDENTITY_FIELDS = ("run_id", "master_replid")
"""Fields of INFO that name a process and a history of writes. A failover and back changes only the second."""

NAMELESS = "nameless"
"""The name of a server whose INFO is refused, or has none of these fields."""


class Buffer:
    """One counter in Redis.

    ``base``           the beginning of all its keys. The hash tag in it keeps them on one node of a cluster
    ``fingerprint``    of the counter's declaration
    ``expects_state``  whether a flusher has served the counter, as far as is known, so that Redis has `state`
    """

    silent_until = 0.0  # by the monotonic clock; infinite, for all buffers, if there is no hook

    def __init__(self, client: Client, base: str, fingerprint: str, expects_state: bool):
        self.client = client
        self.base = base
        self.fingerprint = fingerprint
        self.expects_state = expects_state
        self._ready = self.key("ready")
        # The last value of `ready`, and the prefix of its totals. Threads change both at once.
        self._trusted: tuple[str | bytes, str] = "", self.key(":")

    def key(self, name: str) -> str:
        """Return a key of the counter. Scripts build the same: see ``shared.lua``."""
        return f"{self.base}:{name}"

    def _script(self, name: str, *args: Argument) -> Call:
        """Return the call of a script. One key is enough: it builds the others from this."""
        return SCRIPTS.call(name, [self._ready], *args)

    def _run(self, name: str, *args: Argument) -> Any:
        """Run a script and return its reply."""
        return self.client.ask(self._script(name, *args))[0]

    # ------------------------------------------------------------------ reads: none of these raises
    def totals(self, pks: Sequence[T]) -> tuple[dict[T, int], list[T]]:
        """Return the cached totals of up to OWNERS_PER_READ owners, given by primary keys, and those owners whose
        totals nobody has cached. Redis vouches for nothing of the others: they are in flight, or leased, or everyone is
        in doubt, another declaration is in force, counting is off, or Redis does not answer.

        The key of a total contains the generation. So the first round trip guesses that it is still the last one that
        was seen, and reads `ready` along with the totals. If that has changed, a second one asks again.
        """
        if self.is_silent:
            return {}, []
        trusted, prefix = self._trusted
        [reply] = self.client.send([command("MGET", self._ready, *[f"{prefix}{pk}" for pk in pks])])
        if isinstance(reply, BufferUnavailable):
            return {}, []
        ready, *values = reply
        if ready != trusted:
            return self.totals(pks) if self._trust(ready) else ({}, [])
        try:
            return dict(zip(pks, map(int, values), strict=True)), []  # nearly always, all are there
        except (TypeError, ValueError):
            totals = dict(zip(pks, map(as_integer, values), strict=True))
            missing = [pk for pk, value in zip(pks, values, strict=True) if value is None]
            return {pk: total for pk, total in totals.items() if total is not None}, missing

    def _trust(self, ready: str | bytes | None) -> bool:
        """Read totals under this value of ``ready`` from now on. Returns False if there are none: it is missing, says
        that counting is off, or belongs to another declaration."""
        text = as_text(ready or "")
        if text == OFF:
            self.fall_silent()
        generation, fingerprint = parse_ready(text)
        if fingerprint != self.fingerprint:  # rule: declared_read
            return False
        self._trusted = ready or "", self.key(f"{generation}:")
        self.expects_state = True
        return True

    def fall_silent(self) -> None:
        """Assume for at least OFF_SECONDS that counting is off."""
        self.silent_until = max(self.silent_until, time.monotonic() + OFF_SECONDS)

    @property
    def is_silent(self) -> bool:
        """Whether this process takes counting for off, and tells Redis nothing."""
        return self.silent_until > time.monotonic()

    def lease(self, owner_keys: Sequence[str]) -> Lease:
        """Take leases on owners whose totals are not cached, unless they are in flight, or somebody has one."""
        token = uuid4().hex
        args = as_json(owner_keys), self.fingerprint, token, str(LEASE_SECONDS)
        [reply] = self.client.send([self._script("lease", *args)])
        if isinstance(reply, BufferUnavailable):
            return Lease(token, frozenset())
        return Lease(token, frozenset(owner_keys[index - 1] for index in reply))

    def keep(self, lease: Lease, counts: Mapping[str, int]) -> None:
        """Cache counts of rows for owners whose leases are still there."""
        kept = {owner_key: count for owner_key, count in counts.items() if owner_key in lease.owner_keys}
        if kept:
            texts = json.dumps(list(map(str, kept.values())))
            args = lease.token, str(options.TOTAL_TTL), as_json(list(kept)), texts
            self.client.send([self._script("keep", *args)])  # the counts are right, whether Redis answers or not

    # ----------------------------------------------------------------- writes
    def announcement(self, intent: str, owner_keys: Sequence[str]) -> Call:
        """Return the call that announces an intent to change these owners' counts, before the database commits. The
        reply is ANNOUNCED, COUNTING_IS_OFF, or 0 if Redis is new or was emptied."""
        return self._script("announce", intent, as_json(owner_keys), "1" if self.expects_state else "")

    def confirmation(self, intent: str, owner_keys: Sequence[str], deltas: Sequence[Delta]) -> Call:
        """Return the call that removes an intent and adds the deltas of its owners."""
        exact = ["null" if delta is None or abs(delta) >= EXACT_LIMIT else str(delta) for delta in deltas]
        return self._script("confirm", self.fingerprint, intent, as_json(owner_keys), f"[{','.join(exact)}]")

    def doubt(self, owner_keys: Sequence[str]) -> None:
        """Put owners in doubt, so that readers count their rows; EVERYONE until a generation begins. If Redis refuses,
        this process must not read what is cached any more."""
        for some in chunked(owner_keys, OWNERS_PER_CALL):
            self.client.ask(self._script("doubt", *some)._replace(must_arrive=True))

    def await_generation(self) -> None:
        """Put everyone in doubt until a generation begins, and take announcements."""
        self.client.ask(command("DEL", self._ready))
        self.client.ask(command("HSET", self.key("state"), "mark", ""))
        self.expects_state = True

    def switch_off(self) -> None:
        """Let readers count rows, and writers tell Redis nothing, until ``await_generation``."""
        self.client.ask(command("SET", self._ready, OFF))

    def listen(self, seconds: int) -> None:
        """Have owners whose counts change published on the channel ``live`` for some time, as lists in JSON."""
        self.client.ask(command("SET", self.key("listeners"), "1", "EX", str(seconds)))

    # ------------------------------------------------------------------ flush
    def cut(self, mark: str, batch: str, new: str) -> tuple[str, int]:
        """Turn what is pending into a ``new`` batch, or take the one that is under way. Returns its id and size; '' and
        0 if nothing waits, or Redis and the database, which has this mark of a ``batch``, do not agree."""
        found, size = self._run("cut", mark, batch, new)
        return as_text(found), size

    def fetch(self, first: int, last: int) -> list[Fetched]:
        """Return owners of the batch, from one rank to another."""
        found: list[Fetched] = []
        for rank in range(first, last + 1, OWNERS_PER_CALL):
            page, cached = self._run("fetch", str(rank), str(min(rank + OWNERS_PER_CALL - 1, last)))
            found += map(Fetched, map(as_text, page[::2]), map(as_integer, page[1::2]), map(total_in, cached))
        return found

    def drop(self, batch: str, mark: str) -> int | None:
        """Drop the batch, which the database has under this mark. Returns for how many seconds its oldest change has
        waited; None if another batch is under way."""
        waited: int | None = self._run("drop", batch, mark)
        return waited

    # ------------------------------------------------------------------- heal
    def status(self) -> BufferStatus:
        """Return the state of the counter at one moment."""
        return BufferStatus.of(self._run("status"))

    def server(self) -> str:
        """Return the name of the server that holds the counter. It changes with each restart and failover, even after a
        failover and back. NAMELESS if the server does not report it.

        Scripts do not ask for it, because not every server lets them call INFO.
        """
        [info] = self.client.infos(self.key("state"))
        return " ".join(info[name] for name in IDENTITY_FIELDS if info.get(name)) or NAMELESS

    def begin_generation(self, generation: str, server: str, seconds: float) -> bool:
        """Begin a generation. Returns False if Redis has said until recently that counting is off: some processes may
        still believe it, or be in transactions of up to so many ``seconds`` that began then. Ask for ``server`` before
        this call: if another one takes over in between, its name will differ."""
        wait = f"{2 * OFF_SECONDS + seconds:.0f}"
        return bool(self._run("begin_generation", generation, self.fingerprint, server, wait))

    def intents(self) -> Iterator[IntentAge]:
        """Yield every intent that is announced and not confirmed."""
        for page in self._scan("HSCAN", "intents"):
            yield from (IntentAge.of(as_text(intent), entry) for intent, entry in as_pairs(page))

    def waiting(self) -> Iterator[Sequence[str]]:
        """Yield lists of the owner keys whose counts are to be flushed. An owner may be in several."""
        for name in ("pending", "flushing"):  # in the order in which owners move on
            for page in self._scan("ZSCAN", name):
                yield from chunked(list(map(as_text, page[::2])), OWNERS_PER_CALL)

    def _scan(self, name: str, key: str) -> Iterator[Any]:
        """Yield pages of a hash or a sorted set, as replies of this command."""
        cursor = "0"
        while True:
            [(reply, page)] = self.client.ask(command(name, self.key(key), cursor, "COUNT", "100"))
            yield page
            if (cursor := as_text(reply)) == "0":
                return

    def ground(self, intent: str, drop: bool = False) -> None:
        """Doubt the owners of an intent whose transaction may still commit; ``drop`` it if that must be dead."""
        self._run("ground", as_bytes(intent), "1" if drop else "")

    def note_run(self, failure: str = "") -> None:
        """Note that the flusher has just run, and why it failed, if it did."""
        fields = "ran_at", f"{time.time():.0f}", "failure", failure[:MAX_REASON_LENGTH]
        self.client.ask(command("HSET", self.key("state"), *fields))

    # ---------------------------------------------------------------- compare
    def look(self, pks: Sequence[T]) -> dict[T, Look]:
        """Return what Redis holds of owners at one moment, at most OWNERS_PER_CALL, by primary keys."""
        epoch, *lists = self._run("look", as_json(list(map(str, pks))))
        return dict(zip(pks, map(Look, repeat(tuple(map(as_text, epoch))), *lists), strict=True))
