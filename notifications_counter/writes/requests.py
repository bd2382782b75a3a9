"""Doubts of owners: in Redis, or through the database while Redis is unreachable."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import apps
from django.db import DatabaseError, Error, connections, transaction
from django.db.models import QuerySet

from ..buffer.calls import OWNERS_PER_CALL
from ..declaration import Declaration
from ..internals import as_manual_transaction

logger = logging.getLogger("notifications_counter")

Owner = tuple[Declaration, str | None]
"""A counter, and an owner key; None for everyone."""


def doubt(owners: Iterable[Owner]) -> list[Owner]:
    """Put owners in doubt, so that readers count their rows. Returns those for which Redis was unreachable."""
    grouped: dict[Declaration, list[str]] = defaultdict(list)
    failed: list[Owner] = []
    for counter, owner_key in owners:
        if owner_key is not None:
            grouped[counter].append(owner_key)
        elif not counter.doubt_everyone():
            failed.append((counter, None))
    for counter, owner_keys in grouped.items():
        failed += ((counter, owner_key) for owner_key in counter.doubt(owner_keys))
    return failed


def request_recounts(using: str, owners: Sequence[Owner]) -> None:
    """Write RecountRequests, in the current transaction if there is one."""
    if not owners:
        return
    model = apps.get_model("notifications_counter", "RecountRequest")
    try:
        with as_manual_transaction(connections[using]), transaction.atomic(using=using):
            requests: QuerySet[Any] = QuerySet(model, using=using)
            requests.bulk_create(
                [model(counter=c.name, owner=owner_key or "", everyone=owner_key is None) for c, owner_key in owners],
                batch_size=OWNERS_PER_CALL,
            )
    except DatabaseError:
        if _requests_exist(using):
            raise
        # Before our first migration, there are no counts that could be wrong.


def request_or_log(using: str, failed: Sequence[Owner]) -> None:
    """Write RecountRequests for owners whose deltas Redis did not accept (rule: request). A failure is logged."""
    try:
        request_recounts(using, failed)
    except Error:
        about = {"event": "send_failed", "database": using, "owners": len(failed)}
        text = "Deltas could not be sent (owners: %d). The owners are in doubt after HEAL_AFTER seconds."
        logger.exception(text, len(failed), extra=about)


def _requests_exist(using: str) -> bool:
    """Return whether the table of RecountRequests exists. Another app's migration may run before ours."""
    table = apps.get_model("notifications_counter", "RecountRequest")._meta.db_table
    return table in connections[using].introspection.table_names()
