"""Several connections change the same row at the same moment: each counts what its own statement changed, at each
isolation level, and through PgBouncer."""

import os
import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import Q
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_exact,
    assert_heals,
    entries,
    notify,
    rows,
    session,
    together,
    wait_until,
    waits,
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
@pytest.mark.parametrize("statement", ["UPDATE by a subquery", "DELETE by a join"])
def test_a_row_comes_and_one_goes_before_the_statement(way, alice, bob, statement):
    """Others change what a subquery or a join reads, after the rows were locked and counted, so that it selects as many
    rows, but others."""
    if way == "serializable":
        pytest.skip("Others have to wait until the statement has ended.")
    notify(alice, 1)
    notify(bob, 1)
    users = type(alice)._base_manager
    users.filter(pk=bob.pk).update(is_superuser=True)
    chosen = Q(user__is_superuser=False)
    if "subquery" in statement:  # one that MariaDB doesn't turn into a join, whose rows would be locked
        chosen = ~Q(user__in=users.filter(is_superuser=True))
    swapped = []

    def swap() -> None:
        users.filter(pk=bob.pk).update(is_superuser=False)
        users.filter(pk=alice.pk).update(is_superuser=True)

    def swap_before(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        if sql.startswith(statement[:6]) and not swapped:
            swapped.append(other.run(swap))
        return execute(sql, *args)

    work = objects.filter(chosen).delete
    if statement.startswith("UPDATE"):
        work = partial(objects.filter(chosen).update, read_at=timezone.now())
    with OtherConnection() as other, connection.execute_wrapper(swap_before):
        again(work, [])
    assert swapped
    assert_exact(alice, bob)
    assert rows(alice) + rows(bob) == 1


def cut_off(driver: Any) -> None:
    """Cut a connection without a word to the server."""
    with socket.socket(fileno=os.dup(getattr(driver, "_sock", driver).fileno())) as its:
        its.shutdown(socket.SHUT_RDWR)


def test_a_statement_that_commits_after_its_client_is_gone(alice):
    """It waits for a row, its connection is cut, and a recount is over before it goes on."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has no server.")
    one, *_ = notify(alice)

    def mark() -> None:
        try:
            objects.filter(user=alice, pk=one.pk, read_at=None).update(read_at=timezone.now())
        finally:
            connection.close()

    with OtherConnection() as client, OtherConnection() as flusher:
        its, driver = client.run(session), client.run(lambda: connection.connection)
        with transaction.atomic():
            objects.select_for_update().get(pk=one.pk)
            marking = client.start(mark)
            wait_until(lambda: waits(its))
            cut_off(driver)
            with pytest.raises(OperationalError):
                marking.result(PATIENCE)
            flusher.run(unread.heal)
            assert flusher.run(unread.count, alice.pk) == 3
        wait_until(lambda: rows(alice) == 2)
    assert_heals(alice)
