"""The buffer of a shard in Redis: its reads and writes, a typed method for each script."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from functools import cached_property

from ..conf import options
from ..exceptions import BufferUnavailable
from .cached import MARK_SECONDS, as_integers, is_in_flight, pauses_before_rows
from .commands import OWNERS_PER_CALL, Call, Get, chunked, owners_as_json
from .shard import LEASE, Shard
from .types import NOTHING, Delta, Snapshot, Waiting, decode, parse_int
from .upkeep import Upkeep

CORRECTIONS_PER_CALL = 500
"""The most corrections in one call: a wrong count takes several times as long as a right one."""

WRITES = ("announce", "confirm")
"""Scripts without which Redis does not learn of changes."""


class MustCountRows(BufferUnavailable):
    """Redis answers, but only the rows tell the count: it has lost ``ready`` or refuses changes, another declaration is
    in force, or the owner is in flight."""


class Buffer(Shard):
    """One shard of one counter in Redis."""

    _mark_checked_at = -math.inf  # by the monotonic clock: see MARK_SECONDS

    @cached_property
    def upkeep(self) -> Upkeep:
        """The maintenance of this shard."""
        return Upkeep(self)

    # ------------------------------------------------------------------ reads
    @cached_property
    def trusted(self) -> tuple[str | bytes, str]:
        """The value of ``ready`` when totals were last read, and the beginning of their keys, which depends on it."""
        return "", self.keys.total("0", "")

    def total(self, owner: str, is_sum: object = None) -> int | None:
        """Return a cached total; None if it is not cached, or a mark is to be checked again (MARK_SECONDS). While the
        owner is in flight, ask again for a moment. MustCountRows if it stays so, or no total can be trusted.
        ``is_sum`` is true if the total is a sum, which doesn't tell how many rows there are to count."""
        if not self.is_entered or self.client.breaker.refused_commands:
            self.begin_read()
        pauses, end = None, [owner.encode()]
        while True:
            trusted, prefix = self.trusted
            ready, total = self.client.ask(Get(self.keys.ready, prefix, end))
            if ready != trusted:
                self.trust(ready)
                continue
            try:
                return int(total)
            except (TypeError, ValueError):
                if not is_in_flight(total):
                    return as_integers([total])[0]
            pauses = pauses or pauses_before_rows("" if is_sum else total)
            if (pause := next(pauses, None)) is None:
                if (now := time.monotonic()) - self._mark_checked_at > MARK_SECONDS:
                    self._mark_checked_at = now
                    return None
                raise MustCountRows("The owner is in flight. Reads count rows meanwhile.")
            time.sleep(pause)

    def begin_read(self) -> None:
        """Enter before the first read. MustCountRows if cached counts may be too old."""
        if not self.client.breaker.refused_commands.keys().isdisjoint(WRITES):
            raise MustCountRows(f"Redis (cache {self.client.alias!r}) does not accept changes.")
        if not self.is_entered:
            self.enter()

    def trust(self, ready: str | bytes | None) -> None:
        """Read totals under this value of ``ready`` from now on. MustCountRows if it is missing, or belongs to another
        declaration."""
        if ready is None or not (epoch := self.epoch_in(ready)):
            self.heartbeat()
            raise MustCountRows(f"Redis (cache {self.client.alias!r}) has no counts that are ready.")
        if not self.ttl:  # the Redis of a test database may be emptied between two tests
            self.epoch = max(self.epoch, parse_int(epoch.rstrip("?")) or 0)
        self.trusted = ready, self.keys.total(decode(ready), "")

    def snapshot(self, owners: Sequence[str]) -> Snapshot:
        """Return the changes that wait for these owners."""
        return self._snapshot(owners)

    def take_leases(self, owners: Sequence[str], token: str) -> Snapshot:
        """Return the changes that wait for these owners, and take leases for corrections, under this token."""
        return self._snapshot(owners, "take", token)

    def take_free_leases(self, owners: Sequence[str], token: str) -> Snapshot:
        """Return what waits, but take only leases that nobody holds, and that are of use: to cache a count, or to
        repair it during a recovery."""
        return self._snapshot(owners, "take free", token)

    def end_leases(self, owners: Sequence[str]) -> Snapshot:
        """Return the changes that wait for these owners, and end all leases on them."""
        return self._snapshot(owners, "end")

    def _snapshot(self, owners: Sequence[str], leases: str = "", token: str = "") -> Snapshot:
        ready, epoch, batch, cut, *flat = self.run("snapshot", owners_as_json(owners), leases, token, LEASE)
        waiting = dict.fromkeys(owners, NOTHING)
        for i in range(0, len(flat), 4):
            index, pending, flushing, needs_rows = flat[i : i + 4]
            waiting[owners[index - 1]] = Waiting(parse_int(pending), parse_int(flushing), bool(needs_rows))
        epoch, batch = parse_int(epoch or 0) or 0, parse_int(batch or 0) or 0
        return Snapshot(self.epoch_in(ready), epoch, batch, bool(cut), waiting)

    def keep(self, snapshot: Snapshot, token: str, totals: Mapping[str, int | None]) -> int:
        """Cache totals that follow from a snapshot, for owners whose leases are still ours, and end these. None: the
        total is not known. Returns how many were cached."""
        ready = self.ready_in(snapshot.epoch) + ("?" if snapshot.recovering else "")
        texts = json.dumps(["" if total is None else str(total) for total in totals.values()])
        return self.run("keep", ready, token, options.TOTAL_TTL, owners_as_json(list(totals)), texts)

    # ----------------------------------------------------------------- writes
    def announce(self, intent: str, owners: Sequence[str]) -> None:
        """Announce an intent to change these owners' counts. Do so before the database commits."""
        self.client.ask(self.announce_call(intent, owners_as_json(owners)))

    def announce_call(self, intent: str, owners: str) -> Call:
        """Return the call of ``announce`` for owners as JSON, to be sent together with others. BufferUnavailable if
        Redis is behind the database, because the next flush may come from another Redis (rule: elsewhere)."""
        if not self.is_entered:
            self.enter()
        if self._is_behind:
            raise BufferUnavailable(f"Redis (cache {self.client.alias!r}) is behind the database.")
        return Call(*self.calls["announce"][:-1], (intent, str(self.epoch), owners))

    def confirm(self, intent: str, deltas: Mapping[str, Delta]) -> int:
        """Remove an intent and add its deltas. Returns how many owners must be recounted instead. If one must because
        its delta is too large, raises DeltaTooLarge after all of this is done."""
        call = self.confirm_call(intent, owners_as_json(list(deltas)), list(deltas.values()))
        return self.client.ask(call, urgent=True)

    def confirm_call(self, intent: str, owners: str, deltas: Sequence[Delta]) -> Call:
        """Return the call of ``confirm`` for owners as JSON, to be sent together with others."""
        listed = str(deltas).replace("None", "null")  # as JSON has it
        return Call(*self.calls["confirm"][:-1], (self.fingerprint, intent, owners, listed))

    def fix(
        self, epoch: int, token: str, corrections: dict[str, int], totals: Mapping[str, int] | None = None
    ) -> dict[str, bool]:
        """Add corrections where the lease is still ours, and cache ``totals``, if given. Returns for each owner whether
        it was fixed; False if it was active meanwhile, or is in flight, or if its correction is too large to be added
        at once."""
        fixed = dict.fromkeys(corrections, True)
        few = sum(map(bool, corrections.values())) <= CORRECTIONS_PER_CALL
        for owners in chunked(list(corrections), OWNERS_PER_CALL if few else CORRECTIONS_PER_CALL):
            listed = json.dumps([corrections[owner] for owner in owners])
            repaired = json.dumps([str(totals[owner]) for owner in owners]) if totals else ""
            args = (owners_as_json(owners), listed, repaired, options.TOTAL_TTL)
            for index in self.run("fix", self.ready_in(epoch), token, *args):
                fixed[owners[index - 1]] = False
        return fixed

    def listen(self, seconds: int) -> None:
        """Have owners whose counts change published on the channel ``keys.live`` for some time, as lists in JSON."""
        self.run("listen", seconds)
