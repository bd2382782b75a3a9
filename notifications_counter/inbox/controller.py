"""The notifications of one user."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ..counters import unread
from ..declaration.primary_keys import many, primary_key
from ..models import Notification, NotificationQuerySet


class NotificationController:
    """Counts and marks the notifications of one user. It never touches another user's."""

    def __init__(self, user_id: Any):
        """``user_id``: a user or its primary key."""
        self.user_id = unread.key(user_id)

    @property
    def notifications(self) -> NotificationQuerySet:
        """This user's notifications, as they are where they are counted: a replica may lag behind the badge."""
        return Notification.objects.using(unread.db).for_user(self.user_id)

    @property
    def unread_count(self) -> int:
        """How many are unread."""
        return unread.count(self.user_id)

    def mark_as_seen(self, notification_id: Any) -> bool:
        """Mark one as seen, given as an instance or an id. Returns whether this call changed it: False if it is
        missing or another user's."""
        return self.mark_all_as_seen([notification_id]) == 1

    def mark_all_as_seen(self, notification_ids: Iterable[Any] | None = None) -> int:
        """Mark all notifications as seen, or only those with these ids. Returns how many changed."""
        return self._chosen(notification_ids).mark_as_seen()

    def mark_as_read(self, notification_id: Any) -> bool:
        """Mark one as read, given as an instance or an id. Returns whether this call changed it: False if it is
        missing or another user's."""
        return self.mark_all_as_read([notification_id]) == 1

    def mark_all_as_read(self, notification_ids: Iterable[Any] | None = None) -> int:
        """Mark all notifications as read, or only those with these ids. Returns how many changed.

        The ids can come straight from a request: invalid ids are ignored."""
        return self._chosen(notification_ids).mark_as_read()

    def _chosen(self, ids: Iterable[Any] | None) -> NotificationQuerySet:
        if ids is None:
            return self.notifications
        return self.notifications.filter(pk__in=keys(many(ids)))


def keys(values: Iterable[Any]) -> list[Any]:
    """Return the primary keys that these notifications, texts or numbers stand for. Invalid ones are left out."""
    found = []
    for value in values:
        with suppress(ValueError):
            found.append(primary_key(Notification._meta.pk, value.pk if isinstance(value, Notification) else value))
    return found
