"""Several connections change the same row at the same moment: each counts what its own statement changed, at each
isolation level, and through PgBouncer."""

import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db import IntegrityError, OperationalError, connection
from django.db.models import F
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import PATIENCE, OtherConnection, assert_exact, entries, is_ready, notify, session, together

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


def mark_both(*rows: Notification) -> int:
    return objects.filter(pk__in=[row.pk for row in rows]).update(read_at=timezone.now())


def mark_each(*rows: Notification) -> int:
    return objects.bulk_update([Notification(pk=row.pk, read_at=timezone.now()) for row in rows], ["read_at"])


def give_both(*rows: Notification) -> int:
    return objects.filter(pk__in=[row.pk for row in rows]).update(user=rows[0].user)


def give_by_title(*rows: Notification) -> int:
    """It names the rows that it has locked, so it does not take the one that appears."""
    return objects.filter(title__in=[row.title for row in rows]).update(user=rows[0].user) + 1


@pytest.mark.skipif(connection.vendor == "sqlite", reason="There, nobody else writes in a transaction.")
@pytest.mark.parametrize("_way", WAYS[:1], indirect=True)
@pytest.mark.parametrize("change", [mark_both, mark_each, give_both, give_by_title])
def test_a_row_that_appears_after_others_were_locked(alice, bob, change):
    """Its user is in doubt; everyone is, if it is given to another."""
    (row,), new = notify(alice, 1), Notification(pk=2**30, user=bob, title="new")

    def insert(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith("UPDATE") and new._state.adding:
            other.run(new.save, force_insert=True)
        return execute(sql, *args)

    unread.counts([alice.pk, bob.pk])
    with OtherConnection() as other, connection.execute_wrapper(insert):
        assert change(row, new) == 2
    assert is_ready() == (change is not give_both)
    assert_exact(alice, bob, in_doubt=None)


unused = itertools.count(2**31, 1000)  # of a key that was used before, MariaDB may lock the gap beside it


def delete_all(rows: Any) -> int:
    return rows._raw_delete("default")


def move_away(rows: Any) -> int:
    return rows.update(id=F("id") + 100, read_at=timezone.now())


@pytest.mark.skipif(connection.vendor == "sqlite", reason="There, nobody else writes in a transaction.")
@pytest.mark.parametrize("_way", WAYS[:1], indirect=True)
@pytest.mark.parametrize("change", [delete_all, move_away])
def test_rows_that_appear_in_place_of_others(alice, bob, make_user, change):
    """A row appears, is changed as well, and is gone; others get primary keys that the statement lists."""
    (row,), carol = notify(alice, 1), make_user()
    pk = next(unused)
    first, *later = [Notification(pk=pk + i, user=[bob, carol][i > 0], title="new") for i in range(3)]

    def insert(execute: Any, sql: str, *args: Any) -> Any:
        if not sql.startswith(("DELETE", "UPDATE")) or not first._state.adding:
            return execute(sql, *args)
        other.run(first.save, force_insert=True)
        other.run(unread.count, bob.pk)
        result = execute(sql, *args)
        for each in later:
            other.run(each.save, force_insert=True)
        return result

    unread.counts([alice.pk, bob.pk, carol.pk])
    with OtherConnection() as other, connection.execute_wrapper(insert):
        assert change(objects.filter(pk__in=[each.pk for each in (row, first, *later)])) == 2
    assert_exact(alice, bob, carol, in_doubt=None)
