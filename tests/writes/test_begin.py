"""An announcement that is on its way while its statement is prepared."""

import copy

import pytest
from django.conf import settings
from django.test import override_settings

import servers
from notifications_counter.counters import unread
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.testing import isolated_counters
from tests.support import assert_heals


@pytest.fixture
def own_redis():
    """A Redis that a test may pause, with little patience for it."""
    caches = copy.deepcopy(settings.CACHES)
    with servers.redis() as server:
        caches["default"]["LOCATION"] = server.url
        caches["default"]["OPTIONS"]["SOCKET_TIMEOUT"] = 2  # seconds
        with override_settings(CACHES=caches), isolated_counters(RETRY_AFTER=0):
            yield server


def create(user):
    Notification.objects.create(user=user, title="1")


def bulk_create(user):
    Notification.objects.bulk_create([Notification(user=user, title="1")])


def mark_as_unread(user):
    Notification.objects.for_user(user).mark_as_unread()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("write", [create, bulk_create, mark_as_unread])
def test_without_a_reply_the_row_is_written_once_and_together_with_a_recount_request(own_redis, make_user, write):
    user = make_user()
    unread.heal()
    if write is mark_as_unread:
        Notification.objects.create(user=user, title="1")
        Notification.objects.for_user(user).mark_as_read()
    unread.flush()
    assert unread.count(user) == 0

    own_redis.pause()
    try:
        write(user)
    finally:
        own_redis.resume()

    assert Notification.objects.unread().count() == 1
    assert list(RecountRequest.objects.values_list("counter", "owner")) == [("unread", str(user.pk))]
    assert_heals(user)
    assert not RecountRequest.objects.exists()
