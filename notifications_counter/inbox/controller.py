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
        self.user_id = unread.pk_of(user_id)

    @property
    def notifications(self) -> NotificationQuerySet:
        """This user's notifications, from the database that counts them: a replica may lag behind the badge."""
        return Notification.objects.using(unread.db).for_user(self.user_id)

    @property
    def unread_count(self) -> int:
        """The number of unread notifications."""
        return unread.count(self.user_id)

    def mark_as_seen(self, notification_id: Any) -> bool:
        """Mark one notification, given as an instance or an id, as seen. Returns whether this call changed it: False if
        it is missing or another user's."""
        return self.mark_all_as_seen([notification_id]) == 1

    def mark_all_as_seen(self, notification_ids: Iterable[Any] | None = None) -> int:
        """Mark all notifications, or only these, as seen. Returns how many changed."""
        return self._chosen(notification_ids).mark_as_seen()

    def mark_as_read(self, notification_id: Any) -> bool:
        """Mark one notification, given as an instance or an id, as read. Returns whether this call changed it: False if
        it is missing or another user's."""
        return self.mark_all_as_read([notification_id]) == 1

    def mark_all_as_read(self, notification_ids: Iterable[Any] | None = None) -> int:
        """Mark all notifications, or only these, as read. Returns how many changed.

        The ids may come straight from a request: invalid ids are ignored."""
        return self._chosen(notification_ids).mark_as_read()

    def _chosen(self, ids: Iterable[Any] | None) -> NotificationQuerySet:
        return self.notifications if ids is None else with_ids(self.notifications, many(ids))


def with_ids(rows: NotificationQuerySet, ids: Iterable[Any]) -> NotificationQuerySet:
    """Return the notifications among rows that are given as instances, texts or numbers. Ignore invalid ones."""
    pks = []
    for value in ids:
        with suppress(ValueError):
            pks.append(primary_key(Notification._meta.pk, value.pk if isinstance(value, Notification) else value))
    return rows.filter(pk__in=pks)
