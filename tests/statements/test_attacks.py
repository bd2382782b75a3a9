"""Statements that once were counted wrongly, or did for the site what plain Django does not do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from enum import Enum
from typing import Any
from unittest import mock
from uuid import UUID

import pytest
from django.db import IntegrityError, OperationalError, connection, models, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.db.models.lookups import Exact
from django.test.utils import isolate_apps
from django.utils import timezone

from notifications_counter.counters import Counter, unread
from notifications_counter.declaration import declaration
from notifications_counter.internals import ROW_COUNT, UpdateQuery
from notifications_counter.models import BaseCount, DoubtRequest, Notification
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_exact,
    assert_heals,
    assert_reads,
    begin_now,
    execute,
    make_counter,
    notify,
    redis_out_of_reach,
    rows,
    sent,
    session,
    wait_until,
)
from tests.tasks.counters import open_tasks, sent_transfers, visible_posts
from tests.tasks.models import Post, Project, Task, Topic, Transfer, key

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("all_healed")]

objects = Notification.objects


@contextmanager
def counted(
    table: str,
    condition: Q,
    *,
    parent: type[models.Model] = models.Model,
    kind: models.Field | None = None,
    **fields: Any,
) -> Iterator[tuple[Any, Counter]]:
    """A model with these fields, and a counter of its rows for a project; if there is a kind, for a project and a
    kind."""

    def model(name: str, base: type[models.Model], table: str, **fields: Any) -> Any:
        meta = type("Meta", (), {"app_label": "tasks", "db_table": table})
        return type(name, (base,), {"__module__": __name__, "Meta": meta, **fields})

    with isolate_apps("tests.tasks"):
        keys: dict[str, Any] = {"project": key(Project)}
        if kind:
            fields["kind"] = kind
            keys = {
                "pk": models.CompositePrimaryKey("project", "kind"),
                "project": models.ForeignKey(Project, models.DO_NOTHING, db_constraint=False, related_name="+"),
                "kind": kind.clone(),
            }
        owner = models.ForeignKey(Project, models.CASCADE, related_name="+")
        source = model("Row", parent, table, project=owner, **fields)
        sums = model("RowCount", BaseCount, f"{table}_count", **keys, number=models.IntegerField(default=0))
    with connection.schema_editor() as editor:
        editor.create_model(source)
        editor.create_model(sums)
    counter = make_counter(
        table,
        source="tasks.Row",
        owner=("project", "kind") if kind else "project",
        condition=condition,
        totals="tasks.RowCount",
        field="number",
    )
    counter.source, counter.totals = source, sums
    try:
        counter.heal()
        yield source, counter
    finally:
        del declaration._declarations[table]
        declaration._by_table = None
        with connection.schema_editor() as editor:
            editor.delete_model(source)
            editor.delete_model(sums)


# ---------------------------------------------------------------------------------------------- as plain Django does it
def test_update_of_a_queryset_that_would_lock(alice):
    """Django leaves the lock out of an UPDATE, so that it needs no transaction."""
    notify(alice)
    locking = objects.select_for_update(nowait=connection.features.has_select_for_update_nowait)
    assert locking.filter(user=alice, title="1").update(read_at=timezone.now()) == 1
    assert locking.filter(user__username="alice").update(read_at=Now()) == 3
    assert_exact(alice, in_doubt=None)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Elsewhere the app doesn't add RETURNING.")
def test_a_statement_of_another_package_that_returns_rows(alice):
    class Returning(UpdateQuery):
        def get_compiler(self, *args: Any, **kwargs: Any) -> Any:
            compiler = super().get_compiler(*args, **kwargs)
            sql, params = compiler.as_sql()
            compiler.as_sql = lambda: (f"{sql} RETURNING title", params)
            return compiler

    notify(alice)
    query = objects.filter(title__lt="2").query.chain(Returning)
    query.add_update_values({"read_at": timezone.now()})
    assert query.get_compiler("default").execute_sql(ROW_COUNT) == 2
    assert_exact(alice, in_doubt=None)


def test_a_statement_of_another_package_that_changes_more_rows(alice, bob):
    """Than those that its WHERE clause selects, which were locked."""

    class Wider(UpdateQuery):
        def get_compiler(self, *args: Any, **kwargs: Any) -> Any:
            compiler = super().get_compiler(*args, **kwargs)
            sql, params = compiler.as_sql()
            compiler.as_sql = lambda: (sql.partition(" WHERE ")[0], params[:1])
            return compiler

    for user in (alice, bob):
        notify(user)
        unread.count(user)
    query = objects.filter(user=alice, title="1").query.chain(Wider)
    query.add_update_values({"read_at": timezone.now()})
    assert query.get_compiler("default").execute_sql(ROW_COUNT) == 6
    assert (unread.count(alice), unread.count(bob)) == (0, 0)
    assert_exact(alice, bob, in_doubt=None)


def test_a_migration_before_ours(house, caplog):
    """In a new database, DoubtRequest has no table yet."""
    with connection.schema_editor() as editor:
        editor.delete_model(DoubtRequest)
    try:
        with redis_out_of_reach():  # as if it had no id for the database
            Task.objects.create(project=house)
            with transaction.atomic():
                Task.objects.create(project=house)
            with transaction.atomic():
                Task.objects.create(project=house)
                begin_now()
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(DoubtRequest)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    open_tasks.recount([house])
    assert open_tasks.count(house) == 3


# -------------------------------------------------------------------------------------------------------- wrong counts
@pytest.mark.parametrize("write", ["update", "delete"])
def test_rows_drawn_by_lot(write):
    """A subquery may select other rows each time it is run."""
    if connection.vendor == "mysql":
        pytest.skip("LIMIT is not allowed in such a subquery.")
    projects = [Project.objects.create() for _ in range(12)]
    with counted("lots", Q(sold=False), sold=models.BooleanField(default=False)) as (model, counter):
        model.objects.bulk_create(model(project=project) for project in projects)
        assert_reads(*projects, counter=counter)
        drawn = model.objects.filter(pk__in=model.objects.order_by("?").values("pk")[:6])
        assert (drawn.update(sold=True) if write == "update" else drawn.delete()[0]) == 6
        assert model.objects.filter(sold=False).count() == 6
        assert_reads(*projects, counter=counter)
        if connection.vendor == "sqlite":  # rows that nobody has seen before it
            assert_heals(*projects, counter=counter)
        assert_exact(*projects, counter=counter, in_doubt=None)


@pytest.mark.parametrize(
    "write",
    [
        lambda rows, bob: rows.update(user=bob),
        lambda rows, bob: rows.update(user=F("user"), title="x"),
        lambda rows, bob: rows.update(read_at=timezone.now()),
        lambda rows, bob: rows.delete(),
    ],
    ids=["the owner", "an unknown owner", "the state", "delete"],
)
def test_a_span_of_time(write, alice, bob, make_user):
    """Before the statement, one row leaves it, and another enters it."""
    carol, now, span = make_user(), timezone.now(), timedelta(seconds=2)
    leaves, enters = now + span * 0.6, now + span * 0.7
    objects.create(user=alice, title="leaves", created_at=leaves - span)
    objects.create(user=carol, title="enters", created_at=enters)
    assert_reads(alice, bob, carol)

    def wait(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith(("UPDATE", "DELETE")):
            wait_until(lambda: timezone.now() > enters)
        return execute(sql, *args)

    with connection.execute_wrapper(wait):
        write(objects.filter(created_at__gt=Now() - span, created_at__lt=Now()), bob)
    assert unread.buffer.status().ready  # not everyone is in doubt
    assert_exact(alice, bob, carol, in_doubt=None)


def test_rows_before_now_and_no_others(alice, bob):
    notify(alice, 2)
    objects.create(user=alice, title="later", created_at=timezone.now() + timedelta(hours=1))
    assert_reads(alice, bob)
    assert objects.filter(created_at__lt=Now()).update(user=bob) == 2
    assert_reads(alice, bob)
    assert objects.filter(created_at__lt=Now()).delete()[0] == 2
    assert objects.get().title == "later"
    assert_exact(alice, bob, in_doubt=None)


def test_many_rows_before_now(alice, bob):
    """More than are updated by their primary keys."""
    notify(alice, 1002)
    assert_reads(alice, bob)
    assert objects.filter(created_at__lt=Now()).update(user=bob) == 1002
    assert_reads(alice, bob)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Elsewhere, rows are stored in the order of their keys.")
@pytest.mark.parametrize("condition", [~Q(title=""), Q(created_at__lt=Now())])
def test_rows_are_locked_in_the_order_of_their_keys(condition, alice, bob):
    """Otherwise, two updates of the same rows may wait for each other."""
    first, second, _ = notify(alice)
    objects.filter(pk=first.pk).update(title="behind the others")
    with OtherConnection() as other:
        pid = other.run(session)
        with transaction.atomic():
            objects.select_for_update().get(pk=first.pk)
            update = other.start(objects.filter(condition).update, user=bob)
            wait_until(lambda: execute(f"SELECT pg_blocking_pids({pid}) <> '{{}}'") == [(True,)])
            assert objects.select_for_update(nowait=True).get(pk=second.pk)
        assert update.result(PATIENCE) == 3
    assert_exact(alice, bob, in_doubt=None)


@pytest.mark.skipif(connection.vendor != "mysql", reason="Elsewhere, a statement reads all rows as they are.")
def test_other_rows_that_changed_after_the_snapshot(alice, bob):
    """An UPDATE reads them as they are now, a SELECT as they were."""
    notify(alice)
    with mock.patch.dict(connection.settings_dict["OPTIONS"], isolation_level="repeatable read"):
        connection.close()
        with transaction.atomic(), OtherConnection() as other:
            assert_reads(alice)
            other.run(type(alice).objects.filter(pk=alice.pk).update, username="new")
            named = type(alice).objects.filter(username="new").values("pk")
            assert objects.filter(user__in=named).update(user=bob) == 3
            assert_reads(alice, bob)
    connection.close()
    assert_reads(alice, bob)


def test_a_child_that_is_updated_together_with_its_parent(house):
    """Django selects the rows first. Between the two statements, another session closes one of them."""
    topic = Topic.objects.create(id="news")
    closed = models.BooleanField(default=False)
    with (
        counted("children", Q(closed=False), parent=Post, closed=closed) as (model, counter),
        OtherConnection() as other,
    ):
        one, *_ = (model.objects.create(project=house, topic=topic) for _ in range(3))

        def close_one(execute: Any, sql: str, *args: Any) -> Any:
            if sql.startswith("UPDATE") and not connection.in_atomic_block:
                other.run(model.objects.filter(pk=one.pk).update, closed=True)
            return execute(sql, *args)

        with connection.execute_wrapper(close_one):
            model.objects.filter(project=house, closed=False, pk__lt=one.pk + 2).update(closed=True, hidden=True)
        assert counter.count(house) == 1
        assert_exact(house, counter=counter, in_doubt=None)
        assert_exact("news", counter=visible_posts, in_doubt=None)


@pytest.mark.skipif(connection.vendor != "mysql", reason="Elsewhere, Django selects what is there now.")
def test_a_child_that_is_updated_together_with_its_parent_as_it_was(house, garden):
    """At REPEATABLE READ, Django selects other rows than those that the filter selects now, and as many."""
    topic = Topic.objects.create(id="news")
    with (
        counted("snapshot", Q(closed=False), parent=Post, closed=models.BooleanField(default=False)) as (
            model,
            counter,
        ),
        mock.patch.dict(connection.settings_dict["OPTIONS"], isolation_level="repeatable read"),
        OtherConnection() as other,
    ):
        connection.close()
        one, two = (
            model.objects.create(project=project, topic=topic, closed=project is garden) for project in (house, garden)
        )
        with transaction.atomic(), suppress(OperationalError):  # MariaDB from 11.6 on refuses it
            assert model.objects.count() == 2
            other.run(model.objects.filter(pk=one.pk).update, closed=True)
            other.run(model.objects.filter(pk=two.pk).update, closed=False)
            other.run(counter.counts, [house, garden])
            model.objects.filter(closed=False).update(closed=True, hidden=True)
        connection.close()
        assert counter.counts([house, garden]) == {
            project.pk: model.objects.filter(project=project, closed=False).count() for project in (house, garden)
        }


@pytest.mark.skipif(connection.vendor != "mysql", reason="Others refuse such a value.")
@pytest.mark.parametrize("how", ["INSERT IGNORE", "INSERT", "UPDATE"])
@pytest.mark.parametrize("value", [{"kind": None}, {"kind": 99_999}, {"kind": "-99999"}, {"closed": None}], ids=str)
def test_a_value_that_is_stored_as_another(house, value, how):
    """INSERT IGNORE does so in any mode, and MySQL without its strict mode."""
    with counted("converted", Q(closed=False), kind=models.SmallIntegerField(), closed=models.BooleanField()) as (
        model,
        counter,
    ):
        stored = [(house, kind) for kind in (1, 0, 32_767, -32_768)]
        row = {"project": house, "kind": 1, "closed": False}
        model.objects.create(**{**row, "closed": True})
        assert set(counter.counts(stored).values()) == {0}
        if how == "INSERT IGNORE":
            model.objects.bulk_create([model(**{**row, **value})], ignore_conflicts=True)
        else:
            execute("SET SESSION sql_mode = ''")
        if how == "INSERT":
            model.objects.bulk_create([model(**{**row, **value}) for _ in range(2)])  # of one, it refuses NULL
        elif how == "UPDATE":
            assert model.objects.filter(project=house, kind=1).update(**{**row, **value}) == 1
        connection.close()
        found = counter.counts(stored)
        assert sum(found.values()) == model.objects.filter(closed=False).count() > 0
        assert counter.recount(dry_run=True).wrong == 0


@pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB updates the row of this primary key.")
def test_an_upsert_of_a_row_with_another_key(house, garden):
    fields = {
        "id": models.UUIDField(primary_key=True),
        "number": models.IntegerField(unique=True),
        "sold": models.BooleanField(default=False),
    }
    with counted("numbered", Q(sold=False), **fields) as (model, counter):
        model.objects.create(id=UUID(int=1), project=house, number=1)
        model.objects.create(id=UUID(int=2), project=garden, number=2)
        assert counter.counts([house, garden]) == {house.pk: 1, garden.pk: 1}
        upsert = {"update_conflicts": True, "unique_fields": ["number"], "update_fields": ["sold"]}
        model.objects.bulk_create([model(id=UUID(int=2), project=garden, number=1, sold=True)], **upsert)
        assert counter.counts([house, garden]) == {house.pk: 0, garden.pk: 1}


@pytest.mark.skipif(connection.vendor == "mysql", reason="MariaDB has no such triggers.")
def test_rows_that_a_trigger_does_not_let_in(alice, house):
    """Where Django wants its key back, it fails; a key of the site's own it takes for stored."""
    assert (unread.count(alice), sent_transfers.count(house)) == (0, 0)  # Redis has them from here on
    tables = [model._meta.db_table for model in (Notification, Transfer)]
    what, undo = "BEGIN SELECT RAISE(IGNORE); END", [f"DROP TRIGGER skip_{table}" for table in tables]
    if connection.vendor == "postgresql":
        execute("CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        what, undo = "EXECUTE FUNCTION skip()", ["DROP FUNCTION skip CASCADE"]
    execute(*(f"CREATE TRIGGER skip_{table} BEFORE INSERT ON {table} FOR EACH ROW {what}" for table in tables))
    try:
        with suppress(TypeError, AssertionError):
            Notification.objects.create(user=alice, title="not let in")
        with suppress(TypeError, AssertionError):
            Notification.objects.bulk_create(Notification(user=alice, title="not let in") for _ in range(2))
        Transfer.objects.create(sender=house, receiver=house)
        Transfer.objects.bulk_create(Transfer(sender=house, receiver=house) for _ in range(2))
    finally:
        execute(*undo)
    assert (unread.count(alice), sent_transfers.count(house)) == (0, 0)


class Plain(Enum):
    SALE = "sale"


class UpperCase(models.CharField):
    """As a field of another package: the database stores something else than it is sent."""

    def get_placeholder(self, value, compiler, connection):  # before Django 6.1
        return "UPPER(%s)"

    def get_placeholder_sql(self, value, compiler, connection):
        sql, params = compiler.compile(value) if hasattr(value, "as_sql") else ("%s", [value])
        return f"UPPER({sql})", params


KINDS: dict[str, Any] = {
    "a field that has the database store another text": (UpperCase(max_length=40), "sale"),
    "an Enum that is no text": (models.CharField(max_length=40), Plain.SALE),
    "spaces at the end": (models.CharField(max_length=4), "sale  "),
}


@pytest.mark.parametrize("case", KINDS)
def test_a_text_that_is_stored_as_another(house, case):
    kind, value = KINDS[case]
    if case.startswith("spaces") and connection.vendor == "sqlite":
        pytest.skip("It stores texts of any length.")
    with counted("texts", Q(), kind=kind.clone()) as (model, counter):
        model.objects.create(project=house, kind="old")
        assert model.objects.filter(project=house).update(kind=value) == 1
        model.objects.create(project=house, kind=value)
        [text] = model.objects.values_list("kind", flat=True).distinct()
        assert counter.counts([(house, "old"), (house, text)]) == {(house.pk, "old"): 0, (house.pk, text): 2}
        assert counter.recount(dry_run=True).wrong == 0


def test_a_field_of_another_package_is_set(house):
    """What it was before says nothing any more."""
    with counted("unnamed", Q(label=None), label=UpperCase(max_length=9, null=True)) as (model, counter):
        model.objects.bulk_create(model(project=house) for _ in range(2))
        assert counter.count(house) == 2
        assert model.objects.filter(project=house, label=None).update(label="x") == 2
        assert counter.count(house) == 0
        assert_exact(house, counter=counter, in_doubt=None)


def test_a_table_whose_name_needs_quotes(house):
    with counted("Some Table", Q()) as (model, counter):
        model.objects.create(project=house)
        assert counter.count(house) == 1
        with sent() as commands:
            counter.count(house)
        assert commands == ["MGET"]  # it was cached
        assert_exact(house, counter=counter)


def test_texts_that_the_database_takes_for_equal(house):
    """By default, MySQL and MariaDB count rows with "NEW" where the condition says "new"."""
    collation = "NOCASE" if connection.vendor == "sqlite" else None
    fields = {"state": models.CharField(max_length=9, db_collation=collation), "closed": models.BooleanField()}
    with counted("cases", Q(state="new", closed=False), **fields) as (model, counter):
        assert counter.count(house) == 0
        for state in ("NEW", "new", "old"):
            model.objects.create(project=house, state="", closed=True)
            assert model.objects.filter(project=house, closed=True).update(state=state, closed=False) == 1
            assert counter.count(house) == model.objects.filter(state="new").count()
        assert_exact(house, counter=counter, in_doubt=None)


class Flags(models.IntegerField):
    """As in django-bitfield: ``flags=1`` finds every row that has this bit."""


@Flags.register_lookup
class HasBits(Exact):
    def as_sql(self, compiler, connection):
        column, params = self.process_lhs(compiler, connection)
        return f"({column} & %s) = %s", (*params, self.rhs, self.rhs)


def test_a_lookup_that_means_something_else(house):
    with counted("bits", Q(flags=1), flags=Flags(default=0)) as (model, counter):
        model.objects.bulk_create([model(project=house, flags=flags) for flags in (1, 2, 3)])
        assert counter.count(house) == 2
        assert model.objects.filter(project=house, flags=2).update(flags=2) == 2
        assert counter.count(house) == 1
        assert_exact(house, counter=counter, in_doubt=None)


def test_rows_with_a_composite_key(house, garden, caplog, monkeypatch):
    monkeypatch.setattr("notifications_counter.writes.plans.TELL_SECONDS", -1)
    fields = {"line": models.IntegerField(), "next": models.ForeignKey(Project, models.CASCADE, related_name="+")}
    with counted("lines", Q(), pk=models.CompositePrimaryKey("line", "next_id"), **fields) as (model, counter):
        lines = [model(line=number, project=house, next=garden) for number in range(3)]
        model.objects.bulk_create(lines)
        assert counter.counts([house, garden]) == {house.pk: 3, garden.pk: 0}
        assert model.objects.filter(line__lt=1).update(project=F("next")) == 1
        for line in lines:
            line.project = garden
        model.objects.bulk_update(lines[1:2], ["project"])
        lines[2].save()
        assert counter.counts([house, garden]) == {house.pk: 0, garden.pk: 3}
        assert_exact(house, counter=counter, in_doubt=None)
    assert not [record for record in caplog.records if record.event == "everyone"]


def test_many_rows_with_a_composite_key(house, garden):
    """SQLite refuses an expression that is deeper than a thousand."""
    fields = {"line": models.IntegerField(), "next": models.ForeignKey(Project, models.CASCADE, related_name="+")}
    with counted("many_lines", Q(), pk=models.CompositePrimaryKey("line", "next_id"), **fields) as (model, counter):
        model.objects.bulk_create(model(line=number, project=house, next=garden) for number in range(999))
        assert model.objects.filter(line__gte=0).update(project=F("next")) == 999
        assert counter.counts([house, garden]) == {house.pk: 0, garden.pk: 999}


@pytest.mark.parametrize("how", ["ROLLBACK", "ABORT", "INSERT OR ROLLBACK INTO {0} SELECT * FROM {0}"])
def test_a_rollback_in_sql(alice, how):
    if connection.vendor != {"ABORT": "postgresql", "ROLLBACK": connection.vendor}.get(how, "sqlite"):
        pytest.skip("It is not SQL of this database.")
    notify(alice)
    assert unread.count(alice) == 3
    with transaction.atomic(), connection.cursor() as cursor:
        Notification.objects.create(user=alice, title="lost")
        with suppress(IntegrityError):
            cursor.execute(how.format(Notification._meta.db_table))
        if connection.vendor == "sqlite" and how == "ROLLBACK":
            cursor.execute("BEGIN")
        Notification.objects.create(user=alice, title="kept")
    assert unread.count(alice) == rows(alice) == 4
    assert_exact(alice, in_doubt=None)
