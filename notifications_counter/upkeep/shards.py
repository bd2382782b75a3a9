"""The rows of a counter's shards in the database, and what shows that Redis and a row do not agree."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import uuid4

from django.conf import settings
from django.db import connections, transaction
from django.db.models import QuerySet
from django.utils import timezone

from ..buffer import Buffer, BufferStatus
from ..buffer.types import OFF
from ..conf import options
from ..databases.identity import identify
from ..databases.transactions import in_transaction
from ..declaration import Declaration
from ..exceptions import NotInTransaction
from ..models import CounterShard
from .history import record
from .state import FULL_SPEED, WalkState

OTHER_REDIS = "Redis is new, was restarted or replaced, or lost data"
NOT_READY = "everyone is in doubt: a statement did not say whose counts it changed, or Redis has lost the key `ready`"


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The state of one shard: the ``status`` of its buffer, the name of its Redis ``server``, and its ``row`` in the
    database, None before the first heal."""

    shard: int
    status: BufferStatus
    server: str
    row: CounterShard | None

    @property
    def is_ready(self) -> bool:
        """Whether reads use what Redis holds."""
        return self.row is not None and not lost(self.status, self.row, self.server)


def shard_rows(counter: Declaration) -> QuerySet[CounterShard]:
    """Return the rows of all shards of a counter, also those of an earlier number of shards, in one order."""
    return CounterShard.objects.using(counter.db).filter(counter=counter.name).order_by("pk")


def shard_row(counter: Declaration, shard: int) -> QuerySet[CounterShard]:
    """Return the row of one shard, at most one."""
    return shard_rows(counter).filter(shard=shard, shards=options.SHARDS)


def shard_statuses(counter: Declaration) -> list[ShardStatus]:
    """Return the state of each shard."""
    rows = {row.shard: row for row in shard_rows(counter).filter(shards=options.SHARDS)}
    return [
        ShardStatus(buffer.shard, buffer.status(), buffer.server(), rows.get(buffer.shard))
        for buffer in counter.buffers
    ]


def lost(status: BufferStatus, row: CounterShard, server: str) -> str:
    """Return what shows that Redis has lost data, or that the database went back; empty if nothing does.

    This is certain only if ``status`` was read while the ``row`` was locked. Otherwise a batch that another flusher
    finishes in between looks like a lost one.
    """
    if not row.mark:
        return "nobody has been counted yet"
    # rules: ready, server
    if status.server != server:
        return OTHER_REDIS
    if status.ready in ("", OFF):
        return NOT_READY
    # rule: sentinel
    if not status.is_whole or bool(status.batch) != status.has_cut:
        return "Redis has lost a key"
    # rule: agree
    if status.finished != row.mark and not (status.batch and row.mark.startswith(f"{status.batch}:")):
        return "Redis or the database went back in time"
    return ""


def deploy_seconds() -> float:
    """Return for how many seconds rows are counted after a declaration has changed, until all processes have the new
    one: DEPLOY_SECONDS, or 0 in development unless the site sets it."""
    return options.DEPLOY_SECONDS if options.is_set("DEPLOY_SECONDS") or not settings.DEBUG else 0


def is_window_over(rows: Iterable[CounterShard]) -> bool:
    """Return whether a generation may begin or has begun."""
    # rule: window
    since = (timezone.now() - min(row.declared_at for row in rows)).total_seconds()
    return since >= deploy_seconds() or all(row.mark for row in rows)


def begin_generation(counter: Declaration, buffer: Buffer, reason: str = "") -> bool:
    """Begin a generation for the given reason, or for one that ``lost`` finds, if any: what Redis has cached is not
    found any more, and a walk looks at everyone. Returns whether it began.

    The rows are locked until Redis and the database both know the generation. Otherwise two processes could take turns
    forever.
    """
    with transaction.atomic(using=counter.db):
        rows = {row.shard: row for row in shard_rows(counter).filter(shards=options.SHARDS).select_for_update()}
        row = rows.get(buffer.shard)
        if row is None or row.fingerprint != buffer.fingerprint or not is_window_over(rows.values()):
            return False
        server = buffer.server()
        if not (reason := reason or lost(buffer.status(), row, server)):
            return False
        is_first = not row.mark
        row.mark = uuid4().hex[:12]
        if not buffer.begin_generation(row.mark, server):
            return False
        walk = WalkState.of(rows[0].walk)
        walk.begin(FULL_SPEED)
        rows[0].walk = str(walk)
        for each in {row.pk: row, rows[0].pk: rows[0]}.values():
            each.save(using=counter.db, update_fields=["mark", "walk"])
    identify(connections[counter.db]).counters.add(counter.name)
    for known in counter.buffers:
        known.is_known = True
    record("recovery", counter, level=logging.INFO if is_first else logging.WARNING, reason=reason, shard=buffer.shard)
    return True


def refuse_in_transaction(using: str) -> None:
    """Raise NotInTransaction inside a transaction, where a flush or a walk could neither commit nor see what others
    commit."""
    if in_transaction(connections[using]):
        raise NotInTransaction(
            "A flush or a recount cannot run inside a transaction: it would remove changes from Redis that may still "
            "be rolled back, and miss what others commit. Call it outside of atomic() and of transactions begun by raw "
            "SQL, with autocommit switched on."
        )
