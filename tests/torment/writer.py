"""What writers of a busy site do: changes, in whatever transactions. truth.py notes what has changed."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from django.db import transaction

from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification
from tests.support import undone


class Writer:
    """Changes rows of some users."""

    def __init__(self, users: Sequence[Any], chance: random.Random):
        self.users, self.chance = users, chance

    def choose(self) -> Callable[[], Any]:
        return self.chance.choice(self.ACTIONS).__get__(self)

    def user(self) -> Any:
        return self.chance.choice(self.users)

    def some(self, **which: Any) -> Any:
        """Some rows of a user."""
        mine = Notification.objects.filter(user_id=self.user(), **which)
        pks = list(mine.order_by("?").values_list("pk", flat=True)[: self.chance.randint(1, 4)])
        return mine.filter(pk__in=pks)

    def create(self) -> None:
        Notification.objects.create(user_id=self.user(), title="x", kind=self.chance.choice(["", "", "other"]))

    def bulk_create(self) -> None:
        users = [self.user() for _ in range(self.chance.randint(1, 8))]
        Notification.objects.bulk_create(Notification(user_id=user, title="x") for user in users)

    def mark_as_read(self) -> None:
        user = self.user()
        pks = Notification.objects.unread().filter(user_id=user).order_by("?").values_list("pk", flat=True)[:3]
        NotificationController(user).mark_all_as_read(list(pks))

    def mark_all_as_read(self) -> None:
        Notification.objects.for_user(self.user()).filter(kind="").mark_as_read()

    def mark_as_unread(self) -> None:
        self.some(read_at__isnull=False).mark_as_unread()

    def delete(self) -> None:
        self.some().delete()

    def move(self) -> None:
        self.some(read_at=None).update(user=self.user())

    def save(self) -> None:
        """Save an instance that may have changed meanwhile, or delete it."""
        note = self.some().first() or Notification(user_id=self.user(), title="x")
        if note.pk and self.chance.random() < 0.3:
            note.delete()
        else:
            note.user_id = self.user()
            note.save()

    def savepoints(self) -> None:
        """Several changes in one transaction, of which some are rolled back."""
        with transaction.atomic():
            self.save()
            with undone():
                self.move()
                self.create()
            self.create()

    def roll_back(self) -> None:
        with undone():
            self.bulk_create()
            self.mark_all_as_read()

    ACTIONS = (
        create, create, bulk_create, mark_as_read, mark_all_as_read, mark_as_unread, delete, move,
        save, save, save, savepoints, roll_back,
    )  # fmt: skip
