"""Pages of notifications, newest first.

A page begins where the previous one ended, not at an offset. So the database finds the millionth row as fast as the
first, new rows do not shift the pages, and nothing is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import connections
from django.db.models import Q
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware, make_naive

from ..declaration.primary_keys import primary_key
from ..models import Notification, NotificationQuerySet

UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Page:
    """``newer`` and ``older`` are the cursors where the adjacent pages begin, empty if there is none."""

    rows: list[Notification]
    newer: str = ""
    older: str = ""


def page_of(rows: NotificationQuerySet, size: int, before: str = "", after: str = "") -> Page:
    """Return the page of the newest rows, or the one next to a cursor. Raises ValueError if the cursor is invalid."""
    older_than, newer_than = (_parse_cursor(cursor, rows.db) if cursor else None for cursor in (before, after))
    if newer_than:
        at, pk = newer_than
        newer = rows.filter(Q(created_at__gt=at) | Q(pk__gt=pk), created_at__gte=at)
        found = list(newer.order_by("created_at", "pk")[: size + 1])
        if len(found) > size:
            found = found[:size][::-1]
            return Page(found, newer=_cursor(found[0]), older=_cursor(found[-1]))
        older_than = None  # show the first page instead, so that it is full
    if older_than:
        at, pk = older_than
        rows = rows.filter(Q(created_at__lt=at) | Q(pk__lt=pk), created_at__lte=at)
    found = list(rows.order_by("-created_at", "-pk")[: size + 1])
    page = found[:size]
    return Page(
        page,
        newer=_cursor(page[0]) if older_than and page else "",
        older=_cursor(page[-1]) if len(found) > size else "",
    )


def _cursor(row: Notification) -> str:
    at = row.created_at.replace(tzinfo=UTC) if is_naive(row.created_at) else row.created_at
    return f"{(at - UNIX_EPOCH) // MICROSECOND}_{row.pk}"


def _require_storable(at: datetime, using: str) -> datetime:
    """Return the time. Raises OverflowError if it does not exist in the time zone of the database."""
    Notification._meta.get_field("created_at").get_db_prep_value(at, connections[using])
    return at


def parse_time(text: str, using: str) -> datetime:
    """Return the time of a text such as 2026-11-22T09:30:00Z. Raises ValueError if it is invalid."""
    try:
        at = parse_datetime(text)
        if at is None:
            raise ValueError
        at = (make_aware(at) if is_naive(at) else at).astimezone(UTC)
        return _require_storable(at if settings.USE_TZ else make_naive(at), using)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"{text!r} is not a time.") from error


def _parse_cursor(cursor: str, using: str) -> tuple[datetime, int]:
    at, _, pk = cursor.partition("_")
    try:
        time = UNIX_EPOCH + int(at) * MICROSECOND
        time = _require_storable(time if settings.USE_TZ else time.replace(tzinfo=None), using)
        return time, primary_key(Notification._meta.pk, pk)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{cursor!r} is not a cursor in a list.") from error
