"""Deletes old notifications in small batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import OperationalError, connections, router, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from ..databases.errors import is_conflict
from ..databases.isolation import require_autocommit
from ..models import Notification

BATCH = 1000
"""Notifications in one transaction."""


@dataclass
class PruneResult:
    """How many notifications were ``deleted``, or left because they were ``in_use``, and how long it took."""

    deleted: int = 0
    in_use: int = 0
    seconds: float = 0.0


def prune(
    older_than: timedelta = timedelta(0),
    read_only: bool = False,
    keep_newest: int = 0,
    dry_run: bool = False,
    using: str | None = None,
    progress: Callable[[int], None] = lambda deleted: None,
) -> PruneResult:
    """Delete the notifications that were created longer ago than ``older_than``, oldest first.

    ``read_only`` leaves unread ones. ``keep_newest`` leaves each user this many, however old they are. ``dry_run`` only
    counts. After each batch, ``progress`` is called with the number deleted so far, and nothing happens for as long as
    the batch took, so that others get half of the time. ValueError if ``older_than`` is negative, which would delete
    everything. NotInTransaction if autocommit is off, because nothing would be committed.
    """
    if older_than < timedelta(0):
        raise ValueError(f"older_than cannot be negative, as {older_than} is. Nothing was deleted.")
    using = using or router.db_for_write(Notification)
    if not dry_run:
        require_autocommit(connections[using])
    old = _old(using, older_than, read_only, keep_newest)
    result = PruneResult()
    started = batch_started = time.monotonic()
    for keys in _pages(old):
        deleted = len(keys) if dry_run else _delete(old, keys)
        result.deleted += deleted
        result.in_use += len(keys) - deleted
        progress(result.deleted)
        if len(keys) == BATCH and not dry_run:
            time.sleep(time.monotonic() - batch_started)
        batch_started = time.monotonic()
    result.seconds = time.monotonic() - started
    return result


def _pages(old: QuerySet[Notification]) -> Iterator[list[Any]]:
    """Yield primary keys, a batch at a time."""
    page = keys = old.order_by("pk").values_list("pk", flat=True)
    while found := list(page[:BATCH]):
        yield found
        if len(found) < BATCH:
            return
        page = keys.filter(pk__gt=found[-1])


def _old(using: str, older_than: timedelta, read_only: bool, keep_newest: int) -> QuerySet[Notification]:
    old = Notification.objects.using(using).filter(created_at__lt=timezone.now() - older_than)
    if read_only:
        old = old.read()
    if keep_newest:
        newer = Notification.objects.filter(user=OuterRef("user"), created_at__gte=OuterRef("created_at")).filter(
            Q(created_at__gt=OuterRef("created_at")) | Q(pk__gt=OuterRef("pk"))
        )
        old = old.filter(Exists(newer[keep_newest - 1 : keep_newest]))
    return old


def _delete(old: QuerySet[Notification], keys: list[Any]) -> int:
    """Delete the notifications of a page that are still old, and that no other transaction has locked. Returns how
    many."""
    try:
        with transaction.atomic(old.db):
            locked = list(old.filter(pk__in=keys).select_for_update(skip_locked=True).values_list("pk", flat=True))
            Notification.objects.using(old.db).filter(pk__in=locked).delete()
    except OperationalError as error:
        if not is_conflict(error):
            raise
        return 0
    return len(locked)
