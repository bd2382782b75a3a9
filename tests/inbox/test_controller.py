"""The notifications of one user: read, unread, and unseen, which is neither seen nor read."""

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone

from notifications_counter.counters import unread, unseen
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification
from tests.support import assert_exact, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.keys]


def test_reading_all_or_some(healed, alice, bob):
    one, two, *_ = notify(alice, 5, read=1)
    other, *_ = notify(bob)
    controller = NotificationController(alice)
    assert controller.mark_all_as_read([]) == 0
    assert controller.mark_all_as_read(iter([one.pk, two.pk, other.pk])) == 1
    assert controller.mark_all_as_read() == 3
    assert controller.mark_all_as_read() == 0
    assert (controller.unread_count, unread.count(bob)) == (0, 3)
    assert set(controller.notifications) == set(Notification.objects.filter(user=alice))
    assert_exact(alice, bob)


def test_bad_arguments(alice):
    for one in (*notify(alice), "12", 12):
        with pytest.raises(TypeError, match="Pass a list of instances or primary keys, not "):
            NotificationController(alice).mark_all_as_read(one)
    for nobody in (None, AnonymousUser()):
        with pytest.raises(ValueError, match="needs an owner with a primary key"):
            NotificationController(nobody)


# ------------------------------------------------------------------------------------------------------------ unseen
def counts(user: Any) -> tuple[int, int]:
    return unread.count(user), unseen.count(user)


@pytest.fixture
def six(with_unseen, alice, bob) -> Any:
    """Two that are new, two that are seen, one that is read, and one that was read without being seen."""
    rows = notify(alice, 6)
    Notification.objects.filter(pk__in=[row.pk for row in rows[2:5]]).mark_as_seen()
    rows[4].mark_as_read()
    Notification.objects.filter(pk=rows[5].pk).update(read_at=timezone.now())
    yield list(Notification.objects.order_by("pk"))
    for counter in (unread, unseen):
        assert_exact(alice, bob, counter=counter, in_doubt=None)


def test_seeing_leaves_it_unread(six, alice, bob):
    (other,) = notify(bob, 1)
    controller = NotificationController(alice)
    assert controller.mark_as_seen(other.pk) is controller.mark_as_seen("x") is controller.mark_as_seen(0) is False
    assert controller.mark_as_seen(str(six[0].pk)) is True
    assert controller.mark_all_as_seen([six[2].pk, other.pk, "x"]) == 0
    assert controller.mark_all_as_seen() == 1
    assert (counts(alice), counts(bob)) == ((4, 0), (1, 1))
    seen = [row.seen_at for row in Notification.objects.for_user(alice).order_by("pk")]
    assert seen[2:] == [row.seen_at for row in six[2:]]


def test_reading_is_seeing_and_what_is_marked_as_unread_stays_seen(six, alice):
    assert NotificationController(alice).mark_all_as_read() == 4
    assert counts(alice) == (0, 0)
    rows = list(Notification.objects.order_by("pk"))
    assert [row.seen_at == row.read_at for row in rows] == [True, True, False, False, False, False]
    assert Notification.objects.for_user(alice).mark_as_unread() == 6
    assert counts(alice) == (6, 0)


def test_an_instance(six, alice):
    one, two, seen, _, read, _ = six
    assert one.mark_as_seen() is True
    assert (one.seen_at is None, one.read_at, one.mark_as_seen()) == (False, None, False)
    assert seen.mark_as_seen() is read.mark_as_seen() is False
    assert two.mark_as_read() is True
    assert two.seen_at == two.read_at is not None
    assert counts(alice) == (3, 0)
    assert two.mark_as_unread() is True
    assert (two.seen_at is None, two.read_at) == (False, None)
    assert counts(alice) == (4, 0)
