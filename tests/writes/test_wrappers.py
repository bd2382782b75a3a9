"""Wrappers of other code around statements, which do more than execute what they are given."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import pytest
from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models.sql import UpdateQuery
from django.db.models.sql.constants import ROW_COUNT
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.statements.support import named
from tests.support import assert_exact, assert_reads, notify
from tests.support import rows as count_of
from tests.tasks.counters import open_transfers, sent_transfers
from tests.tasks.models import Project, Transfer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("all_healed")]

objects = Notification.objects

of_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="Of PostgreSQL.")


def writes(alice: Any, bob: Any, house: Project) -> list[tuple[Callable[[], Any], Any]]:
    """Statements of each kind, on one row and on many, and what they return."""
    one, two, *_, last = notify(alice, 10)
    return [
        (lambda: one.mark_as_read(), True),
        (lambda: objects.filter(user=alice, title="2").mark_as_read(), 1),
        (lambda: objects.filter(user=alice, title__in=["7", "8"]).mark_as_read(), 2),
        (lambda: objects.filter(pk=two.pk).mark_as_read(), 1),
        (lambda: objects.filter(title__in=["3", "4"]).mark_as_read(), 2),
        (lambda: objects.filter(title="4").update(user=bob), 1),
        (lambda: objects.filter(title__in=["5", "6"]).update(user=bob), 2),
        (lambda: objects.filter(title="5").update(body="x"), 1),
        (lambda: objects.read().mark_as_unread(), 7),
        (lambda: objects.filter(title="4").delete()[0], 1),
        (lambda: objects.filter(title__in=["5", "6"]).delete()[0], 2),
        (lambda: objects.filter(title="nobody's").delete()[0], 0),
        (lambda: last.save(), None),
        (lambda: len(objects.bulk_create(Notification(user=bob, title="x") for _ in range(2))), 2),
        (lambda: Transfer.objects.create(sender=house, receiver=house).state, "open"),
        (lambda: len(Transfer.objects.bulk_create(Transfer(sender=house, receiver=house) for _ in range(2))), 2),
        (lambda: Transfer.objects.filter(state="open").update(state="closed"), 3),
        (lambda: Transfer.objects.filter(state="closed").delete()[0], 3),
    ]


COUNTERS = (unread, sent_transfers, open_transfers)


def assert_all_read(alice: Any, bob: Any, house: Project) -> None:
    assert_reads(alice, bob)
    assert_reads(house, counter=sent_transfers)
    assert_reads(house, counter=open_transfers)
    assert not any(counter.buffer.status().intents for counter in COUNTERS)


def assert_nobody_doubts_everyone() -> None:
    assert all(counter.buffer.status().ready for counter in COUNTERS)


# ------------------------------------------------------------------------------------------------------ other packages
def of_pghistory() -> AbstractContextManager[Any]:
    return pytest.importorskip("pghistory").context(reason="test")


@contextmanager
def ignoring() -> Iterator[None]:
    """Ignore a trigger that does not let transfers be deleted."""
    pgtrigger = pytest.importorskip("pgtrigger")
    trigger = pgtrigger.Protect(name="protect", operation=pgtrigger.Delete)
    with trigger.register(Transfer), trigger.install(Transfer), pgtrigger.ignore():
        yield


def in_schema() -> AbstractContextManager[Any]:
    return pytest.importorskip("pgtrigger").schema("public")


@of_postgresql
@pytest.mark.parametrize("block", [nullcontext, transaction.atomic])
@pytest.mark.parametrize("packages", [[of_pghistory], [ignoring], [in_schema], [of_pghistory, ignoring, in_schema]])
def test_packages_that_put_a_statement_before_each(packages, block, alice, bob, house):
    """With psycopg 3, they step to the last result."""
    assert_all_read(alice, bob, house)
    works = writes(alice, bob, house)
    with ExitStack() as stack:
        for entered in (*packages, block):
            stack.enter_context(entered())
        for number, (work, result) in enumerate(works):
            assert work() == result, number
            assert_all_read(alice, bob, house)
    assert_all_read(alice, bob, house)
    assert_nobody_doubts_everyone()


@of_postgresql
def test_the_pages_of_the_inbox_in_a_context_of_pghistory(alice):
    pytest.importorskip("pghistory")
    with override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, "pghistory.middleware.HistoryMiddleware"]):
        client = Client()
        client.force_login(alice)
        one, *_, last = rows = notify(alice, 6)
        for name, chosen in (
            ("mark-as-read", {"pk": one.pk}),
            ("mark-as-read", {"selected": [row.pk for row in rows[:3]]}),
            ("mark-as-unread", {"which": "all"}),
            ("delete", {"pk": one.pk}),
            ("delete", {"selected": [row.pk for row in rows[1:3]]}),
        ):
            client.post(reverse(f"notifications:{name}"), chosen)
            page = client.get(reverse("notifications:inbox"))
            assert f"Unread notifications: {count_of(alice)}" in page.content.decode()
        assert client.post(reverse("notifications:open", args=[last.pk])).status_code == 302
    assert_exact(alice, in_doubt=None)


@of_postgresql
def test_rows_that_a_trigger_does_not_let_in_in_a_context_of_pghistory(house):
    pgtrigger = pytest.importorskip("pgtrigger")
    assert sent_transfers.count(house) == 0
    trigger = pgtrigger.Trigger(name="skip", operation=pgtrigger.Insert, when=pgtrigger.Before, func="RETURN NULL;")
    with trigger.register(Transfer), trigger.install(Transfer), of_pghistory():
        Transfer.objects.create(sender=house, receiver=house)
    assert sent_transfers.count(house) == 0


# ------------------------------------------------------------------------------------------------------ a site's own
def of_a_write(sql: Any) -> bool:
    return isinstance(sql, str) and sql.startswith(("INSERT", "UPDATE", "DELETE"))


def with_a_comment_behind(execute: Any, sql: Any, *args: Any) -> Any:
    return execute(f"{sql} /* UPDATE {Notification._meta.db_table} */ -- DELETE", *args)


def with_a_comment_before(execute: Any, sql: Any, *args: Any) -> Any:
    return execute(f"/* a DELETE of somebody */ {sql}", *args)


def explained(execute: Any, sql: Any, params: Any, *args: Any) -> Any:
    if of_a_write(sql):
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {sql}", params)
    return execute(sql, params, *args)


def with_a_statement_behind(execute: Any, sql: Any, *args: Any) -> Any:
    return execute(f"{sql}; SELECT 5 AS counted0" if of_a_write(sql) else sql, *args)


def analyzed(execute: Any, sql: Any, params: Any, *args: Any) -> Any:
    """This executes it."""
    if of_a_write(sql) and not sql.startswith("INSERT"):
        with connection.cursor() as cursor:
            cursor.execute(f"{'' if connection.display_name == 'MariaDB' else 'EXPLAIN '}ANALYZE {sql}", params)
    return execute(sql, params, *args)


def never(execute: Any, sql: Any, *args: Any) -> Any:
    return None if of_a_write(sql) and not sql.startswith("INSERT") else execute(sql, *args)


def returns_keys(sql: Any) -> bool:
    """Whether Django wants to know what it has stored."""
    return sql.startswith("INSERT") and "RETURNING" in sql


def with_a_statement_before(execute: Any, sql: Any, *args: Any) -> Any:
    return execute(f"SELECT 5 AS counted0; {sql}" if of_a_write(sql) and not returns_keys(sql) else sql, *args)


def with_another_result(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
    result = execute(sql, params, many, context)
    if of_a_write(sql) and not returns_keys(sql):
        context["cursor"].cursor.execute("SELECT 5 AS counted0")
    return result


@pytest.mark.parametrize(
    "wrapper",
    [
        with_a_comment_behind,
        with_a_comment_before,
        explained,
        pytest.param(with_a_statement_behind, marks=of_postgresql),
    ],
)
def test_wrappers_that_leave_the_result_alone(wrapper, alice, bob, house):
    assert_all_read(alice, bob, house)
    works = writes(alice, bob, house)
    with connection.execute_wrapper(wrapper):
        for number, (work, result) in enumerate(works):
            assert work() == result, number
            assert_all_read(alice, bob, house)
    assert_nobody_doubts_everyone()


@pytest.mark.parametrize(
    "wrapper",
    [
        pytest.param(analyzed, marks=pytest.mark.skipif(connection.vendor == "sqlite", reason="It knows no ANALYZE.")),
        never,
        with_another_result,
        pytest.param(with_a_statement_before, marks=of_postgresql),
    ],
)
def test_wrappers_with_which_django_reads_another_result(wrapper, alice, bob, house):
    assert_all_read(alice, bob, house)
    for number, (work, _) in enumerate(writes(alice, bob, house)):
        with suppress(IntegrityError, TypeError), connection.execute_wrapper(wrapper):  # as Django takes it for none
            work()
        with named(f"{number}"):
            assert_all_read(alice, bob, house)


def test_a_package_that_reads_what_the_driver_returns(alice, monkeypatch):
    """As those that trace queries: each statement returns it, also while wrappers of ours look on."""
    seen = []

    def execute(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(original(self, *args, **kwargs))
        return seen[-1]

    original = CursorWrapper.execute
    monkeypatch.setattr(CursorWrapper, "execute", execute)
    with transaction.atomic():
        Notification.objects.create(user=alice, title="x")
        Notification.objects.filter(user=alice).update(read_at=timezone.now())
        type(alice).objects.count()
    assert len(seen) >= 3
    assert None not in seen


def test_a_compiler_is_left_as_it_was(alice):
    """A package may execute it again."""
    notify(alice, 2)
    query = Notification.objects.filter(user=alice, read_at=None).query.chain(UpdateQuery)
    query.add_update_values({"read_at": timezone.now()})
    compiler = query.get_compiler("default")
    assert [compiler.execute_sql(ROW_COUNT) for _ in range(2)] == [2, 0]
    assert "as_sql" not in vars(compiler)
    assert_exact(alice)


def test_a_package_that_changes_sql_before_all_wrappers(alice, bob, house, monkeypatch):
    execute = CursorWrapper.execute
    works = writes(alice, bob, house)
    assert_all_read(alice, bob, house)
    with monkeypatch.context() as patched:
        patched.setattr(CursorWrapper, "execute", lambda cursor, sql, *args: execute(cursor, f"{sql} /* x */", *args))
        for number, (work, result) in enumerate(works):
            assert work() == result, number
            assert_all_read(alice, bob, house)
