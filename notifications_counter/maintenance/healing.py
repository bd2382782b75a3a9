"""Any doubt means recount: owners that are marked dirty, owners of transactions that never finished, and everyone after
Redis or the database has lost data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from django.apps import apps
from django.db import OperationalError, connections, transaction
from django.db.models import QuerySet

from ..buffer import Buffer, Status
from ..conf import options
from ..declaration import Declaration
from .audit import Audit
from .history import record_event, record_rejected
from .recount import LARGE_PAGE, PAGE, TARGET_SECONDS, Correction, Recounter, RecountResult
from .shards import (
    damage,
    doubt,
    find_shards,
    put_in_force,
    refuse_in_transaction,
    shard_of,
    shard_row,
    shard_rows,
    shards_in_force,
    start_epoch,
)

UNREADABLE_INTENT = "an open transaction in Redis cannot be read, because something else wrote to it"

FEW = 10
"""Owners in the first look of a heal, and at most PAGE in a later one. A heal can take longer than it should by one
look."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The state of one shard: the ``status`` of its buffer, the name of its Redis ``server``, and from the database its
    ``epoch`` and how far the audit has come."""

    shard: int
    status: Status
    server: str
    epoch: int
    audited: str

    @property
    def recovering(self) -> bool:
        """Whether everyone is being recounted, or will be, because Redis is new, was replaced or has lost data."""
        is_known = self.server == self.status.server and not damage(self.status, self.epoch)
        return not is_known or not self.status.recovered


class Healer:
    """Heals one counter."""

    def __init__(
        self,
        counter: Declaration,
        report: Callable[[Correction], None] | None = None,
        progress: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ):
        self.counter = counter
        self.recounter = Recounter(counter, report)
        self.progress = progress or (lambda checked: None)
        self.stopped = stopped
        self.result = RecountResult()
        self.failures = 0  # in a row
        self.uncounted: OperationalError | None = None

    def status(self) -> list[ShardStatus]:
        """Return the state of each shard."""
        rows = shard_rows(self.counter).filter(shards=options.SHARDS).values_list("shard", "epoch", "audited")
        stored = {shard: about for shard, *about in rows}
        return [
            ShardStatus(shard, buffer.status(), buffer.server(), *stored.get(shard, (0, "")))
            for shard, buffer in enumerate(self.counter.buffers)
        ]

    def heal(self, seconds: float) -> RecountResult:
        """Recover what was lost, then recount owners in doubt for at most ``seconds``. If the database fails to count
        the rows of a few of these, as after a time limit, recount the others before its error is raised."""
        refuse_in_transaction(self.counter.db)
        if not put_in_force(self.counter, find_shards(self.counter)):
            return self.result
        until = time.monotonic() + seconds
        # Everyone in doubt is dirty before an audit begins, which recounts them, too. So nobody is recounted twice.
        self.result.unfinished = not self._doubt_requested(until)
        ready = self._recover(until)
        for buffer in ready:
            self._recount_dirty(buffer, until)
        while self.recounter.started_epoch:
            self.recounter.started_epoch = False
            self._recover(until)
        if self.result.checked:
            record_event("recount", self.counter, self.result)
        if self.uncounted:
            raise self.uncounted
        return self.result

    def _is_over(self, until: float) -> bool:
        return self.stopped() or time.monotonic() > until

    # --------------------------------------------------------------- recovery
    def _recover(self, until: float) -> list[Buffer]:
        """Start an epoch where one is needed, and recount everyone where a recovery is under way, if all requests were
        read. Returns the shards whose dirty owners are to be recounted: the others wait for an epoch, or for the rest
        of an audit, which recounts them anyway."""
        epochs: dict[int, int] = {}
        ready: list[Buffer] = []
        for shard, buffer in enumerate(self.counter.buffers):
            server = buffer.server()
            status = buffer.status()
            stored = shard_row(self.counter, shard).first()
            if stored is None or doubt(status, stored, server):
                start_epoch(self.counter, shard, buffer)
                status = buffer.status()
            if status.recovering:
                epochs[shard] = status.epoch
            if status.ready:
                ready.append(buffer)
        for buffer in ready:
            self._ground(buffer, until)
        audited = [self.counter.buffers[shard] for shard in epochs]
        if epochs and not self.stopped() and not self.result.unfinished:
            audit = Audit(self.counter, self.recounter, epochs, self._checked, lambda: self._is_over(until))
            self.result.unfinished = audit.run()
        return [buffer for buffer in ready if buffer not in audited] if self.result.unfinished else ready

    def _checked(self, result: RecountResult) -> None:
        self.result.add(result)
        self.progress(self.result.checked)

    def invalidate(self) -> None:
        """Start an epoch on every shard. The next heal then recounts everyone."""
        refuse_in_transaction(self.counter.db)
        if not find_shards(self.counter) and shards_in_force(self.counter) != options.SHARDS:
            put_in_force(self.counter, False)
        self._start_epochs("the database was restored from a backup")

    def _start_epochs(self, reason: str) -> None:
        for shard, buffer in enumerate(self.counter.buffers):
            start_epoch(self.counter, shard, buffer, reason)

    # ---------------------------------------------------------------- healing
    def _ground(self, buffer: Buffer, until: float) -> None:
        """Recount the users of intents that were announced long ago, and again whenever an intent's age has doubled."""
        now = buffer.status().now
        for intent in buffer.intents():
            if intent.users is None:  # nobody knows whose counts it was going to change
                shard = shard_of(self.counter, buffer)
                self.recounter.started_epoch |= start_epoch(self.counter, shard, buffer, UNREADABLE_INTENT)
                buffer.ground(intent.id, drop=True)
                continue
            age, age_then = now - intent.began, intent.checked - intent.began
            dead = age >= options.MAX_TRANSACTION_AGE
            young = 0 <= age < max(options.HEAL_AFTER, 2 * age_then)  # below 0: the clock was set back
            if young and not dead or self._is_over(until):
                continue
            buffer.ground(intent.id, dead)

    def _doubt_requested(self, until: float) -> bool:
        """Do what RecountRequests ask for, and delete exactly those that were read. Their transactions have committed,
        so from now on a count of rows sees their changes. Returns whether all are done; those that another flusher has
        locked are its own."""
        model = apps.get_model("notifications_counter", "RecountRequest")
        requests: QuerySet = QuerySet(model, using=self.counter.db).filter(counter=self.counter.name)
        if not requests.exists():
            return True
        can_skip = connections[self.counter.db].features.has_select_for_update_skip_locked
        following = (requests.select_for_update(skip_locked=True) if can_skip else requests).order_by("pk")
        while True:
            with transaction.atomic(using=self.counter.db) if can_skip else nullcontext():
                found = list(following.values_list("pk", "owner", "everyone")[:LARGE_PAGE])
                if not found:
                    return True
                if any(everyone for *_, everyone in found):
                    self._start_epochs("a statement did not say whose counts it changed")
                owners = dict.fromkeys(member for _, member, everyone in found if not everyone)
                for buffer, members in self.counter.by_shard(list(owners)):
                    buffer.mark_dirty(members)
                requests.filter(pk__in=[pk for pk, *_ in found]).delete()
            following = following.filter(pk__gt=found[-1][0])  # PostgreSQL would read deleted rows again and again
            if self._is_over(until):
                return False

    def _recount_dirty(self, buffer: Buffer, until: float) -> None:
        """Recount dirty owners whom no other flusher is recounting, oldest first, a few at a time because their number
        of rows is not known. Look at least once, so that each heal makes progress, however slow the machine is."""
        left, size = 0, FEW  # left: how many stay dirty, because they are active all the time, or cannot be counted
        while not self.stopped() and (members := buffer.take_dirty(left, size)):
            started = time.monotonic()
            strays = self._strays(buffer, members)
            buffer.reject(strays, dirty=True)
            record_rejected(self.counter, strays)
            try:
                found = self.recounter.recount(m for m in members if m not in strays)
            except OperationalError as error:
                buffer.snapshot(members, "end")  # look at one after the other
                self.failures += 1
                if self.failures > FEW or not connections[self.counter.db].is_usable():  # it is not the owner
                    raise
                if len(members) == 1:
                    self.uncounted = error
                    left += 1
                size = 1
                until += time.monotonic() - started
            else:
                self.result.add(found)
                self.failures = 0
                if found.in_doubt:
                    buffer.snapshot(members, "end")  # the next run comes back to them at once
                    left += found.in_doubt
                size = min(2 * size, PAGE) if time.monotonic() - started < TARGET_SECONDS else max(size // 2, 1)
            if time.monotonic() > until:
                self.result.unfinished = True
                return

    def _strays(self, buffer: Buffer, members: Sequence[str]) -> dict[str, str]:
        """Return members that belong to another shard. A release with other owners has marked them, so everyone was
        recounted since."""
        if len(self.counter.buffers) == 1:
            return {}
        return {m: "recount" for m in members if self.counter.buffer_of(m).keys.base != buffer.keys.base}
