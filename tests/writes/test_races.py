"""Several connections change the same row at the same moment: each counts what its own statement changed, at each
isolation level, and through PgBouncer."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db import IntegrityError, OperationalError, connection

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import PATIENCE, assert_exact, entries, notify, session, together

pytestmark = pytest.mark.django_db(transaction=True)

objects = Notification.objects
ROUNDS = 5

WAYS = {
    "postgresql": ["read committed", "repeatable read", "serializable", "PgBouncer"],
    "mysql": ["read committed", "repeatable read", "serializable"],
}.get(connection.vendor, ["SQLite"])


@pytest.fixture(autouse=True, params=[WAYS[0], *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[1:])])
def _way(request: pytest.FixtureRequest) -> Iterator[None]:
    """At which isolation level all connections work, or that they do so through PgBouncer."""
    way, changed = request.param, {}
    if way == "PgBouncer":
        request.getfixturevalue("through_pgbouncer")
        assert len({session() for _ in range(3)}) == 3  # one for each transaction
    elif way != WAYS[0] and connection.vendor == "postgresql":
        changed = {"options": "-c default_transaction_isolation=" + way.replace(" ", r"\ ")}
    elif way != WAYS[0]:
        changed = {"isolation_level": way}
    with mock.patch.dict(connection.settings_dict["OPTIONS"], changed):
        connection.close()
        unread.heal()
        yield
    connection.close()


CONFLICT = re.compile("(?i)deadlock|record has changed|could not serialize|foreign key")


def again(work: Callable[[], Any], failed: list[Exception]) -> Any:
    """At some isolation levels, one has to try again."""
    for _ in range(20):
        try:
            return work()
        except (IntegrityError, OperationalError) as error:
            if not CONFLICT.search(str(error)):
                raise
            failed.append(error)
    raise AssertionError("It never works.")


def test_rows_that_arrive_while_others_are_deleted(alice):
    """What is deleted is what was locked, not what the filter selects a moment later."""
    notify(alice, 10)
    works: list[Callable[[], Any]] = [
        lambda: objects.for_user(alice.pk).delete(),
        lambda: objects.bulk_create(Notification(user_id=alice.pk, title="new") for _ in range(5)),
        lambda: objects.for_user(alice.pk).mark_as_read(),
    ]
    failed: list[Exception] = []
    for _ in range(ROUNDS):
        together(*[partial(again, work, failed) for work in works])
    if failed:  # as in a deadlock: their users are in doubt
        with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0):
            unread.heal(PATIENCE)
    assert_exact(alice, in_doubt=None)
