"""Transactions, savepoints, rollbacks and hooks: the deltas go with the rows."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.db import DatabaseError, Error, IntegrityError, ProgrammingError, connection, connections, transaction
from django.db.models.functions import Now
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.exceptions import NotInTransaction
from notifications_counter.internals import (
    ROW_COUNT,
    DeleteQuery,
    UpdateQuery,
    as_manual_transaction,
    in_manual_transaction,
)
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.writes import ledger
from notifications_counter.writes.ledger import Ledger
from notifications_counter.writes.transaction import TransactionLog
from tests.support import (
    OtherConnection,
    assert_exact,
    assert_heals,
    assert_reads,
    begin_now,
    doubted,
    notify,
    rows,
    sent,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

objects = Notification.objects


class Undone(Exception):
    pass


def add(user: Any, number: int = 1) -> None:
    for _ in range(number):
        objects.create(user=user, title="x")


# --------------------------------------------------------------------------------------------------- transactions
def test_rollback(alice, bob):
    one, *_ = notify(alice)
    key = alice.pk
    with suppress(Undone), transaction.atomic():
        add(alice)
        one.user = bob
        one.save()
        objects.for_user(alice).mark_as_read()
        objects.all().delete()
        alice.delete()
        raise Undone
    assert unread.counts([key, bob]) == {key: 3, bob.pk: 0}
    assert unread.recount([key, bob], dry_run=True).wrong == 0
    assert_exact(key, bob)


def test_many_saves_of_many_users_in_one_transaction_begin_together_before_its_commit(make_user):
    users = [make_user() for _ in range(20)]
    with sent() as commands:
        with transaction.atomic():
            for user in users * 2:
                with transaction.atomic():
                    add(user)
            assert commands == []
        assert commands == ["announce", "confirm"]
    assert_exact(*users)


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
    "DataError": lambda one: list(get_user_model().objects.filter(username__regex="(")),
    "IntegrityError": lambda one: Notification(pk=one.pk, user_id=one.user_id, title="x").save(force_insert=True),
}


@pytest.mark.parametrize("fail", FAILING.values(), ids=FAILING)
def test_a_failed_statement_that_nobody_minds(alice, fail):
    """PostgreSQL then rolls back at the commit, and says nothing; the others keep what went before."""
    one, *_ = notify(alice)
    with transaction.atomic():
        add(alice)
        with suppress(DatabaseError, re.error):  # SQLite asks Python for regular expressions
            fail(one)
        transaction.set_rollback(False)  # which save() asks for
    assert unread.count(alice) == rows(alice) == (3 if connection.vendor == "postgresql" else 4)
    assert_exact(alice, in_doubt=None)


def test_a_commit_that_somebody_else_has_put_on_the_connection(alice):
    """As a tracer does before the connection is used: it is called once for each commit, after begin and before the
    deltas."""
    with sent() as commands, OtherConnection() as other:

        def change() -> None:
            connection = connections["default"]
            assert "counter_ledger" not in vars(connection)
            commit = connection._commit

            def traced() -> None:
                commands.append("COMMIT")
                commit()

            connection._commit = traced
            for number in (1, 2):
                with transaction.atomic():
                    add(alice, number)

        other.run(change)
    assert commands == ["announce", "COMMIT", "confirm"] * 2
    assert unread.count(alice) == 3
    assert_exact(alice)


# ----------------------------------------------------------------------------------------------------- savepoints
def test_savepoint_rolled_back(alice, bob):
    notify(alice)
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


def test_savepoints_in_sql_with_a_name_used_again(alice):
    with transaction.atomic(), connection.cursor() as cursor:
        add(alice)
        cursor.execute("SAVEPOINT again")
        add(alice)
        cursor.execute("savepoint AGAIN")
        add(alice)
        cursor.execute("ROLLBACK TO again")
        assert unread.count(alice) == 2
        add(alice)
        cursor.execute("rollback  to savepoint again")
        assert unread.count(alice) == 2
        cursor.execute("RELEASE SAVEPOINT again")
        if connection.vendor != "mysql":  # which has forgotten the older one
            cursor.execute('ROLLBACK TO "again"')
            assert unread.count(alice) == 1
        add(alice)
    assert_exact(alice, in_doubt=None)


@pytest.mark.parametrize("kind", ["bytes", "composed"])
def test_savepoints_in_sql_that_is_no_str(alice, kind):
    if connection.vendor != "postgresql":
        pytest.skip("Only psycopg takes such SQL.")
    from django.db.backends.postgresql.psycopg_any import sql

    with transaction.atomic(), connection.cursor() as cursor:
        add(alice)
        for statement in ("SAVEPOINT {}", "ROLLBACK TO SAVEPOINT {}"):
            composed = sql.SQL(statement).format(sql.Identifier("name"))
            cursor.execute(composed if kind == "composed" else composed.as_string(cursor.cursor).encode())
            if statement.startswith("SAVEPOINT"):
                add(alice)
        assert unread.count(alice) == 1
    assert_exact(alice, in_doubt=None)


def test_composed_sql_that_cannot_be_adapted():
    """The error is Django's, as without the app."""
    if connection.vendor != "postgresql":
        pytest.skip("Only psycopg takes such SQL.")
    from django.db.backends.postgresql.psycopg_any import sql

    with connection.cursor() as cursor, pytest.raises(ProgrammingError, match="adapt"):
        cursor.execute(sql.SQL("SELECT {}").format(sql.Literal(object())))


def test_error_of_the_database_inside_a_savepoint(alice):
    one, *_ = notify(alice)
    with transaction.atomic():
        add(alice)
        with suppress(IntegrityError), transaction.atomic():
            add(alice)
            Notification(pk=one.pk, user=alice, title="x").save(force_insert=True)
        add(alice)
        with suppress(DatabaseError), transaction.atomic():
            objects.bulk_create([Notification(user=alice, title="x"), Notification(pk=one.pk, user=alice, title="x")])
    assert unread.count(alice) == 5
    assert_exact(alice, in_doubt=None)


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


def test_thousands_of_hooks(alice):
    """A site may have one for each statement, and no statement looks at all of them."""

    class Hooks(list[Any]):
        looks = 0

        def __iter__(self) -> Iterator[Any]:
            Hooks.looks += 1
            return super().__iter__()

    called: list[int] = []
    with transaction.atomic():
        connection.run_on_commit = Hooks()
        for number in range(100):
            add(alice)
            transaction.on_commit(partial(called.append, number))
        assert isinstance(connection.run_on_commit, Hooks)
        assert Hooks.looks <= 2
    assert called == list(range(100))
    assert_exact(alice)


# -------------------------------------------------------------------------------------------- transactions by hand
CHANGES = {
    "create": lambda alice, bob: add(alice),
    "bulk_create": lambda alice, bob: objects.bulk_create([Notification(user=alice, title="x")]),
    "save": lambda alice, bob: Notification(pk=objects.first().pk, user=bob, created_at=timezone.now()).save(),
    "upsert": lambda alice, bob: objects.bulk_create(
        [Notification(pk=objects.first().pk, user=bob, title="x")],
        update_conflicts=True,
        update_fields=["user"],
        unique_fields=None if connection.vendor == "mysql" else ["pk"],
    ),
    "update": lambda alice, bob: objects.filter(user__username="alice", title="0").update(read_at=Now()),
    "mark": lambda alice, bob: objects.for_user(alice).mark_as_read(),
    "delete": lambda alice, bob: objects.filter(user=alice, title="0").delete(),
    "delete instance": lambda alice, bob: objects.first().delete(),
    "raw delete": lambda alice, bob: objects.filter(user=alice, title="0")._raw_delete("default"),
}


NEED_ATOMIC = {"bulk_create", "upsert", "delete", "delete instance"}
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


BEGIN_AND_END = {
    "postgresql": [("BEGIN", "COMMIT"), ("BEGIN", "ROLLBACK"), ("START TRANSACTION", "END")],
    "sqlite": [("BEGIN", "COMMIT"), ("BEGIN IMMEDIATE", "ROLLBACK"), ("SAVEPOINT x", "RELEASE x")],
    "mysql": [
        ("BEGIN", "COMMIT"),
        ("START TRANSACTION", "ROLLBACK"),
        ("SET autocommit = 0", "SET autocommit = 1"),
        ("BEGIN", "ALTER TABLE notifications_counter_recountrequest COMMENT ''"),
    ],
}


@pytest.mark.parametrize(("begin", "end"), BEGIN_AND_END[connection.vendor])
def test_a_transaction_begun_by_sql_is_known_without_a_round_trip(begin, end, django_assert_num_queries):
    def is_known() -> bool:
        with django_assert_num_queries(0):
            return in_manual_transaction(connection)

    assert not is_known()
    execute("SELECT 1")
    assert not is_known()
    with transaction.atomic():
        assert not is_known()  # Django knows of it
    RecountRequest.objects.create(counter="x", owner="1")
    assert not is_known()
    execute(begin)
    assert is_known()
    with suppress(Error):
        execute("SELECT nonsense")
    assert is_known()
    execute("ROLLBACK" if connection.vendor == "postgresql" else end)
    assert not is_known()
    execute(begin)
    with as_manual_transaction(connection):
        assert not connection.get_autocommit()
        with transaction.atomic(), suppress(ValueError), transaction.atomic():
            RecountRequest.objects.create(counter="x", owner="2")
            raise ValueError
        RecountRequest.objects.create(counter="x", owner="3")
    assert connection.get_autocommit()
    assert is_known()
    execute(end)
    assert not is_known()
    assert RecountRequest.objects.filter(owner__in=["2", "3"]).count() == (0 if end == "ROLLBACK" else 1)
    RecountRequest.objects.all().delete()


def test_a_connection_that_is_lost_in_a_transaction_begun_by_sql():
    """The next one has its own mode."""
    execute("BEGIN")
    with as_manual_transaction(connection):
        connection.close()
        connection.settings_dict["AUTOCOMMIT"] = False
        connection.ensure_connection()
        connection.settings_dict["AUTOCOMMIT"] = True
    assert not connection.get_autocommit()
    connection.set_autocommit(True)


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


def test_autocommit_switched_off_in_the_settings(alice):
    """As for a request whose first statement connects."""
    notify(alice)
    connection.close()
    connection.settings_dict["AUTOCOMMIT"] = False
    try:
        add(alice)
        transaction.rollback()
        connection.close()
        assert unread.count(alice) == 3
        add(alice)
        transaction.commit()
    finally:
        connection.settings_dict["AUTOCOMMIT"] = True
        connection.close()
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


def test_a_transaction_of_a_copy(alice):
    notify(alice)
    copy = connection.copy()
    copy.set_autocommit(False)
    through(copy, mark(alice))
    copy.rollback()
    through(copy, mark(alice, title="0"))
    copy.commit()
    copy.close()
    assert_heals(alice)
    assert unread.count(alice) == 2


# -------------------------------------------------------------------------------------- what others see of the app
@pytest.mark.parametrize("ends", ["commit", "rollback", "savepoint", "interrupt"])
def test_statements_have_a_wrapper_only_while_there_is_a_counted_change(alice, ends):
    def theirs(execute: Any, *args: Any) -> Any:
        return execute(*args)

    assert connection.execute_wrappers == []
    add(alice)
    assert connection.execute_wrappers == []
    with suppress(Undone, KeyboardInterrupt), connection.execute_wrapper(theirs), transaction.atomic():
        assert get_user_model().objects.filter(pk=alice.pk).update(is_active=True) == 1
        assert connection.execute_wrappers == [theirs]
        with suppress(Undone), transaction.atomic():
            add(alice)
            ours, last = connection.execute_wrappers
            assert last is theirs
            if ends == "savepoint":
                raise Undone
        with connection.execute_wrapper(theirs):
            add(alice)
            assert connection.execute_wrappers == [ours, theirs, theirs]
        if ends in ("rollback", "interrupt"):
            raise Undone if ends == "rollback" else KeyboardInterrupt
    assert connection.execute_wrappers == []
    assert unread.count(alice) == {"commit": 3, "savepoint": 2}.get(ends, 1)
    assert_exact(alice, in_doubt=None)


def test_statements_that_might_commit_look_only_at_what_is_new(alice, monkeypatch):
    """In a transaction of thousands of statements, each would else look at all before it."""
    looks: list[str] = []
    announce = TransactionLog._announce

    def note(self: TransactionLog, owners: Any, *args: Any) -> Any:
        looks.extend(owner_key for owner_keys in owners.values() for owner_key in owner_keys)
        return announce(self, owners, *args)

    monkeypatch.setattr(TransactionLog, "_announce", note)
    with transaction.atomic():
        for _ in range(50):
            add(alice)
            begin_now()
            begin_now()
    assert len(looks) == 1
    assert_exact(alice)


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


@pytest.mark.once
@pytest.mark.parametrize("autocommit", [True, False])
def test_only_owners_whose_counts_change_are_in_doubt(healed, alice, bob, autocommit):
    """Where the ledger cannot say by how much: without a transaction that it follows."""
    transaction.set_autocommit(autocommit)
    try:
        Ledger.of("default")._collect({unread: {str(alice.pk): 0, str(bob.pk): 1}})
        if not autocommit:
            transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert doubted() == [str(bob.pk)]
    assert set(RecountRequest.objects.values_list("owner", flat=True)) <= {str(bob.pk)}


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


def test_an_epoch_that_begins_between_a_statement_that_says_no_owners_and_its_commit(alice, bob):
    """Everyone is recounted without its rows, so readers must count these again before others can see them."""
    if connection.vendor == "sqlite":
        pytest.skip("Nobody else can write meanwhile.")
    notify(alice)
    users, seen = [alice.pk, bob.pk], []
    with OtherConnection() as other:
        commit = connection._commit

        def commit_and_look() -> None:
            commit()
            seen.append(other.run(unread.counts, users))

        with transaction.atomic():
            CHANGES["upsert"](alice, bob)
            begin_now()
            other.run(unread.heal)
            assert other.run(unread.counts, users) == {alice.pk: 3, bob.pk: 0}
            connection._commit = commit_and_look
        connection._commit = commit
    assert seen == [{alice.pk: 2, bob.pk: 1}]
    assert_heals(alice, bob)
