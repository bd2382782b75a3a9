"""The shards of a counter in the database: their epochs, and how far an audit has come."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import connections, transaction
from django.db.models import Max, QuerySet

from ..buffer import Buffer, Status
from ..buffer.shard import BATCHES
from ..conf import options
from ..databases import look_up_changed
from ..declaration import Declaration
from ..exceptions import NotInTransaction, ShardsChanged


def shard_rows(counter: Declaration) -> QuerySet[Any]:
    """Return the rows of all shards of a counter, including those of an earlier number of shards."""
    model = apps.get_model("notifications_counter", "CounterShard")
    return QuerySet(model, using=counter.db).filter(counter=counter.name)


def shard_row(counter: Declaration, shard: int) -> QuerySet[Any]:
    """Return the row of one shard, as a queryset."""
    return shard_rows(counter).filter(shard=shard, shards=options.SHARDS)


def epoch_of(counter: Declaration, shard: int, lock: bool = False) -> int:
    """The epoch of a shard, 0 before its first. Locked, it stays so until the transaction ends."""
    epochs = shard_row(counter, shard).values_list("epoch", flat=True)
    return (epochs.select_for_update() if lock else epochs).first() or 0


def is_known_server(status: Status, epoch: int) -> bool:
    """Return whether this is the Redis of the last recovery: the same epoch, not restarted, and ``ready`` not lost."""
    evicted = status.completed == epoch and not status.ready
    return bool(status.epoch == epoch and epoch and status.server == status.run_id and not evicted)


def accepts_batch(counter: Declaration, shard: int, batch: int) -> bool:
    """Lock the shard until the transaction ends. Returns whether this batch may be written."""
    stored = shard_row(counter, shard).select_for_update().values_list("epoch", "closed").first()
    return stored is not None and stored[0] == batch // BATCHES and batch > stored[1]


def reject_batches_up_to(counter: Declaration, shard: int, batch: int) -> bool:
    """Lock the shard until the transaction ends, and accept no batch up to this one any more.

    False if the batch belongs to another epoch.
    """
    if epoch_of(counter, shard, lock=True) != batch // BATCHES:
        return False
    shard_row(counter, shard).filter(closed__lt=batch).update(closed=batch)
    return True


def start_epoch(counter: Declaration, shard: int, buffer: Buffer, always: bool = False) -> int | None:
    """Start an epoch above all earlier ones in Redis and in the database. None if another process has just done so.

    The lock is held until both know the epoch, or two processes could take turns for ever. ``always``: start one also
    if this is the Redis of the last recovery.
    """
    shard_rows(counter).model._default_manager.using(counter.db).get_or_create(
        counter=counter.name, shard=shard, shards=options.SHARDS
    )
    with transaction.atomic(using=counter.db):
        stored = epoch_of(counter, shard, lock=True)
        status = buffer.status()
        if is_known_server(status, stored) and not always:
            return None
        highest = shard_rows(counter).aggregate(Max("epoch"))["epoch__max"]
        epoch = max(highest, status.epoch) + 1
        buffer.recover(epoch)
        shard_row(counter, shard).update(epoch=epoch, audited="")
    return epoch


def find_shards(counter: Declaration) -> None:
    """Ask the database for its id again, as each run does: it may have been emptied or replaced.

    ShardsChanged while anything waits under another number of shards; else that number is forgotten, but not its
    epoch: the totals know its batches."""
    database = look_up_changed(connections[counter.db])
    for old in shard_rows(counter).exclude(shards=options.SHARDS):
        buffer = counter.make_buffer(database, old.shard, old.shards)
        status = buffer.status()
        if status.pending or status.flushing or status.open or status.dirty:
            raise ShardsChanged(
                f"SHARDS was changed from {old.shards} to {options.SHARDS} while changes of counter {counter.name!r} "
                f"wait in Redis. Set it back to {old.shards}, run `manage.py flush_counters` until it says that there "
                "is nothing to flush, then change it with no other process running."
            )
        buffer.client.call(buffer.keys.ready, "DEL", buffer.keys.ready)
        shard_rows(counter).get_or_create(counter=counter.name, shard=0, shards=options.SHARDS)
        with transaction.atomic(using=counter.db):
            shard_rows(counter).filter(shards=options.SHARDS, epoch__lt=old.epoch).update(epoch=old.epoch, audited="")
            old.delete()


def refuse_in_transaction(using: str) -> None:
    """Raise NotInTransaction if a flush or a recount could not commit, nor see what others commit."""
    connection = connections[using]
    if connection.in_atomic_block or not connection.get_autocommit():
        raise NotInTransaction(
            "A flush or a recount cannot run inside a transaction: it would remove changes from Redis that may still "
            "be rolled back, and miss what others commit. Call it outside of atomic()."
        )
