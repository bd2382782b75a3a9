"""Every write passes a door, which other packages may wrap. Whoever writes a stored total and is not the flusher puts
everyone in doubt."""

from functools import wraps
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import transaction

from notifications_counter.checks import TAG
from notifications_counter.counters import unread
from notifications_counter.internals import SQLInsertCompiler
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.writes.door import install
from tests.support import assert_exact, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

totals = UserNotificationsCount.objects


def create(user: Any) -> None:
    Notification.objects.bulk_create([Notification(user=user, title="x")])


def messages() -> list[str]:
    return [message.id for message in run_checks(tags=[TAG])]


@pytest.mark.once
def test_other_packages_patch_the_same_method(alice, monkeypatch):
    """As django-cachalot does, which puts back what it found."""
    plain = SQLInsertCompiler.execute_sql.__wrapped__

    @wraps(door := SQLInsertCompiler.execute_sql)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return door(*args, **kwargs)

    assert unread.count(alice) == 0
    monkeypatch.setattr(SQLInsertCompiler, "execute_sql", wrapper)
    install()
    create(alice)
    assert SQLInsertCompiler.execute_sql is wrapper
    assert (unread.count(alice), messages()) == (1, [])
    monkeypatch.setattr(SQLInsertCompiler, "execute_sql", plain)
    assert messages() == ["notifications_counter.E006"]
    install()
    create(alice)
    assert (unread.count(alice), messages()) == (2, [])


# ------------------------------------------------------------------------------------------------------ stored totals
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
