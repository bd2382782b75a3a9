"""Ways in which a row can change, compared with COUNT(*). Random ones: tests/statements."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import Count, Subquery, Value
from django.db.models.signals import ModelSignal, post_delete, post_save, pre_save
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import assert_exact, assert_heals, assert_reads, buffer, make_keys, notify, rows, savepoint_create
from tests.tasks.models import Alert, Invitation

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

objects = Notification.objects


@contextmanager
def listening(signal: ModelSignal, receiver: Callable[..., None]) -> Iterator[None]:
    signal.connect(receiver, sender=Notification)
    try:
        yield
    finally:
        signal.disconnect(receiver, sender=Notification)


# ------------------------------------------------------------------------------------------------------- creation
@pytest.mark.keys
def test_creation_and_marking(alice, bob):
    one = objects.create(user=alice, title="unread")
    read = objects.create(user=alice, title="read", read_at=timezone.now())
    Notification(user_id=bob.pk, title="saved").save()
    assert (unread.count(alice), unread.count(bob)) == (1, 1)
    assert [read.mark_as_read(), one.mark_as_read(), one.mark_as_read()] == [False, True, False]
    assert one.is_read
    assert one.read_at == objects.get(pk=one.pk).read_at
    assert unread.count(alice) == 0
    assert [one.mark_as_unread(), one.mark_as_unread()] == [True, False]
    assert not one.is_read
    assert_exact(alice, bob)


def test_bulk_creation_for_an_owner_whom_nobody_can_find(alice, bob):
    """Rows whose conflicts are ignored get no primary key, by which to ask: everyone is in doubt."""
    notify(bob)
    found = Subquery(get_user_model().objects.filter(username="alice").values("pk")[:1])
    with transaction.atomic():
        objects.bulk_create([Notification(user_id=found, title="x")], ignore_conflicts=True)
        assert_reads(alice, bob)
    assert_reads(alice, bob)
    assert not buffer().status().ready
    assert_heals(alice, bob)
    assert buffer().status().ready


@pytest.mark.parametrize("committed", [True, False])
def test_bulk_creation_that_gives_conflicts_to_another_owner(committed, alice, bob):
    """Nobody says whose the row was, so everyone is in doubt, but only once it is committed."""
    first, *_ = notify(alice)
    unique = {} if connection.vendor == "mysql" else {"unique_fields": ["pk"]}
    with transaction.atomic():
        row = Notification(pk=first.pk, user=bob, title="again")
        objects.bulk_create([row], update_conflicts=True, update_fields=["user"], **unique)
        assert_reads(alice, bob)
        assert buffer().status().ready
        transaction.set_rollback(not committed)
    assert (unread.count(alice), unread.count(bob)) == ((2, 1) if committed else (3, 0))
    assert bool(buffer().status().ready) != committed
    assert_heals(alice, bob)


def test_bulk_creation_for_many_users():
    """More users than one call names."""
    keys = make_keys(1200)
    with transaction.atomic():
        objects.bulk_create(Notification(user_id=key, title="x") for key in [*keys, *keys[:100]])
    assert unread.counts(keys) == {key: 1 + (i < 100) for i, key in enumerate(keys)}
    assert_exact(*keys[::100])


# ------------------------------------------------------------------------------------------------------ querysets
SELECTED: dict[str, Callable[[Any, Any], Any]] = {
    "all": lambda q, alice: q,
    "hers": lambda q, alice: q.for_user(alice),
    "of several": lambda q, alice: q.filter(user__in=[alice]),
    "some of hers": lambda q, alice: q.for_user(alice).filter(title__in="12"),
    "not hers": lambda q, alice: q.exclude(user=alice),
    "joined": lambda q, alice: q.filter(user__username="alice"),
    "distinct": lambda q, alice: q.filter(user=alice, user__logentry__action_flag=ADDITION).distinct(),
    "annotated": lambda q, alice: q.annotate(n=Count("user__logentry")).filter(n__gt=1),
    "as an expression": lambda q, alice: q.filter(user=Value(alice.pk, Notification._meta.get_field("user"))),
    "unread": lambda q, alice: q.for_user(alice).unread(),
    "none": lambda q, alice: q.none(),
    "proxies": lambda q, alice: Alert.objects.filter(user=alice),
}


@pytest.mark.parametrize("name", SELECTED)
def test_a_queryset(alice, bob, name):
    """It is marked as read, twice, and as unread, and then deleted."""
    for user in (alice, bob):
        notify(user, 4, read=2)
    LogEntry.objects.bulk_create(LogEntry(user=alice, object_repr="x", action_flag=ADDITION) for _ in range(2))
    before = rows(alice) + rows(bob)
    for how, sign in (("mark_as_read", -1), ("mark_as_read", 0), ("mark_as_unread", 1)):
        changed = getattr(SELECTED[name](objects.all(), alice), how)()
        after = rows(alice) + rows(bob)
        assert after - before == sign * changed
        assert sign or not changed
        before = after
    assert_exact(alice, bob, in_doubt=None)
    before = objects.count()
    deleted, _ = SELECTED[name](objects.all(), alice).delete()
    assert objects.count() == before - deleted
    assert_exact(alice, bob)


def test_a_queryset_whose_deletion_others_hear_of(alice):
    """Django then deletes rows by their primary keys."""
    notify(alice, 4, read=2)
    seen: list[Any] = []
    with listening(post_delete, lambda instance, **_: seen.append(instance.pk)):
        assert objects.filter(user__username="alice", title__lt="3").delete()[0] == len(seen) == 3
    assert unread.count(alice) == 1
    assert_exact(alice)


@pytest.mark.keys
def test_a_new_user_with_the_key_of_a_deleted_one(alice, bob, make_user):
    notify(alice, 3)
    notify(bob)
    objects.create(user=alice, title="not flushed")
    key = alice.pk
    alice.delete()
    assert unread.counts([key, bob]) == {key: 0, bob.pk: 3}
    again = make_user(pk=key, username="another")
    assert unread.count(again) == 0
    objects.create(user=again, title="x")
    assert unread.count(again) == 1
    assert_exact(again, bob)


def test_deletion_of_multi_table_children(alice):
    for number, delete in enumerate(
        [
            lambda child: child.delete(),
            lambda child: objects.get(pk=child.pk).delete(),
            lambda child: Invitation.objects.filter(event=child.event).delete(),
            lambda child: objects.filter(title=child.title).delete(),
        ]
    ):
        delete(Invitation.objects.create(user=alice, title=str(number), event=str(number)))
        assert unread.count(alice) == 0
    Invitation.objects.create(user=alice, title="x", event="x").delete(keep_parents=True)
    assert unread.count(alice) == 1
    assert_exact(alice)


# ------------------------------------------------------------------------------------------------ foreign receivers
def saves_another(instance: Notification, **_: Any) -> None:
    if instance.title != "another":
        objects.create(user_id=instance.user_id, title="another")


def changes_it_in_memory(instance: Notification, **_: Any) -> None:
    instance.read_at = timezone.now()


def gives_it_away(instance: Notification, **_: Any) -> None:
    instance.user = get_user_model().objects.get(username="bob")


def tries_in_vain(instance: Notification, **_: Any) -> None:
    if connection.in_atomic_block:
        savepoint = savepoint_create()
        objects.filter(user=instance.user_id, title="2").update(read_at=timezone.now())
        transaction.savepoint_rollback(savepoint)


@pytest.mark.parametrize("meddle", [saves_another, changes_it_in_memory, gives_it_away, tries_in_vain])
def test_receivers_that_meddle(alice, bob, meddle):
    one, two, _ = notify(alice, read=1)
    with listening(pre_save, meddle), listening(post_save, meddle):
        objects.create(user=alice, title="new")
        one.read_at = None
        one.save()
        with transaction.atomic():
            two.user = bob
            two.save()
            Alert(user=alice, title="proxy").save()
    assert_exact(alice, bob, in_doubt=None)


def test_a_key_as_text(alice):
    """As a form has it: the instance knows no owner."""
    one, *_ = notify(alice)
    Notification(pk=str(one.pk)).delete()
    assert unread.count(alice) == 2
    assert_exact(alice)
