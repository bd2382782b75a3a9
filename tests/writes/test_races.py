"""Several connections change the same row at the same moment: each counts what its own statement changed, at each
isolation level, and through PgBouncer."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db import IntegrityError, OperationalError, connection
from django.db.models import Q
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_exact,
    entries,
    notify,
    rows,
    session,
    together,
)

pytestmark = pytest.mark.django_db(transaction=True)

objects = Notification.objects
ROUNDS = 5

WAYS = {
    "postgresql": ["read committed", "repeatable read", "serializable", "PgBouncer"],
    "mysql": ["read committed", "repeatable read", "serializable"],
}.get(connection.vendor, ["SQLite"])


@pytest.fixture(autouse=True, params=[WAYS[0], *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[1:])])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
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
        if changed:
            connection.close()
        unread.heal()
        yield way
    if changed:
        connection.close()


CONFLICT = re.compile("(?i)deadlock|record has changed|could not serialize|foreign key")


def race(*works: Callable[[], Any]) -> None:
    """Run all at the same moment, ROUNDS times. The users of a statement that failed, as in a deadlock, are in
    doubt."""
    failed: list[Exception] = []
    for _ in range(ROUNDS):
        together(*[partial(again, work, failed) for work in works])
    if failed:
        with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0):
            unread.heal(PATIENCE)


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
    race(
        lambda: objects.for_user(alice.pk).delete(),
        lambda: objects.bulk_create(Notification(user_id=alice.pk, title="new") for _ in range(5)),
        lambda: objects.for_user(alice.pk).mark_as_read(),
    )
    assert_exact(alice, in_doubt=None)


@pytest.mark.skipif(connection.vendor != "mysql", reason="Elsewhere, one statement finds and changes rows.")
def test_a_row_comes_and_one_goes_before_the_statement(way, alice, bob):
    """Others change what a subquery reads, after the rows were locked, so that it selects as many rows, but others."""
    if way == "serializable":
        pytest.skip("Others have to wait until the statement has ended.")
    users, swapped = type(alice)._base_manager, []
    for user in (alice, bob):
        notify(user, 1)
    users.filter(pk=bob.pk).update(is_superuser=True)

    def swap() -> None:
        users.filter(pk=bob.pk).update(is_superuser=False)
        users.filter(pk=alice.pk).update(is_superuser=True)

    def swap_before(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if sql.startswith("UPDATE") and not swapped:
            swapped.append(other.run(swap))
        return execute(sql, *args)

    chosen = ~Q(user__in=users.filter(is_superuser=True))  # MariaDB makes no join of it, whose rows would be locked
    with OtherConnection() as other, connection.execute_wrapper(swap_before):
        again(partial(objects.filter(chosen).update, read_at=timezone.now()), [])
    assert swapped
    assert_exact(alice, bob)
    assert rows(alice) + rows(bob) == 1
