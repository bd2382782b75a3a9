"""Transactions, savepoints, rollbacks and hooks: the deltas go with the rows."""

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import product
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, Error, IntegrityError, OperationalError, connection, connections, transaction
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.db.models.sql import UpdateQuery
from django.db.models.sql.constants import ROW_COUNT
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import DoubtRequest, Notification
from notifications_counter.writes import log
from notifications_counter.writes.endings import beginnings
from tests.support import (
    PATIENCE,
    TELLS_TRANSACTIONS,
    OtherConnection,
    assert_exact,
    assert_heals,
    assert_reads,
    begin_now,
    create,
    entries,
    execute,
    give_to,
    notify,
    redis_out_of_reach,
    rows,
    sent,
    undone,
    wait_no_longer,
    wait_until,
)
from tests.test_signals import heard

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

objects = Notification.objects


# --------------------------------------------------------------------------------------------------- transactions
def test_changes_are_announced_before_a_statement_that_may_commit(alice):
    """And again before the COMMIT, by when the flusher may have given up the first intent."""
    with sent() as commands, transaction.atomic():
        create(alice)
        assert commands == []
        begin_now()
        assert commands == ["announce"]
        create(alice)
        begin_now()
        assert commands == ["announce"]
    assert commands == ["announce", "announce", "confirm", "confirm"]
    assert_exact(alice, in_doubt=1)


HARMLESS = [
    "SELECT 1;",
    "select '$'",
    "/* it's harmless; */ SELECT 1",
    "-- COMMIT;\nSELECT ';', 'it''s', 1 AS \"COMMIT;\" -- COMMIT",
]
if connection.vendor == "postgresql":
    HARMLESS += [
        "SET LOCAL statement_timeout = 0",
        "LOCK TABLE notifications_counter_notification IN ROW EXCLUSIVE MODE",
        "NOTIFY channel",
        "SELECT 1; NOTIFY channel;",
    ]


@pytest.mark.parametrize("sql", HARMLESS)
def test_what_cannot_commit_announces_nothing(alice, sql):
    with transaction.atomic():
        create(alice)
        execute(sql)
        assert unread.buffer.status().intents == 0
    assert_exact(alice)


def copy_nonsense(one: Any) -> None:
    with connection.cursor() as cursor, cursor.copy("COPY django_session FROM STDIN") as copied:
        copied.write("nonsense\n")


FAILING: dict[str, Any] = {
    "ProgrammingError": lambda one: execute("SELECT nonsense"),
    "IntegrityError": lambda one: Notification(pk=one.pk, user_id=one.user_id, title="x").save(force_insert=True),
}
if connection.vendor == "postgresql":  # not while it is executed
    FAILING |= {
        "fetch": lambda one: list(objects.annotate(x=RawSQL("1 / (id - id)", ())).iterator()),
        "callproc": lambda one: call("sqrt", -1),
        "copy": copy_nonsense,
    }


def call(procedure: str, *arguments: Any) -> None:
    with connection.cursor() as cursor:
        cursor.callproc(procedure, arguments)


@pytest.mark.parametrize("fail", FAILING.values(), ids=FAILING)
def test_a_failed_statement_that_nobody_minds(alice, fail):
    """PostgreSQL then rolls back at the commit, and says nothing; the others keep what went before."""
    one, *_ = notify(alice)
    is_lost = connection.vendor == "postgresql"
    with heard() as said, transaction.atomic():
        create(alice)
        with suppress(Error, connection.Database.Error):
            fail(one)
        transaction.set_rollback(False)  # which save() asks for
    assert unread.count(alice) == rows(alice) == (3 if is_lost else 4)
    assert said == ([] if is_lost else [(unread, {alice.pk: 4})])
    assert_exact(alice, in_doubt=None)


@pytest.mark.skipif(connection.vendor != "mysql", reason="Others refuse to go on, or know no deadlocks.")
def test_a_deadlock_that_nobody_minds(alice, bob, make_user):
    """The server has rolled back everything, and the transaction goes on as another one."""
    carol = make_user()
    mine, theirs = notify(bob, 2)
    locked = objects.select_for_update()
    waiting = (
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%FOR UPDATE' AND id <> CONNECTION_ID()"
    )
    is_theirs = threading.Event()

    def others() -> None:
        with transaction.atomic():
            create(carol, 20)  # the server rolls back who has written less
            locked.get(pk=theirs.pk)
            is_theirs.set()
            locked.get(pk=mine.pk)

    assert unread.count(alice) == 0  # cached
    with OtherConnection() as other:
        with transaction.atomic():
            create(alice)
            locked.get(pk=mine.pk)
            rest = other.start(others)
            assert is_theirs.wait(PATIENCE)
            wait_until(lambda: execute(waiting) == [(1,)])
            with suppress(OperationalError):
                locked.get(pk=theirs.pk)
            create(alice)
        rest.result(PATIENCE)
    assert unread.count(alice) == rows(alice) == 1
    assert_exact(alice, bob, carol, in_doubt=None)


@pytest.mark.once
@pytest.mark.skipif(connection.vendor != "sqlite", reason="Others go on with a transaction.")
@pytest.mark.parametrize("block", [transaction.atomic, undone])
def test_after_a_rollback_sqlite_commits_each_statement(alice, bob, block):
    """Also if Django rolls back what it takes for a transaction."""
    assert_reads(alice, bob)
    table = Notification._meta.db_table
    with block():
        create(alice)
        with suppress(IntegrityError):
            execute(f"INSERT OR ROLLBACK INTO {table} SELECT * FROM {table}")
        create(bob)
    assert (rows(alice), rows(bob)) == (0, 1)
    assert_reads(alice, bob)
    assert_exact(alice, bob, in_doubt=None)


PROCEDURES = {
    "rolls back": "ROLLBACK",
    "commits": "COMMIT",
    "rolls back and fails": "ROLLBACK; INSERT INTO auth_group (id, name) VALUES (NULL, 'x'), (NULL, 'x')",
}


@pytest.mark.skipif(connection.vendor != "mysql", reason="Elsewhere, procedures can't end a transaction.")
@pytest.mark.parametrize("body", PROCEDURES.values(), ids=PROCEDURES)
@pytest.mark.parametrize("block", [transaction.atomic, undone])
def test_a_procedure_that_ends_the_transaction(alice, bob, body, block):
    execute("DROP PROCEDURE IF EXISTS ending", f"CREATE PROCEDURE ending() BEGIN {body}; END")
    assert_reads(alice, bob)
    with block():
        create(alice)
        with suppress(IntegrityError):
            call("ending")
        create(bob)
    assert_reads(alice, bob)
    assert_exact(alice, bob, in_doubt=None)


@pytest.mark.skipif(connection.vendor == "mysql", reason="Its drivers don't tell.")
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("go_on", [True, False])
@pytest.mark.parametrize("block", [transaction.atomic, undone])
def test_the_driver_ends_the_transaction(alice, bob, end, go_on, block):
    assert_reads(alice, bob)
    with block():
        create(alice)
        getattr(connection.connection, end)()
        if go_on:
            create(bob)
    assert rows(alice) == (end == "commit")
    assert_reads(alice, bob)
    assert_exact(alice, bob, in_doubt=None)


@pytest.mark.skipif(connection.vendor == "mysql", reason="Its drivers don't tell.")
def test_the_driver_ends_it_while_redis_is_out_of_reach(alice):
    """What is written about that ends nothing in its turn."""
    assert_reads(alice)
    with redis_out_of_reach(), transaction.atomic():
        create(alice)
        connection.connection.commit()
        assert rows(alice) == 1
    assert DoubtRequest.objects.exists()
    assert_heals(alice)


def test_a_value_that_django_refuses_leaves_nobody_in_flight(alice):
    notify(alice)
    for value in ("nonsense", object()):
        with pytest.raises((TypeError, ValidationError)):
            objects.create(user=alice, title="x", read_at=value)
    assert_exact(alice, in_doubt=1)


# ----------------------------------------------------------------------------------------------------- savepoints
BACK: list[Any] = ["rollback  to name", "/* a comment */ ROLLBACK TO name"]
if connection.vendor == "postgresql":  # only psycopg takes such SQL
    BACK += [
        b"ROLLBACK TO name",
        "SELECT 1; ROLLBACK TO name",
        "SELECT E'\\''; ROLLBACK TO name; SELECT E'\\''",
        "SELECT $$'$$; ROLLBACK TO name; SELECT $$'$$",
        "/* /* */ SELECT 1 */ ROLLBACK TO name",
        "SELECT 1 /* /* */ ' */; ROLLBACK TO name; SELECT ''",
        "SELECT 1 --it's\n; ROLLBACK TO name; SELECT ''",
        "-- it\rROLLBACK TO name",
    ]
if connection.vendor == "mysql":
    BACK.append("/*! ROLLBACK TO name */")
if os.environ.get("TEST_DATABASE") == "mariadb":
    BACK.append("/*M! ROLLBACK TO name */")


@pytest.mark.parametrize("back", BACK)
def test_savepoints_in_sql(alice, back):
    assert_reads(alice)
    with transaction.atomic(), connection.cursor() as cursor:
        create(alice)
        cursor.execute("SAVEPOINT name")
        create(alice)
        cursor.execute(back)
        assert unread.count(alice) == 1
        create(alice)
    assert unread.count(alice) == 2
    assert_exact(alice, in_doubt=None)


@pytest.mark.once
def test_a_comment_that_only_mysql_takes_for_one():
    """It would have to be asked for several statements at once."""
    assert beginnings("SELECT 1 # it's\n; COMMIT; SELECT ''") == ["?"]


def test_a_savepoint_after_an_error(alice):
    """PostgreSQL then takes only the ROLLBACK, and no DoubtRequest before it."""
    with redis_out_of_reach(), transaction.atomic():
        create(alice)
        with suppress(DatabaseError), transaction.atomic():
            execute("SELECT nonsense")
    assert DoubtRequest.objects.count() == 1
    assert_heals(alice)


# ---------------------------------------------------------------------------------------------------------- hooks
def test_save_inside_on_commit(alice, bob):
    """Before and after our own hook."""
    seen = []

    def save_more(user: Any) -> None:
        seen.append(unread.count(alice))
        create(user)
        with transaction.atomic():
            create(user)
            transaction.on_commit(lambda: create(user))
        seen.append(unread.count(alice))

    with transaction.atomic():
        transaction.on_commit(lambda: save_more(alice))
        create(alice)
        transaction.on_commit(lambda: save_more(bob))
    assert seen == [1, 4, 4, 4]
    assert (unread.count(alice), unread.count(bob)) == (4, 3)
    assert_exact(alice, bob)


def test_hook_of_somebody_else_that_raises_before_ours(alice):
    """Django forgets the hooks after it, so ours goes first."""
    notify(alice)
    unread.count(alice)
    with suppress(ZeroDivisionError), transaction.atomic():
        transaction.on_commit(lambda: 1 / 0)
        create(alice)
    assert unread.count(alice) == rows(alice) == 4
    assert_exact(alice)


# -------------------------------------------------------------------------------------------- transactions by hand
CHANGES = {
    "create": lambda alice, bob: create(alice),
    "save": lambda alice, bob: Notification(pk=objects.first().pk, user=bob, created_at=timezone.now()).save(),
    "upsert": lambda alice, bob: give_to(bob, objects.first()),
    "update": lambda alice, bob: objects.filter(user__username="alice", title="0").update(read_at=Now()),
}


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
            try:
                getattr(transaction, end.lower())()
            finally:
                transaction.set_autocommit(True)


@pytest.mark.parametrize(
    ("how", "change"),
    # In a transaction that was begun by SQL, an upsert fails: Django calls atomic() for it.
    [*product(["autocommit off"], CHANGES), *product(["SQL"] * TELLS_TRANSACTIONS, ["create", "save", "update"])],
)
def test_transaction_by_hand(alice, bob, how, change):
    """Nothing tells when such a transaction commits: a DoubtRequest in it does."""
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
    assert not DoubtRequest.objects.exists()


def test_a_commit_by_hand_tells_nothing_more(alice):
    with by_hand("autocommit off", "ROLLBACK"):
        objects.bulk_create([Notification(user=alice, title="x")])
        with sent() as commands:
            transaction.commit()
        assert commands == []
    assert_heals(alice)


def test_an_error_in_a_transaction_by_hand_reaches_the_site(alice):
    one, *_ = notify(alice)
    with by_hand("autocommit off", "ROLLBACK"), pytest.raises(IntegrityError):
        Notification(pk=one.pk, user=alice, title="the same key").save(force_insert=True)
    assert_heals(alice)


@pytest.mark.skipif(TELLS_TRANSACTIONS, reason="Only mysqlclient doesn't tell.")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_transaction_of_which_the_driver_does_not_tell(alice, end):
    notify(alice)
    assert unread.count(alice) == 3
    with by_hand("SQL", end):
        create(alice)
        assert unread.count(alice) == 4
    assert rows(alice) == {"COMMIT": 4, "ROLLBACK": 3}[end]
    with entries(WALK_SECONDS=0.001):
        unread.heal()
    assert_heals(alice, wrong=int(end == "ROLLBACK"))


def test_a_process_that_is_killed_after_a_commit_by_sql(alice, monkeypatch):
    """Redis has not heard of the change, but its DoubtRequest has been committed with it."""
    notify(alice)
    with monkeypatch.context() as patched:
        patched.setattr(log, "doubt", lambda owners: None)
        with by_hand("SQL", "COMMIT"):
            create(alice)
    assert_heals(alice)


# ------------------------------------------------------------------------------------------ reads in a transaction
def test_a_read_begins_nothing(alice, bob):
    """What is rolled back later would else be open until it is overdue."""
    with transaction.atomic():
        create(alice)
        assert unread.count(bob) == 0  # not cached: PostgreSQL is asked for the isolation level
        assert unread.buffer.status().intents == 0
        transaction.set_rollback(True)
    assert_exact(alice, bob)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Others count all rows in a transaction.")
def test_a_transaction_counts_rows_only_of_those_whom_it_has_changed(alice, bob, django_assert_num_queries):
    notify(bob, 2)
    assert_reads(bob)
    with transaction.atomic():
        create(alice)
        with sent() as commands, django_assert_num_queries(0):
            assert unread.counts([bob]) == {bob.pk: 2}
        assert commands == ["MGET"]
        with django_assert_num_queries(1):
            assert unread.counts([alice, bob]) == {alice.pk: 1, bob.pk: 2}


@pytest.mark.skipif(not TELLS_TRANSACTIONS, reason="mysqlclient doesn't tell.")
def test_an_interrupt_in_a_transaction_that_sql_has_begun(alice):
    """The row may be there or not, and nobody tells of the COMMIT."""

    def interrupt(execute: Any, sql: str, *args: Any) -> None:
        execute(sql, *args)
        if Notification._meta.db_table in sql:
            raise KeyboardInterrupt

    execute("BEGIN")
    with connection.execute_wrapper(interrupt), pytest.raises(KeyboardInterrupt):
        create(alice)
    execute("COMMIT")
    assert DoubtRequest.objects.filter(counter="unread", everyone=True).exists()
    assert_reads(alice)
    assert_heals(alice)


# ----------------------------------------------------------------------------------------- copies of the connection
def test_a_copy_that_connects_in_the_middle_of_a_transaction(alice):
    """As libraries make for locks and probes."""
    with transaction.atomic():
        create(alice, 2)
        other = connections.create_connection("default")
        with other.cursor() as cursor:
            cursor.execute("SELECT 1")
        other.close()
        assert unread.count(alice) == 2
    assert unread.count(alice) == 2
    assert_exact(alice)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="The connection itself would lock it out.")
def test_a_copy_that_writes_while_redis_is_down(alice):
    create(alice, 2)
    other = connections.create_connection("default")
    query = Notification.objects.filter(user=alice, read_at=None).query.chain(UpdateQuery)
    query.add_update_values({"read_at": timezone.now()})
    with closing(other), redis_out_of_reach():
        assert query.get_compiler(connection=other).execute_sql(ROW_COUNT) == 2
        assert DoubtRequest.objects.count() == 1
    assert_heals(alice)


# ------------------------------------------------------------------------------------------ failures
def test_a_statement_that_waits_too_long(alice):
    """The server may go on with it, so its owner is in flight until the flusher heals."""
    assert unread.count(alice) == 0
    with OtherConnection() as other:
        other.run(wait_no_longer)
        with transaction.atomic():
            objects.create(pk=1000, user=alice, title="x")
            with pytest.raises(OperationalError):
                other.run(objects.create, pk=1000, user=alice, title="the same key")
    assert unread.buffer.status().intents == 1
    assert_reads(alice)
    assert_heals(alice)


def test_a_doubt_request_that_the_database_refuses(alice, caplog):
    """The change is made, and the log says that counts may be wrong."""
    assert unread.count(alice) == 0
    table = DoubtRequest._meta.db_table
    execute(f"ALTER TABLE {table} RENAME COLUMN owner_key TO renamed")
    try:
        with redis_out_of_reach():
            create(alice)
    finally:
        execute(f"ALTER TABLE {table} RENAME COLUMN renamed TO owner_key")
    assert "requests_failed" in [getattr(record, "event", None) for record in caplog.records]
    assert unread.recount([alice]).wrong == rows(alice) == 1
    assert_exact(alice, in_doubt=None)


# ------------------------------------------------------------------------------ the end of a transaction
def test_a_connection_that_is_lost_in_a_transaction(alice, bob):
    """Its changes are gone, and the next transaction does not tell Redis of them."""
    assert unread.counts([alice, bob]) == {alice.pk: 0, bob.pk: 0}  # cached
    with transaction.atomic():
        create(alice)
        connection.close()
    with transaction.atomic():
        create(bob)
    assert unread.counts([alice, bob]) == {alice.pk: 0, bob.pk: 1}
    assert_exact(alice, bob, in_doubt=None)


def test_a_commit_without_a_connection(alice):
    connection.close()
    transaction.commit()
    assert unread.count(alice) == 0


def test_a_transaction_leaves_no_wrapper(alice):
    with transaction.atomic():
        create(alice)
        assert connection.execute_wrappers
    assert connection.execute_wrappers == []


def test_a_commit_that_is_replaced_for_a_while(alice):
    """As by a test, from before a thread's first write."""

    def write() -> None:
        mine = connections["default"]
        mine.ensure_connection()
        with mock.patch.object(mine, "_commit", mine._commit):
            create(alice)
        with transaction.atomic():
            create(alice)

    assert unread.count(alice) == 0  # cached
    with OtherConnection() as other:
        other.run(write)
    assert unread.count(alice) == rows(alice) == 2
    assert_exact(alice)


@pytest.mark.parametrize("early", [False, True], ids=["at the end", "before a statement that may commit"])
@pytest.mark.parametrize("how", ["refused", "rolled back"])
def test_a_transaction_that_is_not_committed_leaves_nothing_open(alice, how, early):
    if how == "refused" and connection.vendor == "mysql":
        pytest.skip("Its foreign keys are never deferred.")
    block = transaction.atomic if how == "refused" else undone
    assert unread.count(alice) == 0  # cached
    with suppress(IntegrityError), block():
        create(alice)
        if early:
            begin_now()
        if how == "refused":
            create(alice)
            nobody = NOBODY[type(alice.pk)]
            execute(f"UPDATE notifications_counter_notification SET user_id = {nobody}")
    assert rows(alice) == unread.count(alice) == 0
    assert_exact(alice, in_doubt=None if early or how == "refused" else 0)


NOBODY = {int: "0", str: "'nobody'", UUID: "'00000000000000000000000000000000'"}
