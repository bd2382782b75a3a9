"""Requests recounts: in Redis, or through the database while Redis is unreachable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.db import DatabaseError, connections, transaction
from django.db.models import QuerySet

from ..buffer import Buffer
from ..buffer.commands import OWNERS_PER_CALL
from ..buffer.patience import Patience
from ..conf import options
from ..declaration import Declaration, each_shard
from ..exceptions import BufferUnavailable
from ..internals import as_manual_transaction


def mark_dirty(owners: Iterable[tuple[Declaration, str]]) -> list[tuple[Declaration, str]]:
    """Have owners recounted. Returns those for which Redis was unreachable."""
    grouped: dict[Declaration, list[str]] = defaultdict(list)
    for counter, member in owners:
        grouped[counter].append(member)
    with Patience(options.WRITE_TIMEOUT):
        return [(c, member) for c, members in grouped.items() for member in each_shard(c, members, Buffer.mark_dirty)]


def forget(counter: Declaration) -> None:
    """Have readers count rows until everyone is recounted, which a RecountRequest asks for."""
    with suppress(BufferUnavailable), Patience(options.WRITE_TIMEOUT):
        for buffer in counter.buffers:
            with suppress(BufferUnavailable):
                buffer.forget()


def request_recounts(using: str, owners: Sequence[tuple[Declaration, str | None]]) -> None:
    """Write RecountRequests, in the current transaction if there is one. The member None stands for everyone."""
    if not owners:
        return
    model = apps.get_model("notifications_counter", "RecountRequest")
    try:
        with as_manual_transaction(connections[using]), transaction.atomic(using=using):
            requests: QuerySet[Any] = QuerySet(model, using=using)
            requests.bulk_create(
                [model(counter=c.name, owner=member or "", everyone=member is None) for c, member in owners],
                batch_size=OWNERS_PER_CALL,
            )
    except DatabaseError:
        if _requests_exist(using):
            raise
        # Before our first migration, there are no counts that could be wrong.


def _requests_exist(using: str) -> bool:
    """Return whether the table of RecountRequests exists. Another app's migration may run before ours."""
    table = apps.get_model("notifications_counter", "RecountRequest")._meta.db_table
    return table in connections[using].introspection.table_names()
