"""The largest counts: ranked by the stored totals, and shown as they are now."""

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.composite_owners.counters import points, unread_by_app
from tests.composite_owners.models import CourseNotification, Vote
from tests.support import notify, redis_out_of_reach

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def users(healed: None, make_user: Callable[..., Any]) -> list[Any]:
    """With 1 to 5 unread notifications, all flushed."""
    users = [make_user() for _ in range(5)]
    for number, user in enumerate(users, start=1):
        notify(user, number)
    unread.flush()
    return users


@pytest.mark.keys
def test_ranked_by_the_last_flush_and_sorted_by_current_counts(users, make_user):
    new = make_user()
    Notification.objects.bulk_create(Notification(user=new, title="x") for _ in range(9))
    Notification.objects.bulk_create(Notification(user=users[3], title="x") for _ in range(2))
    Notification.objects.filter(user=users[2]).mark_as_read()
    assert unread.top(3) == [(users[3].pk, 6), (users[4].pk, 5)]  # without the third, who has none left
    unread.flush()
    right = [(new.pk, 9), (users[3].pk, 6), (users[4].pk, 5), (users[1].pk, 2), (users[0].pk, 1)]
    assert unread.top(3) == right[:3]
    assert unread.top(100) == async_to_sync(unread.atop)(100) == right


def test_in_a_transaction_and_without_redis(users):
    with redis_out_of_reach(), transaction.atomic():
        Notification.objects.bulk_create(Notification(user=users[3], title="x") for _ in range(9))
        assert unread.top(2) == [(users[3].pk, 13), (users[4].pk, 5)]


def test_of_several_columns(alice, bob):
    for user, name, number in ((alice, "a", 1), (alice, "b", 2), (bob, "a", 3)):
        CourseNotification.objects.bulk_create(CourseNotification(user=user, app_name=name) for _ in range(number))
    unread_by_app.flush()
    assert unread_by_app.top(2) == [((bob.pk, "a"), 3), ((alice.pk, "b"), 2)]
    assert unread_by_app.top(2, within=alice) == [((alice.pk, "b"), 2), ((alice.pk, "a"), 1)]


def test_sums():
    Vote.objects.bulk_create(Vote(shop=1, item=1, stars=stars, points=stars - 3) for stars in (2, 3, 4))
    points.flush()
    assert points.top(9, within=(1, 1)) == [((1, 1, 4), 4), ((1, 1, 2), -2)]


@pytest.mark.once
def test_bad_arguments(alice):
    for number in (0, True, "3"):
        with pytest.raises(ValueError, match="Pass the number of owners, not"):
            unread.top(number)
    with pytest.raises(ValueError, match="Owners of counter 'unread' have one column"):
        unread.top(3, alice)
