"""Heals a counter: recovers from a loss of data, then recounts dirty owners, and those of RecountRequests and overdue
intents."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

from django.db import OperationalError, connections, transaction

from ..buffer import Buffer
from ..conf import options
from ..databases.routing import own_rows
from ..declaration import Declaration
from .audit import Audit
from .epochs import reason_for_epoch, start_epoch, start_epochs
from .history import record, record_rejected
from .in_force import begin_run, is_in_force, put_in_force, shards_in_force
from .recount import FIRST_SIZE, LARGE_PAGE, PAGE, Difference, Recounter, RecountResult, next_size
from .shard_rows import refuse_in_transaction, shard_row

UNREADABLE_INTENT = "an intent in Redis cannot be read, because something else wrote to it"

FAILURES = 10
"""How many looks in a row may fail before the database is at fault, not the owners."""


def invalidate(counter: Declaration) -> None:
    """Discard what Redis holds, because the database was restored. The next heal recounts everyone."""
    refuse_in_transaction(counter.db)
    rows = begin_run(counter)
    if not is_in_force(counter, rows) and shards_in_force(counter) != options.SHARDS:
        put_in_force(counter, rows)
    start_epochs(counter, "the database was restored from a backup")


class Healer:
    """Heals one counter."""

    def __init__(
        self,
        counter: Declaration,
        report: Callable[[Difference], None] | None,
        progress: Callable[[int], None] | None,
        stopped: Callable[[], bool],
    ):
        self.counter = counter
        self.recounter = Recounter(counter, report)
        self.result = self.recounter.result
        self.progress = progress or (lambda checked: None)
        self.stopped = stopped
        self.until = 0.0
        self.failures = 0  # in a row
        self.uncounted: OperationalError | None = None

    def heal(self, seconds: float) -> RecountResult:
        """Recover from a loss of data, then recount dirty owners for at most ``seconds``. If the database fails to
        count the rows of a few of these, as after a time limit, recount the others before its error is raised."""
        refuse_in_transaction(self.counter.db)
        if not put_in_force(self.counter, begin_run(self.counter)):
            return self.result
        self.until = time.monotonic() + seconds
        # The owners of requests become dirty before an audit, which recounts them, too, so that is not done twice.
        self.result.unfinished = not self._do_requests()
        for buffer in self._recover():
            self._recount_dirty(buffer)
        while self.recounter.started_epoch:
            self.recounter.started_epoch = False
            self._recover()
        if self.result.checked:
            record("recount", self.counter, self.result)
        if self.uncounted:
            raise self.uncounted
        return self.result

    def _is_over(self) -> bool:
        return self.stopped() or time.monotonic() > self.until

    # --------------------------------------------------------------- recovery
    def _recover(self) -> list[Buffer]:
        """Start an epoch where one is needed, and recount everyone where a recovery is under way, if all requests were
        read. Returns the shards whose dirty owners are to be recounted. In the others, they wait for an epoch, or for
        the rest of an audit, which recounts them anyway."""
        epochs: dict[int, int] = {}
        ready: list[Buffer] = []
        for buffer in self.counter.buffers:
            server = buffer.upkeep.server()
            status = buffer.upkeep.status()
            row = shard_row(self.counter, buffer.shard).first()
            if row is None or reason_for_epoch(status, row, server):
                start_epoch(self.counter, buffer)
                status = buffer.upkeep.status()
            if status.recovering:
                epochs[buffer.shard] = status.epoch
            if status.ready:
                ready.append(buffer)
        for buffer in ready:
            self._ground(buffer)
        audited = {*epochs}
        if epochs and not self.stopped() and not self.result.unfinished:
            self.result.unfinished = Audit(self.counter, self.recounter, epochs, self.progress, self._is_over).run()
        return [buffer for buffer in ready if buffer.shard not in audited] if self.result.unfinished else ready

    # ---------------------------------------------------------------- healing
    def _ground(self, buffer: Buffer) -> None:
        """Ground overdue intents, and each of them again whenever its age has doubled. `stays`: an intent is dropped
        only when its transaction must be dead."""
        now = buffer.upkeep.status().now
        for intent in buffer.upkeep.intents():
            if intent.owners is None:  # nobody knows whose counts it was going to change
                self.recounter.started_epoch |= start_epoch(self.counter, buffer, UNREADABLE_INTENT)
                buffer.upkeep.drop(intent.id)
                continue
            age, age_then = now - intent.began, intent.checked - intent.began
            dead = age >= options.MAX_TRANSACTION_AGE
            young = 0 <= age < max(options.HEAL_AFTER, 2 * age_then)  # below 0: the clock was set back
            if (dead or not young) and not self._is_over():
                (buffer.upkeep.drop if dead else buffer.upkeep.ground)(intent.id)

    def _do_requests(self) -> bool:
        """Mark the owners of RecountRequests dirty, start an epoch if one is for everyone, and delete exactly the
        requests that were read. Their transactions have committed, so a count of rows sees their changes. Returns
        whether all are done, except for those that another flusher has locked."""
        requests = own_rows("RecountRequest", self.counter.db).filter(counter=self.counter.name)
        if not requests.exists():
            return True
        can_skip = connections[self.counter.db].features.has_select_for_update
        following = (requests.select_for_update(skip_locked=True) if can_skip else requests).order_by("pk")
        while True:
            with transaction.atomic(using=self.counter.db) if can_skip else nullcontext():
                found = list(following.values_list("pk", "owner", "everyone", named=True)[:LARGE_PAGE])
                if not found:
                    return True
                if any(request.everyone for request in found):
                    # rules: always, epoch_first: before the requests are deleted
                    start_epochs(self.counter, "a statement did not say whose counts it changed")
                owners = dict.fromkeys(request.owner for request in found if not request.everyone)
                for buffer, owner_keys in self.counter.by_shard(list(owners)):
                    buffer.mark_dirty(owner_keys)
                requests.filter(pk__in=[request.pk for request in found]).delete()
            following = following.filter(pk__gt=found[-1].pk)  # PostgreSQL would read deleted rows again and again
            if self._is_over():
                return False

    def _recount_dirty(self, buffer: Buffer) -> None:
        """Recount dirty owners whom no other flusher is recounting, oldest first, a few at a time because their number
        of rows is not known. Look at least once, so that each heal makes progress, however slow the machine is: it can
        take longer than it should by one look."""
        left, size = 0, FIRST_SIZE  # left: owners who are active all the time, or cannot be counted, and stay dirty
        while not self.stopped() and (owner_keys := buffer.upkeep.take_dirty(left, size)):
            started, postponed = time.monotonic(), self.result.postponed
            by_shard = {each.shard: mine for each, mine in self.counter.by_shard(owner_keys)}
            mine = by_shard.pop(buffer.shard, ())
            # A release with other owners has marked these, and everyone was recounted since.
            strays = [owner_key for others in by_shard.values() for owner_key in others]
            try:
                rejected = [*strays, *self.recounter.recount(mine)]
                record_rejected(self.counter, buffer.upkeep.reject_dirty(dict.fromkeys(rejected, "unknown")))
            except OperationalError as error:
                buffer.end_leases(owner_keys)  # look at one at a time
                self.failures += 1
                if self.failures > FAILURES or not connections[self.counter.db].is_usable():  # it is not the owner
                    raise
                if len(owner_keys) == 1:
                    self.uncounted = error
                    left += 1
                size = 1
                self.until += time.monotonic() - started
            else:
                self.failures = 0
                if self.result.postponed > postponed:
                    buffer.end_leases(owner_keys)  # the next run comes back to them at once
                    left += self.result.postponed - postponed
                size = next_size(size, started, PAGE)
            if time.monotonic() > self.until:
                self.result.unfinished = True
                return
