from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification
from notifications_counter.testing import isolated_counters
from notifications_counter.timeseries import get_counter
from tests.support import savepoint_create

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture(autouse=True)
def _recorded() -> Iterator[None]:
    with isolated_counters(RECORD_ACTIVITY=True):
        yield


def activity() -> tuple[int, ...]:
    """What was added and removed."""
    return tuple(sum(n for _, n in get_counter(f"unread:{name}", 86400)) for name in ("added", "removed"))


def test_how_counts_rise_and_fall(alice: Any, bob: Any) -> None:
    one = Notification.objects.create(user=alice, title="1")
    Notification.objects.bulk_create([Notification(user=u, title="2") for u in (alice, bob) for _ in range(3)])
    assert one.mark_as_read()
    assert not one.mark_as_read()
    assert NotificationController(alice).mark_all_as_read() == 3
    assert activity() == (7, 4)
    with isolated_counters(RECORD_ACTIVITY=False):
        Notification.objects.create(user=alice, title="Hello")
        assert activity() == (0, 0)


def test_a_transaction_counts_what_it_changes_in_the_end(alice: Any, bob: Any) -> None:
    with transaction.atomic():
        rows = [Notification.objects.create(user=alice, title=title) for title in "123"]
        rows[0].delete()
        Notification.objects.create(user=bob, title="4")
        Notification.objects.filter(user=bob).delete()
    assert activity() == (2, 0)
    with transaction.atomic():  # what may have been rolled back is not recorded
        savepoint = savepoint_create()
        Notification.objects.create(user=alice, title="goes")
        transaction.savepoint_rollback(savepoint)
    assert activity() == (2, 0)
