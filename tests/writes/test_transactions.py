"""Transactions, savepoints, rollbacks and hooks: the deltas go with the rows."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.models.functions import Now
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.exceptions import NotInTransaction
from notifications_counter.internals import (
    ROW_COUNT,
    DeleteQuery,
    UpdateQuery,
    in_manual_transaction,
)
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.writes import ledger
from tests.support import (
    OtherConnection,
    assert_exact,
    assert_heals,
    assert_reads,
    begin_now,
    notify,
    rows,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

objects = Notification.objects


class Undone(Exception):
    pass


def add(user: Any, number: int = 1) -> None:
    for _ in range(number):
        objects.create(user=user, title="x")


# --------------------------------------------------------------------------------------------------- transactions
def test_whoever_has_changed_begins_before_a_statement_that_may_commit(alice):
    with transaction.atomic():
        add(alice)
        assert unread.status()[0].status.intents == 0
        begin_now()
        assert unread.status()[0].status.intents == 1
        add(alice)
    assert_exact(alice)


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


FAILING = {
    "ProgrammingError": lambda one: execute("SELECT nonsense"),
    "IntegrityError": lambda one: Notification(pk=one.pk, user_id=one.user_id, title="x").save(force_insert=True),
}


@pytest.mark.parametrize("fail", FAILING.values(), ids=FAILING)
def test_a_failed_statement_that_nobody_minds(alice, fail):
    """PostgreSQL then rolls back at the commit, and says nothing; the others keep what went before."""
    one, *_ = notify(alice)
    with transaction.atomic():
        add(alice)
        with suppress(DatabaseError):
            fail(one)
        transaction.set_rollback(False)  # which save() asks for
    assert unread.count(alice) == rows(alice) == (3 if connection.vendor == "postgresql" else 4)
    assert_exact(alice, in_doubt=None)


# ----------------------------------------------------------------------------------------------------- savepoints
def test_savepoint_rolled_back(alice, bob):
    notify(alice)
    assert_reads(alice, bob)
    with transaction.atomic():
        add(alice)
        with suppress(Undone), transaction.atomic():
            add(alice, 2)
            add(bob)
            objects.for_user(alice).mark_as_read()
            raise Undone
        assert (unread.count(alice), unread.count(bob)) == (4, 0)
        add(bob)
    assert (unread.count(alice), unread.count(bob)) == (4, 1)
    assert_exact(alice, bob, in_doubt=None)


@pytest.mark.parametrize("kind", ["text", "bytes", "composed"])
def test_savepoints_in_sql(alice, kind):
    if kind != "text" and connection.vendor != "postgresql":
        pytest.skip("Only psycopg takes such SQL.")
    assert_reads(alice)
    with transaction.atomic(), connection.cursor() as cursor:
        add(alice)
        for statement in ("SAVEPOINT name", "rollback  to savepoint name"):
            cursor.execute(in_the_form(statement, kind))
            if statement.startswith("SAVEPOINT"):
                add(alice)
        assert unread.count(alice) == 1
        add(alice)
    assert unread.count(alice) == 2
    assert_exact(alice, in_doubt=None)


def in_the_form(statement: str, kind: str) -> Any:
    if kind == "composed":
        from django.db.backends.postgresql.psycopg_any import sql

        return sql.SQL(statement)  # type: ignore[arg-type]
    return statement.encode() if kind == "bytes" else statement


# ---------------------------------------------------------------------------------------------------------- hooks
def test_save_inside_on_commit(alice, bob):
    """Before and after our own hook."""
    seen = []

    def save_more(user: Any) -> None:
        seen.append(unread.count(alice))
        add(user)
        with transaction.atomic():
            add(user)
            transaction.on_commit(lambda: add(user))
        seen.append(unread.count(alice))

    with transaction.atomic():
        transaction.on_commit(lambda: save_more(alice))
        add(alice)
        transaction.on_commit(lambda: save_more(bob))
    assert seen == [1, 4, 4, 4]
    assert (unread.count(alice), unread.count(bob)) == (4, 3)
    assert_exact(alice, bob)


def test_hook_of_somebody_else_that_raises_before_ours(alice):
    """Django forgets the hooks after it, so ours goes first."""

    def fail() -> None:
        raise Undone

    notify(alice)
    unread.count(alice)
    with suppress(Undone), transaction.atomic():
        transaction.on_commit(fail)
        add(alice)
    assert unread.count(alice) == rows(alice) == 4
    assert_exact(alice)


# -------------------------------------------------------------------------------------------- transactions by hand
CHANGES = {
    "create": lambda alice, bob: add(alice),
    "save": lambda alice, bob: Notification(pk=objects.first().pk, user=bob, created_at=timezone.now()).save(),
    "upsert": lambda alice, bob: objects.bulk_create(
        [Notification(pk=objects.first().pk, user=bob, title="x")],
        update_conflicts=True,
        update_fields=["user"],
        unique_fields=None if connection.vendor == "mysql" else ["pk"],
    ),
    "update": lambda alice, bob: objects.filter(user__username="alice", title="0").update(read_at=Now()),
    "delete": lambda alice, bob: objects.filter(user=alice, title="0").delete(),
    "raw delete": lambda alice, bob: objects.filter(user=alice, title="0")._raw_delete("default"),
}


NEED_ATOMIC = {"upsert", "delete"}
"""Changes for which Django calls atomic(), which fails in a transaction that it does not know of."""


@contextmanager
def by_hand(how: str, end: str) -> Iterator[None]:
    """A transaction about whose end Django tells nothing."""
    if how == "SQL":
        execute("BEGIN")
    else:
        transaction.set_autocommit(False)
    try:
        yield
    finally:
        if how == "SQL":
            execute(end)
        else:
            getattr(transaction, end.lower())()
            transaction.set_autocommit(True)


@pytest.mark.parametrize(
    ("how", "change"),
    [*product(["autocommit off"], CHANGES), *product(["SQL"], [name for name in CHANGES if name not in NEED_ATOMIC])],
)
def test_transaction_by_hand(alice, bob, how, change):
    """Nothing tells when such a transaction commits: a RecountRequest in it does."""
    notify(alice)
    unread.counts([alice, bob])
    with OtherConnection() as other:
        with by_hand(how, "COMMIT"):
            CHANGES[change](alice, bob)
            assert unread.count(alice) == rows(alice)
        right = {user.pk: rows(user) for user in (alice, bob)}
        with by_hand(how, "COMMIT"):
            assert unread.counts([alice, bob]) == right
        assert other.run(unread.counts, [alice.pk, bob.pk]) == right
        other.run(unread.heal)
        assert other.run(unread.counts, [alice.pk, bob.pk]) == right
        with by_hand(how, "ROLLBACK"):
            CHANGES[change](alice, bob)
            assert unread.counts([alice, bob]) == {user.pk: rows(user) for user in (alice, bob)}
    assert {user.pk: rows(user) for user in (alice, bob)} == right
    assert_reads(alice, bob)
    assert_heals(alice, bob)
    assert not RecountRequest.objects.exists()


def test_a_process_that_is_killed_after_a_commit_by_sql(alice, monkeypatch):
    """Redis has not heard of the change, but its RecountRequest has been committed with it."""
    notify(alice)
    with monkeypatch.context() as patched:
        patched.setattr(ledger, "doubt", lambda owners: None)
        with by_hand("SQL", "COMMIT"):
            add(alice)
    assert_heals(alice)


def test_a_flush_in_a_transaction_begun_by_sql(alice):
    """It would commit the changes of the site, where the database lets it."""
    add(alice)
    with by_hand("SQL", "ROLLBACK"), pytest.raises(NotInTransaction):
        unread.flush()
    assert_exact(alice)


@pytest.mark.skipif(connection.vendor != "mysql", reason="Elsewhere, a failed statement does not commit.")
def test_an_error_that_ends_a_transaction_begun_by_sql(alice):
    """As a deadlock does. PyMySQL does not notice."""
    execute("BEGIN")
    add(alice)
    with suppress(DatabaseError):
        execute("CREATE TABLE notifications_counter_recountrequest (id int)")
    add(alice)
    assert not in_manual_transaction(connection)
    objects.filter(user__username="alice").update(read_at=Now())
    connection.errors_occurred = False
    assert_heals(alice)


def test_atomic_while_autocommit_is_off(alice):
    transaction.set_autocommit(False)
    try:
        with transaction.atomic():
            add(alice)
            assert unread.count(alice) == 1
        add(alice)
        assert unread.count(alice) == 2
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert unread.count(alice) == 2
    assert_heals(alice)


def test_a_read_begins_nothing(alice, bob):
    """What is rolled back later would else be open until it is overdue."""
    with transaction.atomic():
        Notification.objects.create(user=alice, title="x")
        assert unread.count(bob) == 0  # not cached: PostgreSQL is asked for the isolation level
        assert unread.status()[0].status.intents == 0
        transaction.set_rollback(True)
    assert_exact(alice, bob)


# ----------------------------------------------------------------------------------------- copies of the connection
COPIES = {
    "copy": lambda: connection.copy(),
    "create_connection": lambda: connections.create_connection("default"),
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_a_copy_that_connects_in_the_middle_of_a_transaction(alice, make):
    """As libraries do for locks and probes."""
    with transaction.atomic():
        add(alice, 2)
        other = make()
        with other.cursor() as cursor:
            cursor.execute("SELECT 1")
        other.close()
        assert unread.count(alice) == 2
    assert unread.count(alice) == 2
    assert_exact(alice)


def through(copy: Any, query: Any) -> Any:
    return query.get_compiler(connection=copy).execute_sql(ROW_COUNT)


def mark(user: Any, **values: Any) -> Any:
    query = objects.filter(user=user, **values).query.chain(UpdateQuery)
    query.add_update_values({"read_at": timezone.now()})
    return query


@pytest.mark.parametrize("outer", [False, True], ids=["alone", "beside a transaction"])
def test_statements_through_a_copy(alice, bob, outer):
    """They commit at once, whatever becomes of the transaction of the connection itself."""
    if outer and connection.vendor != "postgresql":
        pytest.skip("Elsewhere it could wait for the transaction.")
    notify(alice)
    notify(bob)
    copy = connection.copy()
    with suppress(Undone), transaction.atomic() if outer else nullcontext():
        if outer:
            add(bob)
        assert through(copy, mark(alice, title="0")) == 1
        assert through(copy, objects.filter(user=alice, title__contains="1").query.chain(DeleteQuery)) == 1
        if outer:
            raise Undone
    copy.close()
    assert (unread.count(alice), unread.count(bob)) == (1, 3)
    assert_exact(alice, bob, in_doubt=None)


# ------------------------------------------------------------------------------ the end of a transaction
@pytest.mark.parametrize("early", [False, True], ids=["at the end", "before a statement that may commit"])
@pytest.mark.parametrize("how", ["refused", "rolled back"])
def test_a_transaction_that_is_not_committed_leaves_nothing_open(alice, how, early):
    if how == "refused" and connection.vendor == "mysql":
        pytest.skip("Its foreign keys are never deferred.")
    with suppress(IntegrityError, Undone), transaction.atomic():
        add(alice)
        if early:
            begin_now()
        if how == "rolled back":
            raise Undone
        objects.bulk_create([Notification(user_id=alice.pk, title="y")])
        execute(f"UPDATE notifications_counter_notification SET user_id = {NOBODY[type(alice.pk)]} WHERE title = 'y'")
    assert rows(alice) == unread.count(alice) == 0
    assert_exact(alice, in_doubt=None if early or how == "refused" else 0)


NOBODY = {int: "0", str: "'nobody'", UUID: "'00000000000000000000000000000000'"}


@pytest.mark.parametrize("how", ["rolled back by SQL", "refused"])
def test_what_a_statement_has_committed_stays(alice, how):
    """The database then loses what came after it, and nobody knows what came before."""
    if connection.vendor == "sqlite" or (how == "refused" and connection.vendor != "postgresql"):
        pytest.skip("Elsewhere, what comes next is no longer in a transaction, or is not refused.")
    with transaction.atomic():
        add(alice)
        execute("COMMIT")
        add(alice, 2)
        if how == "refused":
            with suppress(DatabaseError):
                execute("SELECT nonsense")
            transaction.set_rollback(False)
        else:
            execute("ROLLBACK")
            add(alice, 3)
    assert rows(alice) == unread.count(alice) == (1 if how == "refused" else 4)
    assert_exact(alice, in_doubt=None)
