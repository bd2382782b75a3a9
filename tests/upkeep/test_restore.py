"""A database that is restored from a backup, while Redis knows what has happened since."""

import pytest
from django.core.management import call_command

from notifications_counter.counters import unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import CounterState, DoubtRequest, Notification, UserNotificationsCount
from tests.support import assert_exact, assert_reads, notify, redis_out_of_reach, rows, stored, unheard

pytestmark = pytest.mark.django_db(transaction=True)

TABLES = [Notification, UserNotificationsCount, CounterState, DoubtRequest]


def test_a_backup_that_is_restored(healed, alice, bob, make_user):
    """And nobody says so before the site has gone on."""
    carol = make_user()
    notify(alice, 3)
    backup = [list(model.objects.all()) for model in TABLES]
    notify(bob, 2)  # flushed
    Notification.objects.filter(user=alice).mark_as_read()
    Notification.objects.create(user=carol, title="not flushed")
    unread.counts([alice, bob, carol])
    for model, saved in zip(TABLES, backup, strict=True):
        unheard(model.objects.all()._raw_delete, "default")
        unheard(model.objects.bulk_create, saved)
    assert [rows(user) for user in (alice, bob, carol)] == [3, 0, 0]
    assert list(unread.counts([alice, bob, carol]).values()) == [0, 2, 1]  # what Redis remembers
    unread.heal()
    unread.flush()
    with redis_out_of_reach(), pytest.raises(BufferUnavailable):
        unread.invalidate()
    Notification.objects.create(user=bob, title="after the restore")
    call_command("recount_counters", "--restored")
    assert_reads(alice, bob, carol)
    assert [stored(user) for user in (alice, bob, carol)] == [3, 1, 0]
    assert_exact(alice, bob, carol)


def test_a_backup_from_before_the_first_run(healed, alice):
    notify(alice)
    unread.count(alice)
    unheard(Notification.objects.all().delete)
    CounterState.objects.all().delete()
    unread.invalidate()
    assert_reads(alice)
