"""Notifications in bulk."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils import timezone


class NotificationQuerySet(QuerySet):
    """Notifications."""

    def unread(self) -> NotificationQuerySet:
        """Those that are not read."""
        return self.filter(read_at__isnull=True)

    def read(self) -> NotificationQuerySet:
        """Those that are read."""
        return self.filter(read_at__isnull=False)

    def for_user(self, user: Any) -> NotificationQuerySet:
        """Those of one user, given as an instance or a primary key."""
        return self.filter(user=user)

    def mark_as_read(self) -> int:
        """Mark the unread ones as read. Returns how many really changed."""
        return self.unread().update(read_at=timezone.now())

    mark_as_read.alters_data = True  # type: ignore[attr-defined]

    def mark_as_unread(self) -> int:
        """Mark the read ones as unread. Returns how many really changed."""
        return self.read().update(read_at=None)

    mark_as_unread.alters_data = True  # type: ignore[attr-defined]
