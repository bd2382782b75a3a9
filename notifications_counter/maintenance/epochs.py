"""Epochs of a shard. When one begins, everyone is recounted.

There are two ways to ask for that. A flusher or a command calls ``start_epoch``, which begins an epoch at once, under
the lock of the shard's row. Any other process leaves a RecountRequest for everyone, and the flusher's next run begins
the epoch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from ..buffer import Buffer, Status
from ..buffer.upkeep import BATCHES
from ..conf import options
from ..declaration import Declaration
from .history import record
from .shard_rows import make_row, shard_row, shard_rows

AHEAD = 1000
"""How many epochs Redis may be ahead of the database, as after a backup was restored. The app has not written one that
is further ahead. If it went on from there, the numbers could run out."""

OTHER_REDIS = "Redis is new, was restarted or replaced, or lost data"


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The state of one shard: the ``status`` of its buffer and the name of its Redis ``server``; and from the database,
    its ``epoch``, how far the audit has come and, for the first shard, how far the comparison of everyone has come."""

    shard: int
    status: Status
    server: str
    epoch: int
    audited: str
    verified: str

    @property
    def is_incomplete(self) -> bool:
        """Whether everyone is being recounted, or will be."""
        is_known = self.server == self.status.server and not damage(self.status, self.epoch)
        return not is_known or not self.status.complete


def shard_statuses(counter: Declaration) -> list[ShardStatus]:
    """Return the state of each shard."""
    rows = shard_rows(counter).filter(shards=options.SHARDS).values_list("shard", "epoch", "audited", "verified")
    noted = {shard: about for shard, *about in rows}
    return [
        ShardStatus(buffer.shard, buffer.upkeep.status(), buffer.upkeep.server(), *noted.get(buffer.shard, (0, "", "")))
        for buffer in counter.buffers
    ]


def damage(status: Status, epoch: int) -> str:
    """Return what shows that Redis is not in the shard's ``epoch``, or has lost data; empty if nothing does."""
    if not epoch:
        return "its first audit begins"
    if status.unreadable:
        return "the key `state` in Redis cannot be read, because something else wrote to it"
    # rules: epoch, completed
    if status.epoch != epoch or status.batch // BATCHES != epoch or status.ready.rstrip("?") != str(epoch):
        return OTHER_REDIS
    return f"Redis has lost the key `{status.lost_key}`" if status.lost_key else ""  # rules: waiting, doubted


def reason_for_epoch(status: Status, row: Any, server: str, ahead: int = 0) -> str:
    """Return why everyone must be recounted; empty if there is no reason. ``ahead`` is a batch that was found in the
    totals.

    This is certain only if ``status`` was read while the shard's ``row`` was locked. Otherwise a batch that another
    flusher finishes in between looks like a lost one.
    """
    if row.epoch and not row.finished:
        return "SHARDS has changed"
    if status.declared not in ("", row.declared):
        return "the declaration of the counter has changed"
    if status.heartbeat_at is not None:
        return "processes with a different declaration of the counter were running"
    if found := damage(status, row.epoch):
        return found
    if status.server != server or status.batch < row.finished:  # rules: server, behind
        return OTHER_REDIS
    is_other = status.finished == row.finished and status.batch_id != row.batch_id  # rule: batch_id
    if status.finished > row.finished or is_other:  # rule: past
        return "the database went back in time"
    return "a stored total has a batch that is still to come" if ahead > status.batch else ""  # rule: ahead


def start_epoch(counter: Declaration, buffer: Buffer, reason: str = "", ahead: int = 0) -> bool:
    """Start an epoch for the given reason (rule: always), or for one that ``reason_for_epoch`` finds, if any. It lies
    above ``ahead``, and above all epochs in Redis and in the rows of the shards. If other totals have later batches,
    the audit meets them, and starts another epoch.

    The lock is held until Redis and the database both know the epoch. Otherwise two processes could take turns forever.

    Returns False if there is no reason, because another process has just started an epoch; if other SHARDS are in force
    now; or if the epoch must wait for processes of another declaration. Until then, readers count rows.
    """
    rows = shard_row(counter, buffer.shard)
    if not rows.exists() and not shard_rows(counter).exclude(shards=options.SHARDS).exists():
        make_row(counter, buffer.shard, declared=counter.fingerprint)
    with transaction.atomic(using=counter.db):
        row = rows.select_for_update().first()
        if row is None:
            return False
        server = buffer.upkeep.server()
        status = buffer.upkeep.status()
        if not (reason := reason or reason_for_epoch(status, row, server, ahead)):
            return False
        # rule: window
        if row.declared != counter.fingerprint or _is_too_early(row, status, deploy_seconds(buffer)):
            buffer.upkeep.forget(row.declared)
            return False
        highest = shard_rows(counter).aggregate(Max("epoch"))["epoch__max"]
        if status.unreadable or status.epoch > highest + AHEAD:
            buffer.upkeep.drop_state()
            status = buffer.upkeep.status()
        epoch = max(highest, status.epoch, ahead // BATCHES) + 1  # rule: ahead
        buffer.upkeep.recover(epoch, server)
        rows.update(epoch=epoch, finished=epoch * BATCHES, batch_id="", progress=0, audited="")
    level = logging.WARNING if row.epoch else logging.INFO
    record("recovery", counter, level=level, reason=reason, shard=buffer.shard, epoch=epoch)
    return True


def start_epochs(counter: Declaration, reason: str) -> None:
    """Start an epoch on every shard. The next heal then recounts everyone."""
    for buffer in counter.buffers:
        start_epoch(counter, buffer, reason)


def deploy_seconds(buffer: Buffer) -> float:
    """Return how many seconds an epoch waits for processes of another declaration: DEPLOY_SECONDS, or 0 in development
    and in test databases unless the site sets it."""
    return options.DEPLOY_SECONDS if options.is_set("DEPLOY_SECONDS") or not (settings.DEBUG or buffer.ttl) else 0


def _is_too_early(row: Any, status: Status, wait: float) -> bool:
    """Return whether processes of another declaration may still be running. If they know this counter, they send
    heartbeats; if not, they get ``wait`` seconds from the change on."""
    seconds = [(timezone.now() - row.declared_at).total_seconds()]
    if status.heartbeat_at is not None:
        seconds.append(status.now - status.heartbeat_at)
    return min(seconds) < wait
