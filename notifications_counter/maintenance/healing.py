"""Any doubt means recount: owners marked dirty, owners of transactions that never finished, and everyone after Redis or
the database has lost data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from django.apps import apps
from django.db.models import QuerySet

from ..buffer import Buffer, Status
from ..conf import options
from ..declaration import Declaration
from .history import record_event
from .recount import PAGE, TARGET_SECONDS, Correction, Recounter, RecountResult
from .shards import damage, doubt, find_shards, put_in_force, refuse_in_transaction, shard_row, start_epoch

FEW, MANY = 10, 100
"""Owners in one look of a heal: at first, and at most. A run can be late by as long as one look takes."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The state of one shard: ``status`` of its Redis, the name of its ``server``, and the ``epoch`` and audit in the
    database."""

    shard: int
    status: Status
    server: str
    epoch: int
    audited: str

    @property
    def recovering(self) -> bool:
        """Whether everyone is being recounted, or about to be, because Redis is new or not the one that was left."""
        is_known = self.server == self.status.server and not damage(self.status, self.epoch)
        return not is_known or not self.status.recovered


class Healer:
    """Heals one counter."""

    def __init__(self, counter: Declaration, report: Callable[[Correction], None] | None = None):
        self.counter = counter
        self.recounter = Recounter(counter, report)

    def status(self) -> list[ShardStatus]:
        """The state of each shard."""
        found = []
        for shard, buffer in enumerate(self.counter.buffers):
            stored = shard_row(self.counter, shard).first()
            about = (stored.epoch, stored.audited) if stored else (0, "")
            found.append(ShardStatus(shard, buffer.status(), buffer.server(), *about))
        return found

    def heal(
        self, seconds: float, progress: Callable[[int], None] | None, stopped: Callable[[], bool]
    ) -> RecountResult:
        """Recover what was lost, then recount owners in doubt for at most ``seconds``."""
        refuse_in_transaction(self.counter.db)
        result = RecountResult()
        if not put_in_force(self.counter, find_shards(self.counter)):
            return result
        self._doubt_requested(seconds, stopped)
        ready = self._recover(result, progress, stopped)
        until = time.monotonic() + seconds

        def enough() -> bool:
            return stopped() or time.monotonic() > until

        for buffer in ready:
            self._doubt_open(buffer, enough)
        for buffer in ready:
            self._recount_dirty(buffer, result, enough)
        if self.recounter.started_epoch:
            self._recover(result, progress, stopped)
        if result.checked:
            record_event("recount", self.counter, result)
        return result

    # --------------------------------------------------------------- recovery
    def _recover(
        self, result: RecountResult, progress: Callable[[int], None] | None, stopped: Callable[[], bool]
    ) -> list[Buffer]:
        """Start an epoch where one is needed, and recount everyone where one has begun. Returns the shards that are in
        one: some may have to wait for it."""
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
        if epochs and not stopped():
            self._audit(epochs, result, progress, stopped)
        return ready

    def invalidate(self) -> None:
        """Start an epoch on every shard. The next heal then recounts everyone."""
        refuse_in_transaction(self.counter.db)
        find_shards(self.counter)
        self._start_epochs("the database was restored from a backup")

    def _start_epochs(self, reason: str) -> None:
        for shard, buffer in enumerate(self.counter.buffers):
            start_epoch(self.counter, shard, buffer, reason)

    def _audit(
        self,
        epochs: dict[int, int],
        result: RecountResult,
        progress: Callable[[int], None] | None,
        stopped: Callable[[], bool],
    ) -> None:
        """Recount everyone in these shards, from where their last audit ended, and complete their recovery."""
        buffers = self.counter.buffers
        stored = {shard: shard_row(self.counter, shard).filter(epoch=epoch) for shard, epoch in epochs.items()}
        ends = {row.values_list("audited", flat=True).first() or "" for row in stored.values()}
        for page in self.recounter.pages(ends.pop() if len(ends) == 1 else ""):
            result.add(self.recounter.recount_page(page, [buffers[shard] for shard in stored]))
            # A shard in which another epoch has begun is left out.
            stored = {shard: row for shard, row in stored.items() if row.update(audited=page.end)}
            if not stored:
                return
            if progress:
                progress(result.checked)
            if stopped():
                return
        for shard, row in stored.items():
            if buffers[shard].complete(epochs[shard], buffers[shard].server()):
                row.update(audited="")
                record_event("recovered", self.counter, shard=shard, epoch=epochs[shard])

    # ---------------------------------------------------------------- healing
    def _doubt_open(self, buffer: Buffer, enough: Callable[[], bool]) -> None:
        """Send users of parts that are open for too long to a recount, and again whenever their age has doubled."""
        now = buffer.status().now
        oldest = buffer.seq() + 1
        for part in buffer.open_parts():
            oldest = min(oldest, part.seq)
            age, age_then = now - part.began, part.checked - part.began
            dead = age >= options.MAX_TRANSACTION_AGE
            young = 0 <= age < max(options.HEAL_AFTER, 2 * age_then)  # below 0: the clock was set back
            if young and not dead or enough():
                continue
            buffer.mark_dirty(part.users)
            buffer.recheck(part.id, None if dead else now)
        buffer.drop_fences(oldest)

    def _doubt_requested(self, seconds: float, stopped: Callable[[], bool]) -> None:
        """Do what RecountRequests ask for, and delete exactly those that were read. Their transactions have committed,
        so a count of rows from here on sees their changes."""
        model = apps.get_model("notifications_counter", "RecountRequest")
        requests: QuerySet = QuerySet(model, using=self.counter.db).filter(counter=self.counter.name)
        until = time.monotonic() + seconds
        while not stopped() and time.monotonic() < until:
            found = list(requests.order_by("pk").values_list("pk", "owner", "everyone")[:PAGE])
            if not found:
                return
            if any(everyone for *_, everyone in found):
                self._start_epochs("a statement did not say whose counts it changed")
            for buffer, members in self.counter.by_shard(list(dict.fromkeys(m for _, m, all_ in found if not all_))):
                buffer.mark_dirty(members)
            requests.filter(pk__in=[pk for pk, *_ in found]).delete()

    def _recount_dirty(self, buffer: Buffer, result: RecountResult, enough: Callable[[], bool]) -> None:
        """Recount dirty owners, oldest first, a few at a time: how long that takes is known only afterwards."""
        seen: set[str] = set()
        first, size = 0, FEW
        while not enough():
            page = buffer.dirty(first, size)
            members = [member for member in page if member not in seen]
            if not page:
                return
            if not members:  # still dirty: they were active all the time
                first += len(page)
                continue
            seen.update(members)
            started = time.monotonic()
            result.add(self.recounter.recount(members))
            size = min(2 * size, MANY) if time.monotonic() - started < TARGET_SECONDS else max(size // 2, 1)
