"""Ways in which a row can change, compared with COUNT(*). Random ones: tests/property."""

import json
from contextlib import closing

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import F, Subquery
from django.utils import timezone

from notifications_counter.buffer.types import EVERYONE
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.redis.client import read_all_owed
from tests.support import PATIENCE, assert_exact, assert_heals, assert_reads, buffer, doubted, give_to, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

objects = Notification.objects


@pytest.mark.keys
def test_creation_marking_and_deletion(alice, bob):
    one = objects.create(user=alice, title="unread")
    objects.create(user=alice, title="read", read_at=timezone.now())
    Notification(user_id=bob.pk, title="saved").save()
    assert (unread.count(alice), unread.count(bob)) == (1, 1)
    assert [one.mark_as_read(), one.mark_as_read(), one.is_read, unread.count(alice)] == [True, False, True, 0]
    assert [one.mark_as_unread(), one.mark_as_unread(), one.is_read] == [True, False, False]
    Notification(pk=str(one.pk)).delete()  # a key as a form has it, and an instance that knows no owner
    assert unread.count(alice) == 0
    assert_exact(alice, bob)


def test_rows_that_are_named_by_their_keys_leave_nobody_in_doubt(alice, bob):
    one, two, three = notify(alice)
    assert_reads(alice, bob)
    objects.filter(pk=one.pk).update(read_at=timezone.now())
    two.read_at, three.user = timezone.now(), bob
    two.save()
    three.save()
    objects.filter(pk__in=[one.pk, two.pk]).update(read_at=None)
    objects.filter(pk__in=[two.pk, three.pk]).delete()
    assert_exact(alice, bob)


def test_bulk_creation_for_an_owner_whom_nobody_can_find(alice, bob):
    """Rows whose conflicts are ignored get no primary key, by which to ask: everyone is in doubt."""
    notify(bob)
    assert_reads(alice, bob)
    found = Subquery(get_user_model().objects.filter(username="alice").values("pk")[:1])
    with transaction.atomic():
        objects.bulk_create([Notification(user_id=found, title="x")], ignore_conflicts=True)
        assert_reads(alice, bob)
    assert_reads(alice, bob)
    assert not buffer().status().ready
    assert_heals(alice, bob)
    assert buffer().status().ready


def test_a_join_that_finds_no_rows_puts_nobody_in_doubt(alice):
    notify(alice)
    of_nobody = objects.filter(user__username="nobody")
    assert of_nobody.update(read_at=timezone.now()) == 0
    assert of_nobody.delete()[0] == 0
    assert buffer().status().ready
    objects.filter(user__username=alice.username).update(user=F("user_id"))
    assert not buffer().status().ready
    assert EVERYONE not in doubted()  # as nobody's key


def test_open_streams_are_told_of_owners_by_name_only(alice, bob, redis_client):
    """Everyone may be in the same transaction, and a stream cannot look everyone up."""
    buffer().listen(60)
    with closing(redis_client.pubsub(ignore_subscribe_messages=True)) as stream:
        stream.subscribe(buffer().key("live"))
        stream.get_message(timeout=PATIENCE)
        found = Subquery(get_user_model().objects.filter(username="alice").values("pk")[:1])
        with transaction.atomic():
            objects.create(user=bob, title="x")
            objects.bulk_create([Notification(user_id=found, title="x")], ignore_conflicts=True)
        read_all_owed()
        assert json.loads(stream.get_message(timeout=PATIENCE)["data"]) == [str(bob.pk)]


@pytest.mark.parametrize("committed", [True, False])
def test_bulk_creation_that_gives_conflicts_to_another_owner(committed, alice, bob):
    """Nobody says whose the row was, so everyone is in doubt, but only once it is committed."""
    first, *_ = notify(alice)
    with transaction.atomic():
        give_to(bob, first)
        assert_reads(alice, bob)
        assert buffer().status().ready
        transaction.set_rollback(not committed)
    assert (unread.count(alice), unread.count(bob)) == ((2, 1) if committed else (3, 0))
    assert bool(buffer().status().ready) != committed
    assert_heals(alice, bob)
