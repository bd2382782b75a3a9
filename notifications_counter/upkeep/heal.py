"""Heals a counter: puts its declaration in force, doubts whom RecountRequests and overdue intents name, begins a
generation if Redis or the database has lost something, and walks over everyone if that is due."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from django.db import connections, transaction
from django.utils import timezone

from ..buffer import Buffer
from ..buffer.keys import Keys
from ..buffer.types import OFF
from ..conf import options
from ..databases.identity import identify
from ..declaration import Declaration, switched_off
from ..exceptions import BufferUnavailable
from ..models import CounterShard, RecountRequest
from ..sql.everyone import PAGE
from ..writes.transaction import doubt
from .history import record
from .shards import (
    begin_generation,
    deploy_seconds,
    is_window_over,
    lost,
    off_since,
    refuse_in_transaction,
    shard_row,
    shard_rows,
    when_all_tell,
)
from .walk import Difference, Result, Walker, note_mismatches


class Healer:
    """Heals one counter."""

    def __init__(
        self,
        counter: Declaration,
        report: Callable[[Difference], None] | None = None,
        progress: Callable[[int], None] = lambda compared: None,
        stopped: Callable[[], bool] = lambda: False,
    ):
        self.counter = counter
        self.report = report or (lambda difference: None)
        self.progress = progress
        self.stopped = stopped

    def heal(self, seconds: float) -> Result:
        """Heal, and walk: at full speed for about ``seconds``, or a page of a gentle walk if it is due."""
        counter, until = self.counter, time.monotonic() + seconds
        refuse_in_transaction(counter.db)
        if not put_in_force(counter):
            return Result()
        walker = Walker(counter)
        is_done = self._doubt_requested()
        for buffer in counter.buffers:
            self._ground(buffer)
            row, status = shard_row(counter, buffer.shard).first(), buffer.status()
            if status.ready == OFF:  # Redis is as it was before somebody switched counting on
                declare(counter, OFF)
                switch_on(counter)
                return Result()
            if row is not None and lost(status, row, buffer.server()):
                begin_generation(counter, buffer)
        if not is_done and not self._doubt_requested():  # before, the keys may have been out of use
            raise BufferUnavailable("Redis is unavailable, so RecountRequests wait.")
        walker.result.unfinished = walker.walk_together(
            self.progress, lambda: self.stopped() or time.monotonic() > until
        )
        note_mismatches(counter, walker.mismatches)
        for difference in walker.mismatches:
            self.report(difference)
        return walker.result

    def _doubt_requested(self) -> bool:
        """Put in doubt whom RecountRequests name, and delete exactly the requests that were read. Their transactions
        have committed, so a count of rows sees their changes. Returns False if Redis refuses."""
        rows = RecountRequest.objects.using(self.counter.db)
        requests = rows.filter(counter=self.counter.name).order_by("pk")
        while found := list(requests.values_list("pk", "owner", "everyone")[:PAGE]):
            owners = {(self.counter, None if everyone else owner) for _, owner, everyone in found}
            if doubt(owners):
                return False
            rows.filter(pk__in=[pk for pk, *_ in found]).delete()
            requests = requests.filter(pk__gt=found[-1][0])  # PostgreSQL would read deleted rows again and again
        return True

    def _ground(self, buffer: Buffer) -> None:
        """Ground overdue intents, and each of them again whenever its age has doubled. Drop those whose transaction
        must be dead (rule: stays)."""
        now = buffer.status().now
        for intent in buffer.intents():
            age, age_then = now - intent.began, intent.checked - intent.began
            is_dead = intent.owners is None or age >= options.MAX_TRANSACTION_AGE
            is_young = 0 <= age < max(options.HEAL_AFTER, 2 * age_then)  # below 0: the clock was set back
            if is_dead:
                buffer.ground(intent.id, drop=True)
            elif not is_young and not self.stopped():
                buffer.ground(intent.id)


# ------------------------------------------------------------------- declarations
def put_in_force(counter: Declaration) -> bool:
    """Put this process's declaration of a counter, and its SHARDS, in force, but only when it heals the counter for the
    first time: otherwise, two processes with different code would take turns forever. Returns whether a generation may
    begin or has begun: not if others are in force, nor for ``deploy_seconds`` after it, when readers count rows, nor
    while counting is off."""
    fingerprint = counter.fingerprint_with(options.SHARDS)
    known = identify(connections[counter.db]).in_force
    _forget_switched_off(counter)
    rows = list(shard_rows(counter))
    in_force = OFF if off_since(rows) else fingerprint
    if not _is_declared(rows, in_force):
        if known.get(counter.name) == fingerprint:
            record("replaced", counter, level=logging.ERROR)
            return False
        rows = declare(counter, in_force)
    if in_force == OFF:
        tell_off(counter)
        return False
    known[counter.name] = fingerprint
    if min(row.declared_at for row in rows) > when_all_tell():  # the clock of who declared it was ahead
        shard_rows(counter).update(declared_at=timezone.now())
        rows = list(shard_rows(counter))
    return is_window_over(rows)


def declare(counter: Declaration, fingerprint: str) -> list[CounterShard]:
    """Put this process's declaration, or OFF, and its number of shards in force. What waits in the shards of another
    number is dropped. Returns the rows."""
    database = identify(connections[counter.db])
    with transaction.atomic(using=counter.db):
        old = list(shard_rows(counter).select_for_update())
        if _is_declared(old, fingerprint):  # by another flusher, meanwhile
            return old
        shard_rows(counter).delete()
        for row in old:
            if row.shards != options.SHARDS:
                counter.make_buffer(database, row.shard, row.shards).retire()  # rule: unknown_redis
        event = "off" if fingerprint == OFF else "on" if off_since(old) else "declared"
        about = {"counter": counter.name, "shards": options.SHARDS, "fingerprint": fingerprint}
        about["declared_at"] = when_all_tell() if event == "on" else timezone.now()
        new = [CounterShard(shard=shard, **about) for shard in range(options.SHARDS)]
        CounterShard.objects.using(counter.db).bulk_create(new, ignore_conflicts=True)  # of another flusher
        rows = list(shard_rows(counter).select_for_update())
        if any(row.mark for row in rows):  # it has begun a generation
            return rows
        for buffer in counter.buffers if event != "off" else ():
            buffer.reset()
    record(event, counter, level=logging.WARNING if old else logging.INFO, wait=deploy_seconds())
    return rows


def _is_declared(rows: list[CounterShard], fingerprint: str) -> bool:
    return {row.fingerprint for row in rows} == {fingerprint} and len(rows) == options.SHARDS


def _forget_switched_off(counter: Declaration) -> None:
    """Forget built-in counters of the same rows that are switched off: nobody tells Redis of their changes, so everyone
    must be counted once they are switched on again."""
    for row in CounterShard.objects.using(counter.db).filter(counter__in=switched_off(counter.source_label)):
        database = identify(connections[counter.db])
        keys = Keys(options.KEY_PREFIX, row.counter, row.shard, row.shards, database.id)
        Buffer(counter.buffers[0].client, keys).reset()
        row.delete(using=counter.db)
        database.in_force.pop(row.counter, None)


def invalidate(counter: Declaration) -> None:
    """Discard what Redis holds, because the database was restored. The next heal walks over everyone."""
    refuse_in_transaction(counter.db)
    if put_in_force(counter):
        for buffer in counter.buffers:
            begin_generation(counter, buffer, "the database was restored from a backup")


# ------------------------------------------------------------------------- the switch
def switch_off(counter: Declaration) -> bool:
    """Have readers count rows and writers tell nobody. Returns whether Redis knows. Otherwise, the next heal tells
    it."""
    refuse_in_transaction(counter.db)
    declare(counter, OFF)
    try:
        tell_off(counter)
    except BufferUnavailable:
        return False
    return True


def tell_off(counter: Declaration) -> None:
    """Tell Redis that counting is off. The rows are locked, so that nobody switches it on meanwhile."""
    with transaction.atomic(using=counter.db):
        if off_since(shard_rows(counter).select_for_update()):
            for buffer in counter.buffers:
                buffer.switch_off()


def switch_on(counter: Declaration) -> float:
    """Have writers tell Redis again, as after a change of the declaration. Returns for how many seconds readers go on
    to count rows. BufferUnavailable if Redis can't be told; then counting stays off."""
    refuse_in_transaction(counter.db)
    rows = declare(counter, counter.fingerprint_with(options.SHARDS))
    return deploy_seconds() + (rows[0].declared_at - timezone.now()).total_seconds()
