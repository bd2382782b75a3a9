"""``counts_changed`` tells a site, after a commit, whose counts have changed."""

from contextlib import contextmanager

import pytest
from django.db import transaction

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.signals import counts_changed
from tests.support import create, give_to

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def heard():
    """What the signal says meanwhile: counters, owners, and what their counts are by then."""
    said = []

    def receiver(counter, owners, using, **_):
        assert using == "default"
        said.append((counter, owners and {owner: counter.count(owner) for owner in owners}))

    counts_changed.connect(receiver, sender=unread)
    try:
        yield said
    finally:
        counts_changed.disconnect(receiver, sender=unread)


def test_after_a_commit(alice, bob):
    with heard() as said:
        with transaction.atomic():
            create(alice, 2)
            Notification.objects.create(user=bob, title="z").delete()
            assert said == []
        assert said.pop() == (unread, {alice.pk: 2})
        with transaction.atomic():
            create(alice)
            transaction.set_rollback(True)
        assert said == []
        Notification.objects.for_user(alice).mark_as_read()
        assert said.pop() == (unread, {alice.pk: 0})
        give_to(bob, Notification.objects.first())  # nothing says whose it was
        assert said == [(unread, None)]


def test_a_receiver_that_raises_disturbs_nobody(alice):
    def fail(**_):
        raise RuntimeError

    counts_changed.connect(fail)
    try:
        with heard() as said:
            create(alice)
        assert said == [(unread, {alice.pk: 1})]
    finally:
        counts_changed.disconnect(fail)
