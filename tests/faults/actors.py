"""What happens at a busy site: changes that say what they changed, and reads."""

import random
from collections import Counter as Tally
from collections.abc import Callable, Sequence
from typing import Any

from django.db import OperationalError, router, transaction

from notifications_counter.counters import unread
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification

Change = dict[Any, int]


class Rollback(Exception):
    pass


def atomic() -> Any:
    """A transaction in the database of the notifications."""
    return transaction.atomic(using=router.db_for_write(Notification))


class Writer:
    """Changes rows of some users. Rows of the kind that bears its name are changed by no other writer, so that it
    knows what a save or a deletion of a single one changes."""

    def __init__(self, name: str, users: Sequence[Any], chance: random.Random):
        self.name, self.users, self.chance = name, users, chance
        self.gave_up = 0

    def __call__(self) -> Change:
        """Do something. Returns what it changed; nothing if the database rolled it back, as after a deadlock."""
        try:
            return self.choose()()
        except OperationalError:
            self.gave_up += 1
            return {}

    def choose(self) -> Callable[[], Change]:
        return self.chance.choice(self.ACTIONS).__get__(self)

    def user(self) -> Any:
        return self.chance.choice(self.users)

    def some(self, **which: Any) -> tuple[Any, list[int]]:
        user = self.user()
        rows = Notification.objects.filter(user_id=user, kind="", **which).order_by("?")
        return user, list(rows.values_list("pk", flat=True)[: self.chance.randint(1, 4)])

    def create(self) -> Change:
        user = self.user()
        Notification.objects.create(user_id=user, title="x")
        return {user: 1}

    def bulk_create(self) -> Change:
        users = [self.user() for _ in range(self.chance.randint(1, 8))]
        Notification.objects.bulk_create(Notification(user_id=user, title="x") for user in users)
        return Tally(users)

    def mark_as_read(self) -> Change:
        user, pks = self.some(read_at=None)
        return {user: -NotificationController(user).mark_all_as_read(pks)}

    def mark_all_as_read(self) -> Change:
        user = self.user()
        return {user: -Notification.objects.for_user(user).filter(kind="").mark_as_read()}

    def mark_as_unread(self) -> Change:
        user, pks = self.some(read_at__isnull=False)
        return {user: Notification.objects.filter(user_id=user, pk__in=pks).mark_as_unread()}

    def delete(self) -> Change:
        user, pks = self.some(read_at=None)
        with atomic():  # Django deletes by primary key, also what has been read since it was selected
            unread = Notification.objects.unread().filter(user_id=user, pk__in=pks).select_for_update()
            deleted, _ = Notification.objects.filter(pk__in=list(unread.values_list("pk", flat=True))).delete()
        return {user: -deleted}

    def move(self) -> Change:
        user, pks = self.some(read_at=None)
        other = self.user()
        moved = Notification.objects.unread().filter(user_id=user, pk__in=pks).update(user=other)
        return {user: -moved, other: moved} if other != user else {}

    def own(self) -> Notification:
        mine = Notification.objects.unread().filter(kind=self.name)
        return mine.order_by("?").first() or Notification(user_id=self.user(), title="x", kind=self.name)

    def save_own(self) -> Change:
        """Create an instance of one's own, or give it to another user."""
        note, change = self.own(), Tally()
        if note.pk:
            change[note.user_id] -= 1
            note.user_id = self.user()
        note.save()
        change[note.user_id] += 1
        return change

    def finish_own(self) -> Change:
        """Read or delete an instance of one's own."""
        note = self.own()
        if not note.pk:
            return {}
        if self.chance.random() < 0.5:
            note.delete()
        else:
            note.mark_as_read()
        return {note.user_id: -1}

    def savepoints(self) -> Change:
        """Several changes in one transaction, of which some are rolled back."""
        with atomic():
            change = Tally(self.save_own())
            try:
                with atomic():
                    self.finish_own()
                    self.create()
                    raise Rollback
            except Rollback:
                change.update(self.create())
        return change

    def roll_back(self) -> Change:
        try:
            with atomic():
                self.bulk_create()
                self.mark_all_as_read()
                raise Rollback
        except Rollback:
            return {}

    ACTIONS = (
        create, create, bulk_create, mark_as_read, mark_all_as_read, mark_as_unread, delete, move,
        save_own, save_own, finish_own, savepoints, roll_back,
    )  # fmt: skip


class Reader:
    """Looks at the count of one user, or of all."""

    def __init__(self, users: Sequence[Any], chance: random.Random):
        self.users, self.chance = users, chance

    def __call__(self) -> dict[Any, int]:
        if self.chance.random() < 0.2:
            return unread.counts(self.users)
        user = self.chance.choice(self.users)
        return {user: unread.count(user)}
