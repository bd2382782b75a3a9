"""The counts of all owners with the same first columns."""

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from notifications_counter.counters import unread
from notifications_counter.reader import Reader
from tests.support import OtherConnection

from .counters import points, unread_by_app, votes
from .models import CourseNotification, Vote

OWNER = (1, 1)


def vote(number: int = 1, stars: int = 5) -> None:
    Vote.objects.bulk_create(Vote(shop=1, item=1, stars=stars) for _ in range(number))


def test_values_appear_and_vanish_by_themselves():
    assert votes.breakdown(OWNER) == {}
    vote(2)
    vote(stars=3)
    assert votes.breakdown(OWNER) == {5: 2, 3: 1}
    Vote.objects.filter(stars=3).update(hidden=True)
    assert votes.breakdown(OWNER) == {5: 2}
    assert async_to_sync(votes.abreakdown)(list(OWNER)) == {5: 2}
    assert votes.breakdown((1, 11)) == votes.breakdown((11, 1)) == {}


def test_sums_of_zero_are_left_out():
    Vote.objects.bulk_create(Vote(shop=1, item=1, stars=stars, points=stars - 3) for stars in (2, 3, 4))
    assert points.breakdown(OWNER) == {2: -2, 4: 4}


def test_rows_of_many_are_counted_together(alice, bob):
    vote(2)
    Vote.objects.create(shop=1, item=2, stars=4)
    CourseNotification.objects.create(user=alice, app_name="likes")
    right = {(1, 1): {5: 2}, (1, 2): {4: 1}, (2, 2): {}}
    with CaptureQueriesContext(connection) as statements:
        assert Reader(votes).breakdowns(list(right)) == right
        assert Reader(unread_by_app).breakdowns([(alice.pk,), (bob.pk,)]) == {(alice.pk,): {"likes": 1}, (bob.pk,): {}}
    assert len(statements) == 2


def test_a_transaction_sees_its_own_changes_and_no_other_does():
    vote()
    with transaction.atomic():
        vote(stars=4)
        assert votes.breakdown(OWNER) == {5: 1, 4: 1}
        if connection.vendor != "sqlite":  # others wait for the whole database
            with OtherConnection() as other:
                assert other.run(votes.breakdown, OWNER) == {5: 1}
        transaction.set_rollback(True)
    assert votes.breakdown(OWNER) == {5: 1}


def test_what_is_no_owner_is_an_error(alice):
    for owner in (None, 1, (1,), (1, 2, 3), ("x", 1)):
        with pytest.raises(ValueError, match="needs|not a primary key"):
            votes.breakdown(owner)
    with pytest.raises(ValueError, match="have one column, user. Use count"):
        unread.breakdown(alice)
