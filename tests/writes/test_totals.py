"""Whoever writes a stored total and is not the flusher puts everyone in doubt."""

import pytest
from django.db import transaction

from notifications_counter.counters import unread
from notifications_counter.models import UserNotificationsCount
from tests.support import assert_exact, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

totals = UserNotificationsCount.objects

WRITES = {
    "save": lambda user: UserNotificationsCount(pk=user.pk, unread_count=7).save(),
    "update": lambda user: totals.update(unread_count=7),
    "delete": lambda user: totals.get(pk=user.pk).delete(),
    "raw delete": lambda user: totals.filter(pk=user.pk)._raw_delete("default"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_written_by_others(alice, write):
    notify(alice)
    assert unread.count(alice) == 3
    write(alice)
    assert unread.count(alice) == 3
    assert_exact(alice, in_doubt=None)


def test_what_leaves_no_doubt(alice):
    """A rollback, and other columns."""
    notify(alice)
    with transaction.atomic():
        totals.update(unread_count=7)
        transaction.set_rollback(True)
    totals.update(updated_at="2026-01-01T00:00:00Z")
    assert_exact(alice)
