"""The notifications of one user."""

import pytest
from django.contrib.auth.models import AnonymousUser

from notifications_counter.counters import unread
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification
from tests.support import assert_exact, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed"), pytest.mark.keys]


def test_one_is_not_taken_for_many(alice):
    for one in (*notify(alice), "12", b"12", 12):
        with pytest.raises(TypeError, match="Pass a list of instances or primary keys, not "):
            NotificationController(alice).mark_all_as_read(one)
    assert unread.count(alice) == 3


def test_all_of_them(alice, bob):
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


def test_nobody(db):
    for nobody in (None, AnonymousUser()):
        with pytest.raises(ValueError, match="needs an owner with a primary key"):
            NotificationController(nobody)
