"""What is in force: a declaration of a counter, or that counting is off, as the rows of its shards say."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import connections, transaction
from django.utils import timezone

from ..buffer import Buffer
from ..buffer.buffer import OFF_SECONDS
from ..buffer.keys import Keys
from ..buffer.types import OFF
from ..conf import options
from ..databases.identity import identify
from ..declaration import Declaration, switched_off
from ..exceptions import BufferUnavailable
from ..models import CounterShard
from .history import record
from .shards import deploy_seconds, is_window_over, refuse_in_transaction, shard_rows


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
    record(event, counter, level=logging.WARNING if old else logging.INFO, wait=round(_window(rows)))
    return rows


def _window(rows: list[CounterShard]) -> float:
    """Return for how many seconds readers go on to count rows after this was declared."""
    return deploy_seconds() + (rows[0].declared_at - timezone.now()).total_seconds()


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
    return _window(rows)


def off_since(rows: Iterable[CounterShard | None]) -> datetime | None:
    """Return when counting was switched off, None if it is on, as the rows of a counter say."""
    return next((row.declared_at for row in rows if row is not None and row.fingerprint == OFF), None)


def when_all_tell() -> datetime:
    """Return when all processes will know that counting is on, if it has just been switched on: some have believed the
    opposite until OFF_SECONDS before, and executed a statement since."""
    return timezone.now() + timedelta(seconds=2 * OFF_SECONDS)
