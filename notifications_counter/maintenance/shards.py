"""The shards of a counter in the database: their epochs, batches and audits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from django.apps import apps
from django.conf import settings
from django.db import connections, transaction
from django.db.models import Max, QuerySet
from django.utils import timezone

from ..buffer import Buffer, Status
from ..buffer.shard import BATCHES
from ..buffer.types import Cut
from ..conf import options
from ..declaration import Declaration, switched_off
from ..declaration.databases import identify, in_transaction, look_up_changed
from ..exceptions import NotInTransaction
from .history import record_event

AHEAD = 1000
"""Epochs that Redis may be ahead of the database, as after a backup was restored. One that is further ahead was not
written by the app. If it were taken over, the numbers could run out."""

OTHER_REDIS = "Redis is new, was restarted or replaced, or lost data"


def _rows(using: str) -> QuerySet[Any]:
    return QuerySet(apps.get_model("notifications_counter", "CounterShard"), using=using)


def shard_rows(counter: Declaration) -> QuerySet[Any]:
    """Return the rows of all shards of a counter, including those of an earlier number of shards."""
    return _rows(counter.db).filter(counter=counter.name)


def shard_row(counter: Declaration, shard: int) -> QuerySet[Any]:
    """Return the row of one shard, as a queryset."""
    return shard_rows(counter).filter(shard=shard, shards=options.SHARDS)


def shard_of(counter: Declaration, buffer: Buffer) -> int:
    """Return the number of a shard. Threads may each have made their own buffers."""
    return [other.keys for other in counter.buffers].index(buffer.keys)


def _make_row(counter: Declaration, shard: int, **defaults: Any) -> None:
    """Add the row of a shard if it is missing."""
    _rows(counter.db).get_or_create(counter=counter.name, shard=shard, shards=options.SHARDS, defaults=defaults)


def damage(status: Status, epoch: int) -> str:
    """Return what shows that this Redis is not in the shard's ``epoch``, or has lost data; empty if nothing does."""
    if not epoch:
        return "its first audit begins"
    if status.unreadable:
        return "the key `state` in Redis cannot be read, because something else wrote to it"
    if status.epoch != epoch or status.batch // BATCHES != epoch or status.ready.rstrip("?") != str(epoch):
        return OTHER_REDIS
    return f"Redis has lost the key `{status.lost_key}`" if status.lost_key else ""


def doubt(status: Status, stored: Any, server: str) -> str:
    """Return why everyone must be recounted; empty if there is no reason.

    This is certain only if ``status`` was read while the shard's row, ``stored``, was locked. Otherwise a batch that
    another flusher finishes in between looks like a lost one.
    """
    if stored.epoch and not stored.finished:
        return "SHARDS has changed"
    if status.declared not in ("", stored.declared):
        return "the declaration of the counter has changed"
    if status.foreign_at is not None:
        return "processes with a different declaration of the counter were running"
    if found := damage(status, stored.epoch):
        return found
    if status.server != server or status.batch < stored.finished:
        return OTHER_REDIS
    if status.finished > stored.finished or (status.finished == stored.finished and status.mark != stored.batch_id):
        return "the database went back in time"
    return ""


def _lock(counter: Declaration, shard: int) -> dict[str, Any]:
    """Lock a shard until the transaction ends, and return its row by counter.

    Counters whose totals are in the same rows are locked together. Otherwise two flushers could each wait for rows that
    the other has locked.
    """
    names = [sharing.name for sharing in counter.sharing]
    rows = _rows(counter.db).filter(counter__in=names, shard=shard, shards=options.SHARDS)
    return {stored.counter: stored for stored in rows.order_by("counter").select_for_update()}


def lock_for_batch(counter: Declaration, shard: int, cut: Cut, first: int) -> Any:
    """Lock the shard until the transaction ends. Returns its row, or None if users of the batch from rank ``first`` on
    may not be written.

    A database that went back in time lacks the previous batch, has another one under its number, or lacks the beginning
    of this one.
    """
    stored = _lock(counter, shard).get(counter.name)
    if stored is None or stored.epoch != cut.batch // BATCHES or cut.batch <= stored.closed:
        return None
    if stored.declared != counter.fingerprint:
        return None
    if stored.finished >= cut.batch:  # another flusher was faster; its rows refuse the batch
        return stored
    continues = stored.finished == cut.batch - 1 and stored.batch_id == cut.mark and stored.progress >= first
    return stored if continues else None


def note_progress(stored: Any, cut: Cut, end: int) -> None:
    """Note in the locked row of a shard that a batch is written up to rank ``end``, in the transaction that writes it.
    A finished batch gets a random id."""
    if cut.batch <= stored.finished:
        return
    if end < cut.size:
        stored.progress = max(stored.progress, end)
    else:
        stored.finished, stored.batch_id, stored.progress = cut.batch, uuid4().hex, 0
    stored.save(update_fields=["finished", "batch_id", "progress"])


def reject_batches_up_to(counter: Declaration, shard: int, batches: Mapping[Declaration, int]) -> bool:
    """Lock the shard until the transaction ends, and accept no batch up to these anymore, for each counter whose totals
    are in the same rows. Returns False if a batch belongs to another epoch."""
    stored = _lock(counter, shard)
    for sharing, batch in batches.items():
        if sharing.name not in stored or stored[sharing.name].epoch != batch // BATCHES:
            return False
    for sharing, batch in batches.items():
        shard_row(sharing, shard).filter(closed__lt=batch).update(closed=batch)
    return True


def start_epoch(counter: Declaration, shard: int, buffer: Buffer, reason: str = "", ahead: int = 0) -> bool:
    """Start an epoch if there is a reason: the given one, or one that ``doubt`` finds. ``ahead`` is a batch that was
    found in the totals; it is a reason if Redis has not cut it yet. The epoch lies above it, and above those that Redis
    and the rows of the shards know. If other totals have later batches, the audit meets them, and starts another epoch.

    The lock is held until Redis and the database both know the epoch. Otherwise two processes could take turns forever.

    Returns False if there is no reason, because another process has just started an epoch; if the epoch must wait for
    processes of another declaration, during which readers count rows; or if other SHARDS are in force now.
    """
    rows = shard_row(counter, shard)
    if not rows.exists() and not shard_rows(counter).exclude(shards=options.SHARDS).exists():
        _make_row(counter, shard, declared=counter.fingerprint)
    with transaction.atomic(using=counter.db):
        stored = rows.select_for_update().first()
        if stored is None:
            return False
        server = buffer.server()
        status = buffer.status()
        reason = reason or doubt(status, stored, server)
        if not reason and ahead > status.batch:
            reason = "a stored total has a batch that is still to come"
        if not reason:
            return False
        if stored.declared != counter.fingerprint or is_too_early(stored, status, deploy_seconds(buffer)):
            buffer.forget(stored.declared)
            return False
        highest = shard_rows(counter).aggregate(Max("epoch"))["epoch__max"]
        if status.unreadable or status.epoch > highest + AHEAD:
            buffer.drop_state()
            status = buffer.status()
        epoch = max(highest, status.epoch, ahead // BATCHES) + 1
        buffer.recover(epoch, server)
        rows.update(epoch=epoch, finished=epoch * BATCHES, batch_id="", progress=0, audited="")
    level = logging.WARNING if stored.epoch else logging.INFO
    record_event("recovery", counter, level=level, reason=reason, shard=shard, epoch=epoch)
    return True


def deploy_seconds(buffer: Buffer) -> float:
    """Return how long an epoch waits for processes of another declaration: DEPLOY_SECONDS; unless the site sets it, not
    at all in development and in test databases."""
    return options.DEPLOY_SECONDS if options.is_set("DEPLOY_SECONDS") or not (settings.DEBUG or buffer.ttl) else 0


def is_too_early(stored: Any, status: Status, wait: float) -> bool:
    """Return whether processes of another declaration may still be running. Those that know this counter are heard of;
    others get ``wait`` seconds from the change on."""
    seconds = [(timezone.now() - stored.declared_at).total_seconds()]
    if status.foreign_at is not None:
        seconds.append(status.now - status.foreign_at)
    return min(seconds) < wait


_started: dict[tuple[str, str], tuple[int, bool]] = {}
"""SHARDS, and whether it and a counter's declaration were in force when this process last healed it, by counter and
database."""


def put_in_force(counter: Declaration, is_in_force: bool) -> bool:
    """Put this process's declaration of a counter, and its SHARDS, in force, if others are and this process heals the
    counter for the first time. If it did so in each run, two processes with different settings would take turns
    forever.

    Returns whether they are in force now.
    """
    about = counter.name, identify(connections[counter.db]).id
    shards, was_in_force = _started.get(about, (0, False))
    is_first = shards != options.SHARDS  # a test may change it
    if not is_in_force and is_first:
        if not _replace(counter):
            return False
        is_in_force = True
        record_event("declared", counter, level=logging.WARNING, wait=deploy_seconds(counter.buffers[0]))
    elif not is_in_force and was_in_force and not is_first:
        record_event("replaced", counter, level=logging.ERROR)
    _started[about] = options.SHARDS, is_in_force
    return is_in_force


def _replace(counter: Declaration) -> bool:
    """Use this process's declaration, and its number of shards. What waits in the old shards is dropped, because
    everyone will be recounted. Transactions under way are registered in the new ones: one that has not committed yet
    when its users are recounted, and whose process is killed when it has, would leave no trace.

    It may be killed between any two steps, and begun again by a process with either number: the rows of both are there
    until the end. Returns False if another process has put its number in force meanwhile.
    """
    declaration = {"declared": counter.fingerprint, "declared_at": timezone.now()}
    rows, number = shard_rows(counter), options.SHARDS
    highest = rows.exclude(shards=number).aggregate(Max("epoch"))["epoch__max"]
    if highest is not None:
        for shard in range(number):
            _make_row(counter, shard, **declaration, epoch=highest)
    database = identify(connections[counter.db])
    with transaction.atomic(using=counter.db):
        old = [row for row in rows.order_by("pk").select_for_update() if row.shards != number]
        if old and rows.filter(shards=number).count() < number:
            return False
        rows.filter(shards=number).update(**declaration)  # locks SQLite, too
        for buffer in counter.buffers if old else ():
            buffer.reuse()
        for row in old:
            retired = counter.make_buffer(database, row.shard, row.shards)
            retired.retire()
            for intent in retired.intents():
                for buffer, members in counter.by_shard(intent.users or ()):
                    buffer.register(intent.id, members)
            retired.drop_intents()
            row.delete()
    return True


def shards_in_force(counter: Declaration) -> int:
    """Return the number of shards that the flusher uses; this process's own if it has not run yet."""
    found = set(shard_rows(counter).values_list("shards", flat=True))
    return options.SHARDS if options.SHARDS in found or not found else found.pop()


def find_shards(counter: Declaration) -> bool:
    """Ask the database for its id again, because it may have been emptied or replaced. Each run begins with this.
    Returns whether the counter's declaration and SHARDS are in force.

    A counter that is switched off is forgotten: its changes are not recorded, so everyone must be recounted once it is
    switched on again.
    """
    database = look_up_changed(connections[counter.db])
    off = switched_off(counter.source_label)
    is_in_force = True
    for row in _rows(counter.db).filter(counter__in=[counter.name, *off]):
        if row.counter == counter.name:
            is_in_force &= (row.declared, row.shards) == (counter.fingerprint, options.SHARDS)
            continue
        buffer = off[row.counter].make_buffer(database, row.shard, row.shards)
        buffer.client.call(buffer.keys.ready, "DEL", buffer.keys.ready)
        row.delete()
    return is_in_force


def kept_though_off(counter: Declaration) -> list[str]:
    """Return the built-in counters of the same source that are switched off in this process, but that no run of the
    flusher has forgotten."""
    off = switched_off(counter.source_label)
    return list(_rows(counter.db).filter(counter__in=off).values_list("counter", flat=True).distinct()) if off else []


def refuse_in_transaction(using: str) -> None:
    """Raise NotInTransaction inside a transaction, where a flush or a recount could neither commit nor see what others
    commit."""
    if in_transaction(connections[using]):
        raise NotInTransaction(
            "A flush or a recount cannot run inside a transaction: it would remove changes from Redis that may still "
            "be rolled back, and miss what others commit. Call it outside of atomic() and of transactions begun by raw "
            "SQL, with autocommit switched on."
        )
