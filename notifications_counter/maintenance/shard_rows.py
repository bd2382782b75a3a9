"""The rows of a counter's shards in the database: their epochs, batches and audits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self
from uuid import uuid4

from django.db import connections
from django.db.models import QuerySet

from ..buffer.types import Cut
from ..buffer.upkeep import BATCHES
from ..conf import options
from ..databases.routing import own_rows
from ..databases.transactions import in_transaction
from ..declaration import Declaration
from ..exceptions import NotInTransaction


@dataclass
class Note:
    """A note in the row of a shard, as JSON."""

    @classmethod
    def of(cls, text: str) -> Self:
        return cls(**json.loads(text or "{}"))

    def __str__(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def all_shard_rows(using: str) -> QuerySet[Any]:
    """Return the rows of all shards of all counters in a database."""
    return own_rows("CounterShard", using)


def shard_rows(counter: Declaration) -> QuerySet[Any]:
    """Return the rows of all shards of a counter, including those of an earlier number of shards."""
    return all_shard_rows(counter.db).filter(counter=counter.name)


def shard_row(counter: Declaration, shard: int) -> QuerySet[Any]:
    """Return the row of one shard, at most one."""
    return shard_rows(counter).filter(shard=shard, shards=options.SHARDS)


def make_row(counter: Declaration, shard: int, **defaults: Any) -> None:
    """Add the row of a shard if it is missing."""
    all_shard_rows(counter.db).get_or_create(
        counter=counter.name, shard=shard, shards=options.SHARDS, defaults=defaults
    )


def _lock(counter: Declaration, shard: int) -> dict[str, Any]:
    """Lock a shard until the transaction ends, and return its row by counter.

    Counters whose totals are in the same rows are locked together. Otherwise two flushers could each wait for rows that
    the other has locked.
    """
    names = [sharing.name for sharing in counter.sharing]
    rows = all_shard_rows(counter.db).filter(counter__in=names, shard=shard, shards=options.SHARDS)
    return {row.counter: row for row in rows.order_by("counter").select_for_update()}


def lock_for_batch(counter: Declaration, shard: int, cut: Cut, first: int) -> Any:
    """Lock the shard until the transaction ends. Returns its row, or None if the batch may not be written from rank
    ``first`` on.

    A database that went back in time lacks the previous batch, has another one under its number, or lacks the beginning
    of this one.
    """
    row = _lock(counter, shard).get(counter.name)
    if row is None or row.epoch != cut.batch // BATCHES or cut.batch <= row.closed:  # rules: epoch, closed
        return None
    if row.declared != counter.fingerprint:  # rule: declared_flush
        return None
    if row.finished >= cut.batch:  # another flusher was faster; its rows refuse the batch (rule: guard)
        return row
    # rules: past_apply, batch_id, progress
    continues = row.finished == cut.batch - 1 and row.batch_id == cut.batch_id and row.progress >= first
    return row if continues else None


def note_progress(row: Any, cut: Cut, end: int) -> None:
    """Note in the locked row of a shard that a batch is written up to rank ``end``, in the transaction that writes it.
    A finished batch gets a random id."""
    if cut.batch <= row.finished:
        return
    if end < cut.size:  # rule: past_note
        row.progress = max(row.progress, end)
    else:
        row.finished, row.batch_id, row.progress = cut.batch, uuid4().hex, 0
    row.save(update_fields=["finished", "batch_id", "progress"])


def reject_batches_up_to(counter: Declaration, shard: int, batches: Mapping[Declaration, int]) -> bool:
    """Lock the shard until the transaction ends, and accept no batch up to these (rule: closed), for each counter
    whose totals are in the same rows. Returns False if a batch belongs to another epoch."""
    rows = _lock(counter, shard)
    for sharing, batch in batches.items():
        if sharing.name not in rows or rows[sharing.name].epoch != batch // BATCHES:
            return False
    for sharing, batch in batches.items():
        shard_row(sharing, shard).filter(closed__lt=batch).update(closed=batch)
    return True


def refuse_in_transaction(using: str) -> None:
    """Raise NotInTransaction inside a transaction, where a flush or a recount could neither commit nor see what others
    commit."""
    if in_transaction(connections[using]):
        raise NotInTransaction(
            "A flush or a recount cannot run inside a transaction: it would remove changes from Redis that may still "
            "be rolled back, and miss what others commit. Call it outside of atomic() and of transactions begun by raw "
            "SQL, with autocommit switched on."
        )
