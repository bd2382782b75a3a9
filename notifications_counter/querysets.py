"""Querysets of notifications."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from django.utils import timezone


class NotificationQuerySet(QuerySet):
    """Notifications."""

    def unread(self) -> NotificationQuerySet:
        """Return the unread notifications."""
        return self.filter(read_at__isnull=True)

    def read(self) -> NotificationQuerySet:
        """Return the notifications that have been read."""
        return self.filter(read_at__isnull=False)

    def unseen(self) -> NotificationQuerySet:
        """Return the notifications that have been neither seen nor read."""
        return self.filter(seen_at__isnull=True, read_at__isnull=True)

    def for_user(self, user: Any) -> NotificationQuerySet:
        """Return the notifications of a user, given as an instance or a primary key."""
        return self.filter(user=user)

    def mark_as_seen(self) -> int:
        """Mark the unseen ones as seen. Returns how many really changed."""
        return self.unseen().update(seen_at=timezone.now())

    mark_as_seen.alters_data = True  # type: ignore[attr-defined]

    def mark_as_read(self) -> int:
        """Mark the unread ones as read, and so as seen. Returns how many really changed."""
        now = timezone.now()
        return self.unread().update(seen_at=Coalesce("seen_at", now), read_at=now)

    mark_as_read.alters_data = True  # type: ignore[attr-defined]

    def mark_as_unread(self) -> int:
        """Mark the read ones as unread; they stay seen. Returns how many really changed."""
        # MariaDB and MySQL set columns one after the other, so read_at comes last.
        return self.read().update(seen_at=Coalesce("seen_at", "read_at"), read_at=None)

    mark_as_unread.alters_data = True  # type: ignore[attr-defined]
