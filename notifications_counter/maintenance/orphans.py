"""Removes the stored totals of deleted owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from ..buffer.types import NOTHING
from ..declaration import Declaration
from ..sql.everyone import Page, between
from ..sql.owners import of_owners
from ..writes.rows import chunks
from ..writes.totals import maintained
from .shard_rows import reject_batches_up_to

SIZE = 1000
"""Totals in a page."""


def remove_orphans(counter: Declaration, within: Page | None = None) -> int:
    """Delete the totals of deleted owners, of all or only ``within`` a page, if the count is zero and nothing waits in
    Redis. Returns how many."""
    exist = [
        Exists(QuerySet(field.remote_field.model, using=counter.db).filter(pk=OuterRef(total.attname)))
        for field, total in zip(counter.owner_fields, counter.total_fields, strict=True)
        if field.remote_field
    ]
    if not exist:
        return 0
    totals: QuerySet[Any] = QuerySet(counter.totals, using=counter.db)
    zero = {sharing.field: 0 for sharing in counter.sharing}
    names = [field.attname for field in counter.total_fields]
    gone = totals.filter(**zero).exclude(*exist)
    if within:
        gone = gone.filter(between(counter, names, within.after, within.last))
    page, removed = gone, 0
    while rows := list(page.order_by("pk").values_list("pk", *names)[:SIZE]):
        for buffer, owner_keys in counter.by_shard([str(counter.key_of(key)) for _, *key in rows]):
            removed += _remove(counter, buffer.shard, owner_keys, gone)
        page = gone.filter(pk__gt=rows[-1][0])
    return removed


def _remove(counter: Declaration, shard: int, owner_keys: Sequence[str], gone: QuerySet[Any]) -> int:
    """Delete the totals of these owner keys of a shard.

    A row remembers which batches it has. Without it, a late flusher could apply one of them again, so the shard rejects
    them from now on, for every counter with a total in the row (rule: closed). Corrections under way may have seen such
    a batch and not the total, so their leases end (rule: removal_lease).
    """
    ended: dict[Declaration, int] = {}
    for sharing in counter.sharing:
        snapshot = sharing.buffers[shard].end_leases(owner_keys)
        ended[sharing] = snapshot.batch - snapshot.cut
        owner_keys = [owner_key for owner_key in owner_keys if snapshot.owners[owner_key] == NOTHING]
    older = {f"{sharing.batch_field}__lte": batch for sharing, batch in ended.items()}
    with transaction.atomic(using=counter.db):
        if not owner_keys or not reject_batches_up_to(counter, shard, ended):
            return 0
        removed = 0
        with maintained():
            for chunk in chunks([counter.decode(owner_key) for owner_key in owner_keys], counter.db):
                theirs = of_owners(counter, counter.total_fields, chunk, counter.db)
                removed += gone.filter(theirs, **older).delete()[0]
        return removed
