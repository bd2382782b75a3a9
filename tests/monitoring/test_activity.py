from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from notifications_counter.counters import unread
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification
from notifications_counter.testing import isolated_counters
from notifications_counter.timeseries import get_counter
from tests.support import savepoint_create, sent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _recorded() -> Iterator[None]:
    with isolated_counters(RECORD_ACTIVITY=True):
        yield


def activity(*names: str) -> dict[str, int]:
    names = names or ("added", "removed")
    return {name: sum(n for _, n in get_counter(f"unread:{name}", 86400)) for name in names}


def test_how_counts_rise_and_fall(make_user: Callable[..., Any]) -> None:
    user, other = make_user(), make_user()
    one = Notification.objects.create(user=user, title="1")
    Notification.objects.bulk_create([Notification(user=u, title="2") for u in (user, other) for _ in range(3)])
    assert activity() == {"added": 7, "removed": 0}
    assert one.mark_as_read()
    assert not one.mark_as_read()
    assert NotificationController(user).mark_all_as_read() == 3
    assert Notification.objects.mark_as_read() == 3
    assert activity() == {"added": 7, "removed": 7}
    one.delete()
    other.delete()
    assert activity() == {"added": 7, "removed": 7}


def test_a_transaction_counts_what_it_changes_in_the_end(make_user: Callable[..., Any]) -> None:
    user, other = make_user(), make_user()
    with transaction.atomic():
        rows = [Notification.objects.create(user=user, title=title) for title in "123"]
        rows[0].delete()
        Notification.objects.create(user=other, title="4")
        Notification.objects.filter(user=other).delete()
    assert activity() == {"added": 2, "removed": 0}
    with transaction.atomic():
        rows[1].mark_as_read()
        Notification.objects.create(user=other, title="5")
    assert activity() == {"added": 3, "removed": 1}


def test_what_is_rolled_back_has_not_happened(make_user: Callable[..., Any]) -> None:
    user = make_user()
    with transaction.atomic():
        Notification.objects.create(user=user, title="stays")
        savepoint = savepoint_create()
        Notification.objects.create(user=user, title="goes")
        transaction.savepoint_rollback(savepoint)
        assert activity()["added"] == 0
    assert activity()["added"] == 1


def test_flushes_and_the_users_flushed(make_user: Callable[..., Any]) -> None:
    users = [make_user() for _ in range(3)]
    unread.heal()
    for some in (users, users[:2], []):
        Notification.objects.bulk_create([Notification(user=u, title="1") for u in some])
        with sent() as commands:
            unread.flush()
        assert commands.count("update_series") == bool(some)
    assert activity("flushes", "flushed") == {"flushes": 2, "flushed": 5}


def test_nothing_is_recorded_unless_it_is_on(make_user: Callable[..., Any]) -> None:
    with isolated_counters(RECORD_ACTIVITY=False):
        unread.heal()
        Notification.objects.create(user=make_user(), title="Hello")
        unread.flush()
        assert not any(activity("added", "flushes", "flushed").values())
