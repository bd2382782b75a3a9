"""Every way in which a row can change, compared with COUNT(*)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import Count, Q, Subquery, Value
from django.db.models.signals import ModelSignal, post_delete, post_save, pre_save
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import assert_exact, assert_heals, assert_reads, buffer, notify, rows, savepoint_create
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
def test_creation(alice, bob):
    Notification.objects.create(user=alice, title="unread")
    Notification.objects.create(user=alice, title="read", read_at=timezone.now())
    Notification(user_id=bob.pk, title="saved").save()
    Notification.objects.create(user=alice, title="by the user")
    assert (unread.count(alice), unread.count(bob)) == (2, 1)
    assert_exact(alice, bob)


def _key_of(user: Any) -> list[Any]:
    """Expressions for the primary key of a user."""
    found = get_user_model().objects.filter(username=user.username).values("pk")[:1]
    return [found, Subquery(found), Value(user.pk, output_field=unread.key_fields[0])]


def test_bulk_creation_for_an_owner_whom_nobody_can_find(alice, bob):
    """Rows whose conflicts are ignored get no primary key, by which to ask: everyone is in doubt."""
    notify(bob)
    with transaction.atomic():
        objects.bulk_create([Notification(user_id=_key_of(alice)[0], title="x")], ignore_conflicts=True)
        assert_reads(alice, bob)
    assert_reads(alice, bob)
    assert not buffer().status().ready
    assert_heals(alice, bob)
    assert buffer().status().ready


def upsert(row: Notification, *fields: str) -> None:
    """Give a row the values of these fields of a new one."""
    unique = {} if connection.vendor == "mysql" else {"unique_fields": ["pk"]}
    objects.bulk_create([row], update_conflicts=True, update_fields=fields, **unique)


@pytest.mark.parametrize("committed", [True, False])
def test_bulk_creation_that_gives_conflicts_to_another_owner(committed, alice, bob):
    """Nobody says whose the row was, so everyone is in doubt, but only once it is committed."""
    first, *_ = notify(alice)
    with transaction.atomic():
        upsert(Notification(pk=first.pk, user=bob, title="again"), "user")
        assert_reads(alice, bob)
        assert buffer().status().ready
        transaction.set_rollback(not committed)
    assert (unread.count(alice), unread.count(bob)) == ((2, 1) if committed else (3, 0))
    assert bool(buffer().status().ready) != committed
    assert_heals(alice, bob)


def test_bulk_creation_for_many_users():
    """More users than one part holds."""
    model = get_user_model()
    users = model.objects.bulk_create(model(username=f"u{i}") for i in range(1200))
    keys = sorted((user.pk for user in model.objects.all()), key=str)
    assert len(users) == len(keys) == 1200
    with transaction.atomic():
        objects.bulk_create(Notification(user_id=keys[i % 1200], title="x") for i in range(2500))
    counts = unread.counts(keys)
    assert counts == {key: 2 + (i < 100) for i, key in enumerate(keys)}
    assert_exact(*keys[::100])
    assert unread.recount(dry_run=True).wrong == 0


# -------------------------------------------------------------------------------------------------------- marking
def test_marking_a_notification(alice):
    one, two, _ = notify(alice, read=1)
    assert [one.mark_as_read(), two.mark_as_read(), two.mark_as_read()] == [False, True, False]
    assert two.is_read
    assert two.read_at == Notification.objects.get(pk=two.pk).read_at
    assert unread.count(alice) == 1
    assert [one.mark_as_unread(), one.mark_as_unread()] == [True, False]
    assert not one.is_read
    assert unread.count(alice) == 2
    assert_exact(alice)


MARKED = {
    "all": lambda q, alice: q,
    "hers": lambda q, alice: q.for_user(alice),
    "hers by key": lambda q, alice: q.filter(user_id=alice.pk),
    "of several": lambda q, alice: q.filter(user__in=[alice]),
    "some of hers": lambda q, alice: q.for_user(alice).filter(title__in="12"),
    "hers or any": lambda q, alice: q.filter(Q(user=alice) | Q(title="1")),
    "not hers": lambda q, alice: q.exclude(user=alice),
    "neither": lambda q, alice: q.filter(~Q(user=alice), user=alice),
    "joined": lambda q, alice: q.filter(user__username="alice"),
    "not joined": lambda q, alice: q.exclude(user__username="alice"),
    "hers and joined": lambda q, alice: q.filter(user=alice, user__is_active=True),
    "many rows a row": lambda q, alice: q.filter(user=alice, user__logentry__action_flag=ADDITION),
    "distinct": lambda q, alice: q.filter(user=alice, user__logentry__action_flag=ADDITION).distinct(),
    "annotated": lambda q, alice: q.annotate(n=Count("user__logentry")).filter(n__gt=1),
    "by another's": lambda q, alice: q.filter(user__in=get_user_model().objects.filter(username="alice")),
    "as an expression": lambda q, alice: q.filter(user=Value(alice.pk, Notification._meta.get_field("user"))),
    "union": lambda q, alice: q.filter(user=alice, title="0") | q.filter(title="2"),
    "read": lambda q, alice: q.for_user(alice).read(),
    "unread": lambda q, alice: q.for_user(alice).unread(),
    "none": lambda q, alice: q.none(),
    "proxies": lambda q, alice: Alert.objects.filter(user=alice),
}


def log_twice(user):
    LogEntry.objects.bulk_create(LogEntry(user=user, object_repr="x", action_flag=ADDITION) for _ in range(2))


@pytest.mark.parametrize("name", MARKED)
def test_marking_a_queryset(alice, bob, name):
    notify(alice, 4, read=2)
    notify(bob, 4, read=2)
    log_twice(alice)
    before = rows(alice) + rows(bob)
    for how, sign in (("mark_as_read", -1), ("mark_as_read", 0), ("mark_as_unread", 1)):
        changed = getattr(MARKED[name](Notification.objects.all(), alice), how)()
        after = rows(alice) + rows(bob)
        assert after - before == sign * changed
        assert sign or not changed
        before = after
    assert_exact(alice, bob, in_doubt=None)


# ------------------------------------------------------------------------------------------------------- deletion
@pytest.mark.parametrize("foreign", [False, True], ids=["", "with a foreign receiver"])
@pytest.mark.parametrize("name", ["all", "hers", "unread", "joined", "distinct", "not joined", "proxies", "none"])
def test_deletion_of_a_queryset(alice, bob, name, foreign):
    notify(alice, 4, read=2)
    notify(bob, 2)
    log_twice(alice)
    before, seen = objects.count(), []
    selected = MARKED[name](Notification.objects.all(), alice)
    with listening(post_delete, lambda instance, **_: seen.append(instance.pk)) if foreign else nullcontext():
        deleted, _ = selected.delete()
    assert len(seen) == (deleted if foreign and selected.model is Notification else 0)
    assert objects.count() == before - deleted
    assert_exact(alice, bob)


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


# -------------------------------------------------------------------------------------------------------- children
def test_deletion_of_multi_table_children(alice):
    by_child, by_parent, kept, all_children, all_parents = (
        Invitation.objects.create(user=alice, title=str(i), event=str(i)) for i in range(5)
    )
    by_child.delete()
    Notification.objects.get(pk=by_parent.pk).delete()
    assert unread.count(alice) == 3
    kept.delete(keep_parents=True)
    assert unread.count(alice) == 3
    Invitation.objects.filter(event="3").delete()
    assert unread.count(alice) == 2
    objects.filter(title="4").delete()
    assert unread.count(alice) == 1
    assert_exact(alice)


# ------------------------------------------------------------------------------------------------ foreign receivers
def saves_another(instance: Notification, **_: Any) -> None:
    if instance.title != "another":
        Notification.objects.create(user_id=instance.user_id, title="another")


def changes_it_in_memory(instance: Notification, **_: Any) -> None:
    instance.read_at = timezone.now()


def gives_it_away(instance: Notification, **_: Any) -> None:
    instance.user = get_user_model().objects.get(username="bob")


def tries_in_vain(instance: Notification, **_: Any) -> None:
    if connection.in_atomic_block:
        savepoint = savepoint_create()
        Notification.objects.filter(user=instance.user_id, title="2").update(read_at=timezone.now())
        transaction.savepoint_rollback(savepoint)


@pytest.mark.parametrize("meddle", [saves_another, changes_it_in_memory, gives_it_away, tries_in_vain])
def test_receivers_that_meddle(alice, bob, meddle):
    one, two, _ = notify(alice, read=1)
    with listening(pre_save, meddle), listening(post_save, meddle):
        Notification.objects.create(user=alice, title="new")
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
