"""What happens at a busy site: changes, in whatever transactions, and reads. truth.py notes what has changed."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from django.contrib.auth import get_user_model
from django.db import router, transaction

from notifications_counter.counters import unread
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification

from . import database

MISFORTUNES = ("user_deleted", "rolled_back", "hook_raised")


class Undone(Exception):
    pass


class HookRaised(Exception):
    pass


def atomic() -> Any:
    """A transaction in the database of the notifications."""
    return transaction.atomic(using=router.db_for_write(Notification))


class Writer:
    """Changes rows of some users. ``misfortunes`` befall it now and then."""

    def __init__(self, users: Sequence[Any], chance: random.Random, misfortunes: Sequence[str]):
        self.users, self.chance, self.misfortunes = users, chance, misfortunes

    def choose(self) -> Callable[[], Any]:
        if self.misfortunes and self.chance.random() < 0.15:
            return getattr(self, self.chance.choice(self.misfortunes))
        if len(database.tenants()) > 1 and self.chance.random() < 0.1:
            return self.of_two_tenants
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
        with atomic():
            self.save()
            try:
                with atomic():
                    self.move()
                    self.create()
                    raise Undone
            except Undone:
                self.create()

    def roll_back(self) -> None:
        try:
            with atomic():
                self.bulk_create()
                self.mark_all_as_read()
                raise Undone
        except Undone:
            pass

    ACTIONS = (
        create, create, bulk_create, mark_as_read, mark_all_as_read, mark_as_unread, delete, move,
        save, save, save, savepoints, roll_back,
    )  # fmt: skip

    # -------------------------------------------------------------------------------------------------- misfortunes
    def of_two_tenants(self) -> None:
        """Change rows of another tenant inside of a transaction: with schemas, it commits both."""
        with atomic():
            self.create()
            with database.at(self.chance.choice(database.tenants())):
                self.bulk_create()
            self.save()

    def user_deleted(self) -> None:
        """Delete a user, or create one again under the same primary key."""
        user, model = self.chance.choice(self.users[-3:]), get_user_model()
        if not model.objects.filter(pk=user).delete()[0]:
            model.objects.create(pk=user, username=f"{user} {self.chance.random()}")

    def rolled_back(self) -> None:
        """All of a transaction, or what followed a savepoint."""
        self.chance.choice([self.roll_back, self.savepoints])()

    def hook_raised(self) -> None:
        """Somebody else's hook raises on commit, before ours is called or after."""

        def fail() -> None:
            raise HookRaised

        using, is_early = database.current().alias, self.chance.random() < 0.5
        with transaction.atomic(using=using):
            if is_early:
                transaction.on_commit(fail, using)
            self.bulk_create()
            if not is_early:
                transaction.on_commit(fail, using)


class Reader:
    """Looks at the count of one user, or of all."""

    def __init__(self, users: Sequence[Any], chance: random.Random):
        self.users, self.chance = users, chance

    def __call__(self) -> dict[Any, int]:
        if self.chance.random() < 0.2:
            return unread.counts(self.users)
        user = self.chance.choice(self.users)
        return {user: unread.count(user)}
