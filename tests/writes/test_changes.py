"""Every way in which a row can change, compared with COUNT(*)."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import Case, Count, F, Q, Subquery, Value, When
from django.db.models.functions import Now
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


def test_creation_with_a_key_of_its_own(alice, bob):
    """Django tries an UPDATE first, and nobody can tell beforehand which it will be."""
    Notification(pk=7, user=alice, title="new").save()
    assert unread.count(alice) == 1
    Notification(pk=7, user=bob, title="overwritten", created_at=timezone.now()).save()
    assert (unread.count(alice), unread.count(bob)) == (0, 1)
    Notification(pk=7, user=bob, read_at=timezone.now()).save(force_update=True, update_fields=["read_at"])
    assert unread.count(bob) == 0
    Notification(pk=8, user=bob, title="inserted").save(force_insert=True)
    assert unread.count(bob) == 1
    assert_exact(alice, bob)


def _key_of(user: Any) -> list[Any]:
    """Expressions for the primary key of a user."""
    found = get_user_model().objects.filter(username=user.username).values("pk")[:1]
    return [found, Subquery(found), Value(user.pk, output_field=unread.key_fields[0])]


@pytest.mark.keys
@pytest.mark.parametrize("bulk", [False, True], ids=["", "in bulk"])
@pytest.mark.parametrize("atomic", [False, True], ids=["", "in a transaction"])
def test_creation_for_an_owner_whom_the_database_finds(alice, bob, atomic, bulk):
    new = [Notification(user_id=key, title="x") for key in [*_key_of(alice), _key_of(bob)[0]]]
    with transaction.atomic() if atomic else nullcontext():
        if bulk:
            objects.bulk_create(new)
        else:
            for row in new:
                row.save()
    assert (unread.count(alice), unread.count(bob)) == (3, 1)
    assert_exact(alice, bob)


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


@pytest.mark.keys
def test_bulk_creation(alice, bob):
    objects.bulk_create(Notification(user=u, title="x") for u in (alice, bob, alice))
    objects.bulk_create([Notification(user=bob, title="x", read_at=timezone.now())])
    objects.bulk_create([])
    Notification.objects.bulk_create([Notification(user=alice, title="x")])
    assert (unread.count(alice), unread.count(bob)) == (3, 1)
    assert_exact(alice, bob)


def test_bulk_creation_that_ignores_conflicts(alice, bob):
    first, *_ = notify(alice)
    objects.bulk_create(
        [Notification(pk=first.pk, user=bob, title="there already"), Notification(user=bob, title="new")],
        ignore_conflicts=True,
    )
    assert unread.count(bob) == 1
    assert_exact(alice, bob, in_doubt=None)


def upsert(row: Notification, *fields: str) -> None:
    """Give a row the values of these fields of a new one."""
    unique = {} if connection.vendor == "mysql" else {"unique_fields": ["pk"]}
    objects.bulk_create([row], update_conflicts=True, update_fields=fields, **unique)


def test_bulk_creation_that_updates_conflicts_of_another_owner(alice, bob):
    """The row keeps its owner, of whom the new instance knows nothing."""
    first, *_ = notify(alice)
    upsert(Notification(pk=first.pk, user=bob, title="again", read_at=timezone.now()), "read_at")
    assert (unread.count(alice), unread.count(bob)) == (2, 0)
    assert_exact(alice, bob, in_doubt=1)


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


# --------------------------------------------------------------------------------------------------------- saving
@pytest.mark.parametrize("value", [Now(), Value(None), Case(When(title="0", then=Now())), F("created_at")])
def test_save_of_an_expression(alice, value):
    for instance in notify(alice, read=1):
        instance.read_at = value
        instance.save()
    assert_exact(alice, in_doubt=None)


# ------------------------------------------------------------------------------------------------------- updating
def test_update_of_more_rows_than_a_statement_takes(alice, bob):
    notify(alice, 2000)
    assert objects.filter(title__gte="1").update(user=bob) == 1999
    assert (unread.count(alice), unread.count(bob)) == (1, 1999)
    assert objects.filter(user__username="bob").update(read_at=Now()) == 1999
    assert_exact(alice, bob, in_doubt=None)


def test_update_of_the_primary_key(alice, bob):
    notify(alice)
    assert objects.update(id=F("id") + 1000) == 3
    assert objects.filter(id__gt=1000).update(id=F("id") + 1000, user=bob) == 3
    assert (unread.count(alice), unread.count(bob)) == (0, 3)
    assert objects.update(id=F("id") + 1000, read_at=Case(When(id__gt=0, then=Now()))) == 3
    # PostgreSQL says what the rows were and are in one statement.
    assert_exact(alice, bob, in_doubt=None)


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


def test_marking_a_notification_that_has_another_owner_by_now_or_is_gone(alice, bob):
    one, two, _ = notify(alice)
    objects.filter(pk=one.pk).update(user=bob)
    objects.filter(pk=two.pk).delete()
    assert [one.mark_as_read(), two.mark_as_read()] == [True, False]
    assert (unread.count(alice), unread.count(bob)) == (1, 0)
    assert_exact(alice, bob, in_doubt=None)


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


def test_one_statement_marks_all_of_a_user(alice, django_assert_num_queries):
    """The condition stands in the UPDATE itself, so nothing need be locked before it."""
    if unread.key_fields[0].get_internal_type() == "CharField":
        pytest.skip("A text may equal that of another user, as its collation has it: rows tell whose they are.")
    notify(alice)
    with django_assert_num_queries(1):
        assert objects.for_user(alice).mark_as_read() == 3
    assert_exact(alice)


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


# -------------------------------------------------------------------------------------------------------- fixtures
def test_loaddata(alice, bob, tmp_path):
    one, two, _ = notify(alice)

    def entry(pk: int, user: Any, read: bool, model: str = "notifications_counter.notification") -> dict:
        read_at = timezone.now().isoformat() if read else None
        fields = {"user": str(user.pk), "title": "loaded", "created_at": timezone.now().isoformat(), "read_at": read_at}
        return {"model": model, "pk": pk, "fields": fields}

    fixture = tmp_path / "fixture.json"
    fixture.write_text(
        json.dumps(
            [
                entry(one.pk, bob, False),
                entry(two.pk, alice, True),
                entry(1000, bob, False),
                entry(1001, alice, False, "tasks.alert"),
            ]
        )
    )
    call_command("loaddata", fixture, verbosity=0)
    assert (unread.count(alice), unread.count(bob)) == (2, 2)
    assert_reads(alice, bob)


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
