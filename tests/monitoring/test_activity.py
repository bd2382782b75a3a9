from typing import Any

import pytest
from django.db import transaction

from notifications_counter.models import Notification
from notifications_counter.testing import isolated_counters
from notifications_counter.timeseries import get_counter
from tests.support import savepoint_create

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def activity() -> tuple[int, ...]:
    """What was added and removed."""
    return tuple(sum(n for _, n in get_counter(f"unread:{name}", 86400)) for name in ("added", "removed"))


def test_how_counts_rise_and_fall(alice: Any, bob: Any) -> None:
    Notification.objects.create(user=alice, title="is not recorded")
    with isolated_counters(RECORD_ACTIVITY=True):
        one = Notification.objects.create(user=alice, title="1")
        Notification.objects.bulk_create([Notification(user=u, title="2") for u in (alice, bob) for _ in range(3)])
        assert one.mark_as_read()
        assert not one.mark_as_read()
        assert activity() == (7, 1)
        with transaction.atomic():  # records what it changes in the end
            Notification.objects.create(user=bob, title="3").delete()
            Notification.objects.filter(user=bob).mark_as_read()
        assert activity() == (7, 4)
        with transaction.atomic():  # what may have been rolled back is not recorded
            savepoint = savepoint_create()
            Notification.objects.create(user=alice, title="goes")
            transaction.savepoint_rollback(savepoint)
        assert activity() == (7, 4)
