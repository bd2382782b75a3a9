"""The counts of all owners with the same first columns."""

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from notifications_counter.counters import unread
from notifications_counter.sql.counts import break_down

from .counters import points, unread_by_app, votes
from .models import CourseNotification, Vote

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("all_healed")]

OWNER = (1, 1)


def vote(number: int = 1, stars: int = 5) -> None:
    Vote.objects.bulk_create(Vote(shop=1, item=1, stars=stars, points=stars - 3) for _ in range(number))


def test_values_appear_and_vanish_by_themselves():
    assert votes.breakdown(OWNER) == {}
    vote(2)
    with transaction.atomic():
        vote(stars=3)
        assert votes.breakdown(OWNER) == {5: 2, 3: 1}
    assert votes.breakdown(OWNER) == {5: 2, 3: 1}
    assert points.breakdown(OWNER) == {5: 20}  # sums of zero are left out
    Vote.objects.filter(stars=3).update(hidden=True)
    assert votes.breakdown(OWNER) == async_to_sync(votes.abreakdown)(list(OWNER)) == {5: 2}
    assert votes.breakdown((1, 11)) == votes.breakdown((11, 1)) == {}


def test_rows_of_many_are_counted_together(alice, bob):
    """By a list for each column: a condition for each owner would take a database longer than all else."""
    vote(2)
    for shop, item in ((1, 2), (2, 1)):  # nobody asks for the latter
        Vote.objects.create(shop=shop, item=item, stars=4)
    CourseNotification.objects.create(user=alice, app_name="likes")
    right = {(1, 1): {5: 2}, (1, 2): {4: 1}, (2, 2): {}}
    with CaptureQueriesContext(connection) as statements:
        assert break_down(votes, list(right)) == right
        assert break_down(unread_by_app, [(alice.pk,), (bob.pk,)]) == {(alice.pk,): {"likes": 1}, (bob.pk,): {}}
    assert [" OR " in statement["sql"] for statement in statements] == [False, False]


def test_what_is_no_owner_is_an_error(alice):
    for owner in (None, 1, (1,), (1, 2, 3), ("x", 1)):
        with pytest.raises(ValueError, match="takes a tuple|needs an owner|not a primary key"):
            votes.breakdown(owner)
    with pytest.raises(ValueError, match="have one column, user. Use count"):
        unread.breakdown(alice)
