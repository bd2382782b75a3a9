"""What we take for granted about private and undocumented names of other packages, against the installed versions."""

import ast
import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import django
import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.lookups import Exact
from django.dispatch import Signal

from notifications_counter import internals
from notifications_counter.internals import (
    ROW_COUNT,
    Col,
    DeferredAttribute,
    DeleteQuery,
    InsertQuery,
    OnConflict,
    Query,
    UpdateQuery,
    WhereNode,
)
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.signals import counts_changed
from notifications_counter.writes.door import DOORS
from tests.source import trees
from tests.support import OtherConnection

pytestmark = pytest.mark.once


# ---------------------------------------------------------------- where such names are used
DOCUMENTED = {"_asdict", "_replace", "_base_manager", "_default_manager", "_meta", "_state"}
"""Names of Python and Django that look private, and are documented."""

DOCUMENTED_OF_DJANGO = {
    "alias", "close", "cursor", "get_autocommit", "ops", "quote_name", "vendor", "compile", "connect", "default",
    "execute_wrapper", "get_source_expressions", "on_commit", "output_field", "relabeled_clone", "set_rollback",
}  # fmt: skip
"""Attributes of connections and expressions that are documented, or stand in the documentation's samples."""

DOCUMENTED_OF_TENANTS = {"set_schema", "set_tenant", "tenant"}
"""Attributes that django-tenants gives connections."""

DOCUMENTED_MODULES = {
    "django", "django.apps", "django.conf", "django.contrib", "django.contrib.admin.views.main",
    "django.contrib.auth", "django.contrib.auth.decorators", "django.contrib.auth.mixins",
    "django.contrib.contenttypes.models", "django.core", "django.core.cache", "django.core.checks",
    "django.core.exceptions", "django.core.handlers.asgi", "django.core.management.base", "django.core.signals",
    "django.core.paginator", "django.core.signing", "django.db", "django.db.backends.signals", "django.db.models",
    "django.db.models.expressions", "django.db.models.functions", "django.db.models.lookups",
    "django.db.models.signals", "django.dispatch", "django.http", "django.middleware.csrf", "django.shortcuts",
    "django.tasks", "django.template", "django.template.defaultfilters", "django.template.loader",
    "django.template.response", "django.test.utils", "django.urls", "django.utils", "django.utils.cache",
    "django.utils.dateparse", "django.utils.decorators", "django.utils.html", "django.utils.module_loading",
    "django.utils.timezone", "django.utils.translation", "django.views.decorators.cache",
    "django.views.decorators.vary", "django.views.decorators.csrf", "django.views.decorators.http",
    "django.views.generic",
}  # fmt: skip
"""Modules of Django that its documentation imports from. What it does not have of them is in ``internals.django``."""

HIDDEN = {"compiler", "connection", "features", "ops", "query", "where"}
"""Kinds of objects of which Django documents next to nothing."""


def others() -> dict[str, ast.Module]:
    """The modules that may not use a private name."""
    return {path: tree for path, tree in trees().items() if not path.startswith("internals/")}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def names_in(tree: ast.AST) -> Iterator[str]:
    """Names of attributes of other objects, and imported names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (part for alias in node.names for part in [*(node.module or "").split("."), alias.name])


def defined_in(tree: ast.AST) -> set[str]:
    """Names of functions, and attributes that an object sets on itself."""
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)} | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def django_objects() -> dict[str, list[Any]]:
    """Objects that have the attributes in ``internals.ATTRIBUTES``."""
    connection = connections["default"]
    queries = [kind(Notification) for kind in (Query, InsertQuery, UpdateQuery, DeleteQuery)]
    queries[1].insert_values([], [])
    return {
        "connection": [connection],
        "connections": [connections],
        "features": [connection.features],
        "ops": [connection.ops],
        "query": queries,
        "where": [WhereNode()],
        "compiler": [query.get_compiler("default") for query in queries],
        "field": [*Notification._meta.fields, Notification],
        "signal": [counts_changed],
    }


def test_private_names_are_used_in_one_module():
    """And none of redis-py and django-redis."""
    assert not [path for path, tree in trees().items() if path.startswith("internals/") and "redis" in names_in(tree)]
    ours = set().union(*map(defined_in, others().values()))
    used = {(path, name) for path, tree in others().items() for name in names_in(tree)}
    assert not {(path, name) for path, name in used if is_private(name) and name not in ours | DOCUMENTED}


def test_what_django_does_not_document_is_imported_from_one_module():
    imports = {
        (path, node.module, alias.name)
        for path, tree in others().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level and node.module.split(".")[0] == "django"
        for alias in node.names
    }
    assert not {
        found for found in imports if found[1] not in DOCUMENTED_MODULES or found[2] in internals.django.__all__
    }


def test_attributes_that_django_does_not_document_are_listed():
    listed = set().union(*internals.ATTRIBUTES.values())
    known = listed | DOCUMENTED_OF_DJANGO | DOCUMENTED_OF_TENANTS
    ours = set().union(*map(defined_in, others().values())) | set(dir(QuerySet)) | set(dir(str)) | DOCUMENTED_OF_DJANGO
    of_django = {name for kind in HIDDEN for thing in django_objects()[kind] for name in dir(thing)} - ours
    used = {
        (path, node.attr, ast.unparse(node.value).split(".")[-1])
        for path, tree in others().items()
        if not path.startswith(("buffer", "caches", "contrib/redis"))  # they know Redis, and not the database
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and not node.attr.startswith("_")
    }
    undocumented = {(path, of, name) for path, name, of in used if name in of_django or of in HIDDEN}
    assert not {found for found in undocumented if found[2] not in known}
    assert listed <= {name for _, name, _ in used} | {name for _, name in DOORS}, "not used any more"


def test_internals_import_nothing_of_ours():
    for tree in (tree for path, tree in trees().items() if path.startswith("internals/")):
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level > 1]
        assert "notifications_counter" not in names_in(tree)


# ------------------------------------------------------------------------------------ Django
NEEDS = {
    "can_return_rows_from_update": django.VERSION >= (6, 0),
    "execute_returning_sql": django.VERSION >= (6, 0),
    "is_in_memory_db": connections["default"].vendor == "sqlite",
    "isolation_level": False,  # MySQL's, once it is connected
    "mysql_is_mariadb": connections["default"].vendor == "mysql",
    "pg_version": connections["default"].vendor == "postgresql",
}


@pytest.mark.django_db
@pytest.mark.parametrize("kind", internals.ATTRIBUTES)
def test_the_attributes_are_there(kind):
    for name in internals.ATTRIBUTES[kind]:
        assert any(hasattr(thing, name) for thing in django_objects()[kind]) or not NEEDS.get(name, True), name


@pytest.mark.django_db(transaction=True)
def test_a_commit_comes_after_the_atomic_block_and_before_the_hooks():
    seen, called = [], []

    def hook(name: str) -> Any:
        return lambda: called.append(name)

    def run() -> None:
        connection = connections["default"]
        internals.watch_transactions(
            connection,
            lambda: seen.append((connection.in_atomic_block, [*connection.run_on_commit])),
            lambda is_done: called.append(f"rollback {is_done}"),
            lambda: False,
        )
        with suppress(ValueError), transaction.atomic():
            transaction.on_commit(hook("of another transaction"))
            raise ValueError
        with transaction.atomic():
            assert connection.in_atomic_block
            assert connection.commit_on_exit
            transaction.on_commit(hook("first"))
            with suppress(ValueError), transaction.atomic():
                transaction.on_commit(hook("rolled back"))
                connection.run_on_commit.append((set(), hook("without a savepoint"), True))
                raise ValueError
        assert not connection.run_on_commit

    with OtherConnection() as other:
        other.run(run)
    [(in_atomic_block, entries)] = seen
    assert not in_atomic_block
    assert [(savepoints, robust) for savepoints, _, robust in entries] == [(set(), False), (set(), True)]
    assert called == ["rollback True", "first", "without a savepoint"]


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_is_neither_committed_nor_rolled_back_is_rolled_back(monkeypatch):
    """Django would switch autocommit on, which is a COMMIT on MySQL and SQLite, and which PostgreSQL refuses."""
    ends: list[str] = ["COMMIT"]

    def interrupt() -> None:
        raise KeyboardInterrupt

    def run() -> None:
        connection = connections["default"]
        connection.ensure_connection()
        internals.watch_transactions(connection, ends.clear, lambda _: ends.append("ROLLBACK"), lambda: not ends)
        monkeypatch.setattr(connection, "commit", interrupt)
        with suppress(KeyboardInterrupt), transaction.atomic():
            ends.clear()
            RecountRequest.objects.create(counter="x", owner="1")
        assert connection.get_autocommit()

    with OtherConnection() as other:
        other.run(run)
    assert ends == ["ROLLBACK"]
    assert not RecountRequest.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_first_wrapper_of_statements_is_the_outermost_and_stays():
    calls: list[str] = []

    def wrapper(name: str) -> Any:
        def wrap(execute: Any, *args: Any) -> Any:
            calls.append(name)
            return execute(*args)

        return wrap

    def run() -> None:
        connection = connections["default"]
        connection.ensure_connection()  # MariaDB asks the server some questions then
        connection.execute_wrappers.insert(0, wrapper("ours"))
        with connection.execute_wrapper(wrapper("theirs")), connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        with connection.cursor() as cursor:
            cursor.execute("SELECT 2")

    with OtherConnection() as other:
        other.run(run)
    assert calls == ["ours", "theirs", "ours"]


@pytest.mark.django_db
def test_what_a_delete_returns():
    compiler = DeleteQuery(RecountRequest).get_compiler("default")
    assert compiler.execute_sql(ROW_COUNT) == 0


def test_a_delete_knows_whether_it_needs_a_subquery():
    def single(**condition: Any) -> bool:
        query = Notification.objects.filter(**condition).query.chain(DeleteQuery)
        return query.get_compiler("default").single_alias

    assert single(title="x")
    assert not single(user__username="x")


def test_a_query_counts_the_uses_of_its_tables():
    def uses(**condition: Any) -> list[int]:
        return sorted(Notification.objects.filter(**condition).query.alias_refcount.values())

    assert [bool(n) for n in uses(title="x")] == [True]
    assert [bool(n) for n in uses(user__pk=1)] == [False, True]  # the join was dropped
    assert [bool(n) for n in uses(user__username="x")] == [True, True]


def test_a_condition_is_a_tree_of_lookups_on_columns():
    where = Notification.objects.filter(title="x").query.where
    [lookup] = where.children
    assert (where.connector, where.negated, type(lookup), type(lookup.lhs)) == (internals.AND, False, Exact, Col)
    assert (lookup.lhs.target.attname, lookup.rhs) == ("title", "x")


def test_the_values_of_an_update_are_triples():
    query = Notification.objects.filter(title="x").query.chain(UpdateQuery)
    query.add_update_values({"title": "y"})
    assert [(field.attname, value) for field, _, value in query.values] == [("title", "y")]
    assert not query.related_updates


def test_what_an_insert_writes():
    query = InsertQuery(Notification, on_conflict=OnConflict.UPDATE, update_fields=[Notification._meta.pk])
    fields, rows = [Notification._meta.get_field("title")], [Notification(title="x")]
    query.insert_values(fields, rows, raw=True)
    assert (query.fields, query.objs, query.raw) == (fields, rows, True)
    assert (query.on_conflict, query.update_fields) == (OnConflict.UPDATE, [Notification._meta.pk])


def test_sql_of_ours_on_the_instance_of_a_compiler_is_what_it_executes():
    compiler = DeleteQuery(Notification).get_compiler("default")
    sql, params = compiler.as_sql()
    compiler.as_sql = lambda: (f"{sql} WHERE 1 = 0 RETURNING 1", params)
    assert DeleteQuery(Notification).get_compiler("default").as_sql() == (sql, params)
    [[insert, _]] = _insert().as_sql()
    assert insert.startswith("INSERT")


def _insert() -> Any:
    query = InsertQuery(Notification)
    query.insert_values([Notification._meta.get_field("title")], [Notification(title="x")])
    return query.get_compiler("default")


def test_converters_take_lists_of_what_the_driver_returns():
    query = Query(Notification)
    alias = query.get_initial_alias()
    column = F("data").resolve_expression(query)
    compiler = query.get_compiler("default")
    quote_name = connections["default"].ops.quote_name
    assert compiler.compile(column)[0].count(quote_name(alias)) == 1
    renamed = column.relabeled_clone({alias: "old"})
    assert quote_name("old") in compiler.compile(renamed)[0]
    rows = compiler.apply_converters([['{"n": 1}']], compiler.get_converters([column]))
    assert list(rows) == [[{"n": 1}]]


def test_an_ordinary_field_is_read_from_the_instance():
    assert type(vars(Notification)["title"]) is DeferredAttribute
    one = Notification()
    vars(one)["title"] = "x"
    assert one.title == "x"


def test_the_thread_of_a_request_ends():
    async def request() -> threading.Thread:
        async with ThreadSensitiveContext():
            thread = await sync_to_async(threading.current_thread)()
            internals.end_request_thread()
            await asyncio.to_thread(thread.join, 30)
            return thread

    assert not asyncio.run(request()).is_alive()


def test_a_signal_knows_its_receivers():
    signal = Signal()
    assert not signal.receivers

    def receiver(**_: Any) -> None:
        pass

    signal.connect(receiver)
    assert signal.receivers


def test_a_condition_is_written_in_the_same_way_in_every_process():
    assert internals.MigrationWriter.serialize(Q(kind__in={"b", "a"}))[0] == "models.Q(('kind__in', {'a', 'b'}))"
    with pytest.raises(ValueError, match="Cannot serialize"):
        internals.MigrationWriter.serialize(Q(kind=object()))


def test_urls_of_other_sites_are_refused():
    assert internals.url_has_allowed_host_and_scheme("/here/", None)
    assert not internals.url_has_allowed_host_and_scheme("//elsewhere/", None)
