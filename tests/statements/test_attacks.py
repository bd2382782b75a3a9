"""Statements that once were counted wrongly, or did for the site what plain Django does not do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from django.core.exceptions import FieldError, ValidationError
from django.db import IntegrityError, OperationalError, connection, models, transaction
from django.db.models import Case, F, Func, Max, Q, Subquery, UUIDField, Value, When
from django.db.models.functions import Now
from django.db.models.lookups import Exact
from django.test.utils import isolate_apps
from django.utils import timezone

from notifications_counter.counters import Counter, unread
from notifications_counter.databases import identity
from notifications_counter.declaration import declaration
from notifications_counter.models import BaseCount, Notification, RecountRequest, UserNotificationsCount
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_exact,
    assert_heals,
    assert_reads,
    begin_now,
    make_counter,
    notify,
    redis_out_of_reach,
    rows,
    savepoint_create,
    stored,
    unheard,
)
from tests.tasks.counters import open_tasks, open_transfers, visible_posts
from tests.tasks.models import Post, Project, Task, Topic, Transfer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("these_healed")]

objects = Notification.objects
totals = UserNotificationsCount.objects


@pytest.fixture
def these_healed() -> None:
    for counter in (unread, open_tasks, open_transfers, visible_posts):
        counter.heal()


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
        keys: dict[str, Any] = {
            "project": models.OneToOneField(
                Project, models.DO_NOTHING, primary_key=True, db_constraint=False, related_name="+"
            )
        }
        if kind:
            fields["kind"] = kind
            keys = {
                "pk": models.CompositePrimaryKey("project", "kind"),
                "project": models.ForeignKey(Project, models.DO_NOTHING, db_constraint=False, related_name="+"),
                "kind": kind.output_field.clone() if isinstance(kind, models.GeneratedField) else kind.clone(),
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
        declaration._by_table.clear()
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


@pytest.mark.parametrize(("value", "error"), [("no date", ValidationError), (Max("created_at"), FieldError)])
def test_a_wrong_value_for_no_row(value, error):
    with pytest.raises(error):
        objects.filter(pk=-1).update(read_at=value)


def test_an_order_that_unique_keys_need(house):
    number, sold = models.IntegerField(unique=True), models.BooleanField(default=False)
    with counted("ordered", Q(sold=False), number=number, sold=sold) as (model, counter):
        if connection.vendor == "sqlite":
            pytest.skip("It updates rows in the order of their primary keys.")
        # PostgreSQL updates rows in the order in which they are stored.
        model.objects.bulk_create(model(project=house, id=i, number=i) for i in (3, 2, 1))
        sell_one = Case(When(number=1, then=True), default=False)
        assert model.objects.order_by("-number").update(number=F("number") + 1, sold=sell_one) == 3
        assert_exact(house, counter=counter, in_doubt=None)


def test_an_error_without_autocommit_that_a_savepoint_undoes(alice):
    one, *_ = notify(alice)
    transaction.set_autocommit(False)
    try:
        savepoint = savepoint_create()
        with pytest.raises(IntegrityError):
            objects.filter(title__gt="0").update(id=one.pk, read_at=Now())
        transaction.savepoint_rollback(savepoint)
        assert objects.count() == 3
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert_heals(alice)


def test_columns_and_a_table_that_are_called_as_ours_could_be(house, garden):
    columns = {name: models.IntegerField(default=0) for name in ("k0", "w0", "b0", "c0")}
    with counted("old", Q(w0=0), **columns) as (model, counter):
        model.objects.bulk_create(model(project=house) for _ in range(3))
        assert model.objects.filter(k0=0).update(w0=Case(When(pk__gt=1, then=1), default=0)) == 3
        zero = Subquery(model.objects.filter(w0=0).values("w0")[:1])
        assert model.objects.filter(w0=1).update(project=garden, w0=zero) == 2
        assert_exact(house, garden, counter=counter, in_doubt=None)


@pytest.mark.parametrize("condition", [Q(), Q(value1=0)], ids=["all", "some"])
def test_columns_that_are_called_as_django_names_expressions(house, condition):
    columns = {name: models.IntegerField(default=0) for name in ("case1", "value1")}
    with counted("expressions", condition, **columns) as (model, counter):
        model.objects.bulk_create(model(project=house) for _ in range(3))
        assert model.objects.filter(pk__gt=1).update(value1=F("case1") + 1, project=house) == 2
        assert model.objects.filter(pk__gt=2).delete()[0] == 1
        assert_exact(house, counter=counter, in_doubt=None)


def test_an_update_of_nothing_where_a_generated_column_counts(house):
    double = models.GeneratedField(expression=F("number") * 2, output_field=models.IntegerField(), db_persist=True)
    with counted("generated", Q(double=0), number=models.IntegerField(), double=double) as (model, counter):
        model.objects.create(project=house, number=0)
        assert model.objects.update() == 0
        assert_exact(house, counter=counter, in_doubt=None)


def test_a_migration_before_ours(house, caplog):
    """A new database: a model of somebody else's migration lacks a column, and RecountRequest has no table yet."""
    with isolate_apps("tests.tasks"):

        class Old(models.Model):
            title = models.CharField(max_length=100)

            class Meta:
                app_label = "tasks"
                db_table = Task._meta.db_table

    Task.objects.create(project=house)
    with connection.schema_editor() as editor:
        editor.delete_model(RecountRequest)
    try:
        assert Old.objects.all().delete()[0] == 1
        with redis_out_of_reach():  # as if it had no id for the database
            Task.objects.create(project=house)
            with transaction.atomic():
                Task.objects.create(project=house)
            with transaction.atomic():
                Task.objects.create(project=house)
                begin_now()
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(RecountRequest)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    open_tasks.recount([house])
    assert open_tasks.count(house) == 3


def test_a_trigger_that_skips_rows_which_would_not_change(house):
    """It is asked once for each row."""
    if connection.vendor != "postgresql":
        pytest.skip("Only PostgreSQL has such triggers.")
    with (
        counted("skipped", Q(sold=False), sold=models.BooleanField(default=False)) as (model, counter),
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "CREATE SEQUENCE asked OWNED BY skipped.id;"
            "CREATE OR REPLACE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " PERFORM nextval('asked'); IF NEW = OLD THEN RETURN NULL; END IF; RETURN NEW; END $$;"
            "CREATE TRIGGER skip BEFORE UPDATE ON skipped FOR EACH ROW EXECUTE FUNCTION skip()"
        )
        one, *_ = model.objects.bulk_create(model(project=house) for _ in range(3))
        sell_one = Case(When(pk=one.pk, then=True), default=F("sold"))
        assert model.objects.update(sold=sell_one) == 1
        assert model.objects.filter(project=house).update(sold=sell_one) == 0
        cursor.execute("SELECT last_value FROM asked")
        assert cursor.fetchone() == (6,)
        assert_exact(house, counter=counter, in_doubt=None)


def sales_in(table: str) -> Any:
    """A model of a table that knows only two of its columns, and calls the primary key id."""
    with isolate_apps("tests.tasks"):

        class Sale(models.Model):
            project = models.ForeignKey(Project, models.CASCADE, related_name="+")
            sold = models.BooleanField(default=False)

            class Meta:
                app_label = "tasks"
                managed = False
                db_table = table

    return Sale


def test_two_sources_of_which_one_lacks_a_column(house):
    columns = {"sold": models.BooleanField(default=False), "extra": models.IntegerField(default=0)}
    few = sales_in("shared")
    with (
        counted("shared", Q(sold=False), **columns) as (model, first),
        counted("not_shared", Q(extra=0), **{name: field.clone() for name, field in columns.items()}) as (_, second),
    ):
        first.source, second.source = few, model
        for counter in (first, second):
            for name in ("condition", "columns", "owner_fields", "fingerprint", "_names"):
                vars(counter).pop(name, None)
        declaration._by_table.clear()
        identity.forget_buffers()
        model.objects.bulk_create(model(project=house, sold=Value(False)) for _ in range(3))
        assert model.objects.filter(pk__gt=1).update(sold=~F("sold"), extra=F("extra") + 1) == 2
        assert model.objects.filter(pk__gt=2).delete()[0] == 1
        assert rows(house, first) == rows(house, second) == 1
        assert_reads(house, counter=first)
        assert_reads(house, counter=second)


@pytest.mark.parametrize("rest", [{}, {"project__in": Project.objects.all()}], ids=["its own columns", "a subquery"])
def test_a_primary_key_that_had_another_name(house, rest):
    """As in a data migration, before the one that renames the key."""
    old = sales_in("renamed")
    fields = {"number": models.BigAutoField(primary_key=True), "sold": models.BooleanField(default=False)}
    with counted("renamed", Q(sold=False), **fields) as (_, counter), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE renamed RENAME COLUMN number TO id")
        try:
            old.objects.create(project=house, sold=Value(False))
            old.objects.bulk_create(old(project=house, sold=i == 1) for i in range(4))
            assert old.objects.filter(pk__gt=1, **rest).update(sold=~F("sold")) == 4
            assert old.objects.filter(pk__gt=3, **rest).update(sold=F("sold")) == 2
            assert old.objects.filter(pk__lt=3, **rest).delete()[0] == 2
        finally:
            cursor.execute("ALTER TABLE renamed RENAME COLUMN id TO number")
        assert_exact(house, counter=counter, in_doubt=None)


# -------------------------------------------------------------------------------------------------------- wrong counts
@pytest.mark.parametrize("write", ["update", "delete"])
def test_rows_drawn_by_lot(write):
    """A subquery may select other rows each time it is run."""
    if connection.vendor == "mysql":
        pytest.skip("LIMIT is not allowed in such a subquery.")
    projects = [Project.objects.create() for _ in range(12)]
    with counted("lots", Q(sold=False), sold=models.BooleanField(default=False)) as (model, counter):
        model.objects.bulk_create(model(project=project) for project in projects)
        drawn = model.objects.filter(pk__in=model.objects.order_by("?").values("pk")[:6])
        assert (drawn.update(sold=True) if write == "update" else drawn.delete()[0]) == 6
        assert model.objects.filter(sold=False).count() == 6
        if connection.vendor == "sqlite":  # rows that nobody has seen before it
            assert_heals(*projects, counter=counter)
        assert_exact(*projects, counter=counter, in_doubt=None)


@pytest.mark.parametrize("value", [0.6, 1.5])
def test_a_number_that_the_database_rounds(house, value):
    with counted("rounded", Q(number=1), number=models.IntegerField()) as (model, counter):
        model.objects.create(project=house, number=7)
        assert model.objects.filter(project=house, number=7).update(number=Value(value)) == 1
        assert_exact(house, counter=counter, in_doubt=None)


def test_a_child_that_is_updated_together_with_its_parent(house):
    """Django selects the rows first. Between the two statements, another session closes one of them."""
    topic = Topic.objects.create(id="news")
    with (
        counted("children", Q(closed=False), parent=Post, closed=models.BooleanField(default=False)) as (
            model,
            counter,
        ),
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


def test_a_key_that_is_another_each_time(house):
    if connection.vendor != "sqlite":
        pytest.skip("Elsewhere RETURNING tells.")
    key = Func(template="lower(hex(randomblob(16)))", output_field=UUIDField())
    Transfer.objects.create(id=key, sender=house, receiver=house)
    assert open_transfers.count(house) == 1
    open_transfers.heal()
    assert_exact(house, counter=open_transfers)


class Subject(str, Enum):  # noqa: UP042 - StrEnum is told apart by str() as it is
    NEWS = "news"


def test_a_member_of_an_enum_as_owner():
    Topic.objects.create(id="news")
    Post.objects.create(topic_id=Subject.NEWS)
    assert visible_posts.count("news") == visible_posts.count(Subject.NEWS) == 1
    assert Post.objects.filter(topic_id="news").update(topic_id=Subject.NEWS, hidden=True) == 1
    assert_exact("news", counter=visible_posts)


class Plain(Enum):
    SALE = "sale"


class LowerCase(models.CharField):
    """As a field of another package: what it stores is not what it is given."""

    def get_prep_value(self, value):
        return super().get_prep_value(value).lower()


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
    "a field that stores another text": (LowerCase(max_length=40), "Sale"),
    "a UUID": (models.CharField(max_length=40), Value(UUID(int=5))),
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


@pytest.mark.parametrize("condition", [Q(), Q(sold=False)], ids=["all", "some"])
def test_a_generated_column_as_owner(house, condition):
    double = models.GeneratedField(
        expression=F("number") * 2, output_field=models.IntegerField(null=True), db_persist=True
    )
    fields = {"number": models.IntegerField(null=True), "sold": models.BooleanField(default=False)}
    with counted("doubles", condition, kind=double, **fields) as (model, counter):

        def counts() -> list[int]:
            found = counter.counts([(house, kind) for kind in (2, 4, 6)])
            assert counter.recount(dry_run=True).wrong == 0
            return list(found.values())

        one, two = (model.objects.create(project=house, number=number) for number in (1, None))
        assert counts() == [1, 0, 0]
        assert model.objects.filter(project=house, kind__isnull=True, sold=False).update(number=2) == 1
        assert counts() == [1, 1, 0]
        assert model.objects.filter(project=house, number=1).update(number=3, sold=False) == 1
        assert counts() == [0, 1, 1]
        model.objects.bulk_create(
            [model(pk=two.pk, project=house, number=3)],
            update_conflicts=True,
            update_fields=["number"],
            unique_fields=None if connection.vendor == "mysql" else ["pk"],
        )
        counter.heal()
        assert counts() == [0, 0, 2]


def test_a_twin_whose_owner_is_no_foreign_key(alice, bob):
    class_, length = unread.key_fields[0].__class__, unread.key_fields[0].max_length
    class_ = models.BigIntegerField if issubclass(class_, models.AutoField) else class_
    with isolate_apps("tests.tasks"):

        class Twin(models.Model):
            user = class_(max_length=length, db_column="user_id")
            read_at = models.DateTimeField(null=True)

            class Meta:
                app_label = "tasks"
                managed = False
                db_table = Notification._meta.db_table

    one, *_ = notify(alice)
    assert Twin.objects.filter(pk=one.pk).update(user=bob.pk) == 1
    assert_reads(alice, bob)
    assert Twin.objects.filter(user=alice.pk).update(read_at=timezone.now()) == 2
    assert_reads(alice, bob)
    assert_heals(alice, bob)


def test_a_column_that_was_of_another_type(house):
    """As in a data migration, before the one that changes the column."""
    with isolate_apps("tests.tasks"):

        class Old(models.Model):
            project = models.ForeignKey(Project, models.CASCADE, related_name="+")
            sold = models.IntegerField(default=0)

            class Meta:
                app_label = "tasks"
                db_table = "changed"

    with counted("changed", Q(sold=False), sold=models.BooleanField(default=False)) as (model, counter):
        new, old = model._meta.get_field("sold"), Old._meta.get_field("sold")
        if connection.vendor == "postgresql":
            with connection.schema_editor() as editor:
                editor.execute("ALTER TABLE changed ALTER sold TYPE integer USING sold::integer")
        Old.objects.bulk_create(Old(project=house) for _ in range(3))
        assert Old.objects.filter(pk__gt=1).update(sold=1) == 2
        assert Old.objects.filter(pk__gt=2).delete()[0] == 1
        if connection.vendor == "postgresql":
            with connection.schema_editor() as editor:
                editor.execute("ALTER TABLE changed ALTER sold TYPE boolean USING sold = 1")
        assert new.column == old.column
        assert_heals(house, counter=counter)


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
        if connection.vendor != "postgresql":  # one of the two rows was as it is now
            assert_heals(house, counter=counter)
        assert_exact(house, counter=counter, in_doubt=None)


def test_a_deadlock_that_the_site_ignores(alice):
    """MySQL rolls back everything, and the site goes on."""
    if connection.vendor != "mysql":
        pytest.skip("Elsewhere the transaction cannot be committed after that.")
    one, two, *_ = notify(alice)
    locked = threading.Event()
    update = f"UPDATE {Notification._meta.db_table} SET title = 'x' WHERE id = %s"

    def other() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(update, [two.pk])
            Project.objects.bulk_create(Project() for _ in range(50))  # the lighter transaction is the victim
            locked.set()
            cursor.execute(update, [one.pk])

    with OtherConnection() as session:
        with transaction.atomic():
            Notification.objects.create(user=alice, title="lost")
            with connection.cursor() as cursor:
                cursor.execute(update, [one.pk])
                waiting = session.start(other)
                locked.wait(PATIENCE)
                with pytest.raises(OperationalError, match="1213"):
                    cursor.execute(update, [two.pk])
            Notification.objects.create(user=alice, title="kept")
        waiting.result(PATIENCE)
    assert unread.count(alice) == 4
    assert_exact(alice, in_doubt=None)


def test_a_lock_that_the_site_gives_up(alice):
    """MySQL rolls back the statement, or everything: a setting of the server decides."""
    if connection.vendor != "mysql":
        pytest.skip("Elsewhere the transaction cannot be committed after that.")
    one, *_ = notify(alice)
    unread.count(alice)
    update = f"UPDATE {Notification._meta.db_table} SET title = 'x' WHERE id = %s"
    with OtherConnection() as session, connection.cursor() as cursor:
        session.run(transaction.set_autocommit, False)
        session.run(objects.filter(pk=one.pk).update, title="locked")
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        with transaction.atomic():
            Notification.objects.create(user=alice, title="more")
            with pytest.raises(OperationalError, match="1205"):
                cursor.execute(update, [one.pk])
        cursor.execute("SET SESSION innodb_lock_wait_timeout = DEFAULT")
        session.run(transaction.rollback)
    assert_exact(alice, in_doubt=None)


def test_a_record_that_changed_meanwhile(alice):
    """MariaDB rolls back everything, and the site goes on."""
    if connection.vendor != "mysql" or not connection.mysql_is_mariadb:
        pytest.skip("Other databases do not know this error.")
    one, *_ = notify(alice)
    with OtherConnection() as session, connection.cursor() as cursor:
        cursor.execute("SET SESSION innodb_snapshot_isolation = ON")
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with transaction.atomic():
            assert objects.count() == 3
            Notification.objects.create(user=alice, title="lost")
            session.run(objects.filter(pk=one.pk).update, title="changed")
            with pytest.raises(OperationalError, match="1020"):
                cursor.execute(f"UPDATE {Notification._meta.db_table} SET title = 'x' WHERE id = %s", [one.pk])
            Notification.objects.create(user=alice, title="kept")
        cursor.execute("SET SESSION innodb_snapshot_isolation = DEFAULT")
    assert_exact(alice, in_doubt=None)


def test_a_conflict_that_rolls_back(alice):
    if connection.vendor != "sqlite":
        pytest.skip("Only SQLite knows OR ROLLBACK.")
    notify(alice)
    table = Notification._meta.db_table
    with transaction.atomic():
        Notification.objects.create(user=alice, title="lost")
        with pytest.raises(IntegrityError), connection.cursor() as cursor:
            cursor.execute(f"INSERT OR ROLLBACK INTO {table} SELECT * FROM {table}")
        Notification.objects.create(user=alice, title="kept")
    assert unread.count(alice) == 4
    assert_exact(alice, in_doubt=None)


def test_a_rollback_in_sql(alice):
    notify(alice)
    with transaction.atomic(), connection.cursor() as cursor:
        Notification.objects.create(user=alice, title="lost")
        cursor.execute("ROLLBACK")
        if connection.vendor == "sqlite":
            cursor.execute("BEGIN")
        Notification.objects.create(user=alice, title="kept")
    assert unread.count(alice) == 4
    assert_exact(alice, in_doubt=None)


def test_a_column_whose_values_a_migration_changes(house):
    """No statement of the ORM says which rows now count, so the new release does not trust what the old one counted."""
    with counted("filled", Q(sold=False), sold=models.BooleanField(null=True)) as (model, counter):
        model.objects.bulk_create(model(project=house) for _ in range(3))
        assert_reads(house, counter=counter)
        before, fingerprint = model._meta.get_field("sold"), counter.fingerprint
        after = models.BooleanField(default=False)
        after.set_attributes_from_name("sold")
        after.model = model
        with connection.schema_editor() as editor:
            editor.alter_field(model, before, after)
        assert rows(house, counter) == 3
        for name in ("condition", "columns", "fingerprint"):  # as they are in the new release
            vars(counter).pop(name)
        before.null = False
        identity.forget_buffers()
        assert counter.fingerprint != fingerprint
        assert_reads(house, counter=counter)


def test_what_a_migration_of_a_column_can_change():
    def fingerprint(field: models.Field, **others: models.Field) -> str:
        with counted("changing", Q(value=6), value=field, **others) as (_, counter):
            return counter.fingerprint

    def product(times: int) -> models.Field:
        number = models.IntegerField()
        return models.GeneratedField(expression=Value(times) * 3, output_field=number, db_persist=True)

    def decimal(places: int) -> models.Field:
        return models.DecimalField(max_digits=9, decimal_places=places)

    others = [models.IntegerField(null=True), product(2), product(3), decimal(2), decimal(3)]
    same = [models.IntegerField(), models.BigIntegerField("a name", default=7, help_text="a text")]
    assert len({*map(fingerprint, others)}) == len(others)
    assert len({*map(fingerprint, same)}) == 1
    twice = models.GeneratedField(expression=F("number") * 2, output_field=models.IntegerField(), db_persist=True)
    assert fingerprint(twice, number=decimal(2)) != fingerprint(twice.clone(), number=decimal(3))


# ---------------------------------------------------------------------------------------------------------- the totals
def test_a_total_given_to_another_owner(alice, bob):
    notify(alice)
    assert totals.filter(pk=alice.pk).update(user=bob) == 1
    assert_exact(alice, bob, in_doubt=None)


@pytest.mark.parametrize("bulk", [True, False])
def test_a_total_of_an_owner_whom_the_database_finds(alice, bulk):
    notify(alice)
    unheard(totals.filter(pk=alice.pk)._raw_delete, "default")
    key = Value(alice.pk, output_field=unread.key_fields[0])
    total = UserNotificationsCount(user_id=key, unread_count=7, updated_at=timezone.now())
    if bulk:
        totals.bulk_create([total])
    else:
        total.save(force_insert=True)
    assert stored(alice) == 7
    assert_heals(alice)
