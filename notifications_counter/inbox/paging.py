"""Pages of notifications, newest first.

A page begins where the previous one ended, not at an offset. So the database finds the millionth row as fast as the
first, new rows do not shift the pages, and nothing is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from django.conf import settings
from django.db import connections
from django.db.models import Q
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware, make_naive

from ..declaration.primary_keys import primary_key
from ..models import Notification, NotificationQuerySet


@dataclass(frozen=True)
class Page:
    """``newer`` and ``older`` are the cursors where the adjacent pages begin, empty if there is none."""

    rows: list[Notification]
    newer: str = ""
    older: str = ""


def page_of(rows: NotificationQuerySet, size: int, before: str = "", after: str = "") -> Page:
    """Return the page of the newest rows, or the one next to a cursor. Raises ValueError if the cursor is invalid."""
    if after:
        found = list(_newer(rows, *_parse_cursor(after, rows.db))[: size + 1])
        if len(found) > size:
            found = found[:size][::-1]
            return Page(found, newer=_cursor(found[0]), older=_cursor(found[-1]))
        before = ""  # show the first page instead, so that it is full
    if before:
        rows = _older(rows, *_parse_cursor(before, rows.db))
    found = list(rows.order_by("-created_at", "-pk")[: size + 1])
    page = found[:size]
    return Page(
        page,
        newer=_cursor(page[0]) if before and page else "",
        older=_cursor(page[-1]) if len(found) > size else "",
    )


def neighbors_of(row: Notification, rows: NotificationQuerySet) -> dict[str, Notification | None]:
    """Return the ``newer`` and the ``older`` one of the rows beside a row, which need not be one of them."""
    at, pk = row.created_at, row.pk
    return {"newer": _newer(rows, at, pk).first(), "older": _older(rows, at, pk).first()}


def _newer(rows: NotificationQuerySet, at: datetime, pk: int) -> NotificationQuerySet:
    return rows.filter(Q(created_at__gt=at) | Q(pk__gt=pk), created_at__gte=at).order_by("created_at", "pk")


def _older(rows: NotificationQuerySet, at: datetime, pk: int) -> NotificationQuerySet:
    return rows.filter(Q(created_at__lt=at) | Q(pk__lt=pk), created_at__lte=at).order_by("-created_at", "-pk")


def _cursor(row: Notification) -> str:
    return f"{time_as_text(row.created_at)}_{row.pk}"


def _parse_cursor(cursor: str, using: str) -> tuple[datetime, int]:
    at, _, pk = cursor.partition("_")
    return parse_time(at, using), primary_key(Notification._meta.pk, pk)


def time_as_text(at: datetime) -> str:
    """Return a text such as 2026-11-22T09:30:00Z."""
    return (make_aware(at) if is_naive(at) else at).astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_time(text: str, using: str) -> datetime:
    """Return the time of a text such as 2026-11-22T09:30:00Z. Raises ValueError if it is invalid, or if the database
    cannot store it in its time zone."""
    try:
        at = parse_datetime(text)
        if at is None:
            raise ValueError
        at = (make_aware(at) if is_naive(at) else at).astimezone(UTC)
        at = at if settings.USE_TZ else make_naive(at)
        Notification._meta.get_field("created_at").get_db_prep_value(at, connections[using])
    except (OverflowError, ValueError) as error:
        raise ValueError(f"{text!r} is not a time.") from error
    return at
