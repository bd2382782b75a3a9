from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from notifications_counter.controller import NotificationController
from notifications_counter.models import Notification
from notifications_counter.testing import isolated_counters
from notifications_counter.timeseries import get_counter

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _recorded() -> Iterator[None]:
    with isolated_counters(RECORD_ACTIVITY=True):
        yield


def activity() -> dict[str, int]:
    names = ("created", "read", "deleted")
    return {name: sum(n for _, n in get_counter(f"notifications:{name}", 86400)) for name in names}


def test_created_read_and_deleted(make_user: Callable[..., Any]) -> None:
    user, other = make_user(), make_user()
    one = Notification.objects.create(user=user, title="1")
    Notification.objects.bulk_create([Notification(user=u, title="2") for u in (user, other) for _ in range(3)])
    assert activity() == {"created": 7, "read": 0, "deleted": 0}
    assert one.mark_as_read()
    assert not one.mark_as_read()
    assert NotificationController(user).mark_all_as_read() == 3
    assert Notification.objects.mark_as_read() == 3
    assert activity() == {"created": 7, "read": 7, "deleted": 0}
    one.delete()
    assert Notification.objects.filter(user=user).delete()[0] == 3
    other.delete()
    assert activity() == {"created": 7, "read": 7, "deleted": 7}


def test_what_is_rolled_back_has_not_happened(make_user: Callable[..., Any]) -> None:
    user = make_user()
    with transaction.atomic():
        Notification.objects.create(user=user, title="stays")
        savepoint = transaction.savepoint()
        Notification.objects.create(user=user, title="goes")
        transaction.savepoint_rollback(savepoint)
        assert activity()["created"] == 0
    assert activity()["created"] == 1


def test_nothing_is_recorded_unless_it_is_on(make_user: Callable[..., Any]) -> None:
    with isolated_counters(RECORD_ACTIVITY=False):
        Notification.objects.create(user=make_user(), title="Hello")
        assert activity()["created"] == 0
