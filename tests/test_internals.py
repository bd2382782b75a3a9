"""What we take for granted about private and undocumented names of other packages, against the installed versions."""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import django
import pytest
from django.db import connection, connections, transaction

from notifications_counter import internals
from notifications_counter.internals import DeleteQuery, InsertQuery, Query, UpdateQuery, WhereNode
from notifications_counter.models import Notification
from notifications_counter.signals import counts_changed
from tests.source import trees
from tests.support import OtherConnection

pytestmark = pytest.mark.once


# ---------------------------------------------------------------- where such names are used
DOCUMENTED = {"_asdict", "_replace", "_base_manager", "_default_manager", "_meta", "_state"}
"""Names of Python and Django that look private, and are documented."""


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
    others = {path: tree for path, tree in trees().items() if not path.startswith("internals/")}
    assert not [path for path in trees().keys() - others.keys() if "redis" in names_in(trees()[path])]
    ours = DOCUMENTED.union(*map(defined_in, others.values()))
    used = {(path, name) for path, tree in others.items() for name in names_in(tree)}
    assert not {(path, name) for path, name in used if re.match("_[^_]", name) and name not in ours}


# ------------------------------------------------------------------------------------ Django
NEEDS = {
    "can_return_rows_from_update": django.VERSION >= (6, 0),
    "execute_returning_sql": django.VERSION >= (6, 0),
    "is_in_memory_db": connection.vendor == "sqlite",
    "mysql_is_mariadb": connection.vendor == "mysql",
    "pg_version": connection.vendor == "postgresql",
}


@pytest.mark.django_db
@pytest.mark.parametrize("kind", internals.ATTRIBUTES)
def test_the_attributes_are_there(kind):
    for name in internals.ATTRIBUTES[kind]:
        assert any(hasattr(thing, name) for thing in django_objects()[kind]) or not NEEDS.get(name, True), name


@pytest.mark.django_db(transaction=True)
def test_a_commit_comes_after_the_atomic_block_and_before_the_hooks():
    said: list[Any] = []

    def run() -> None:
        connection = connections["default"]  # of this thread

        def commit() -> None:
            said.append(("commit", connection.in_atomic_block, [entry[0] for entry in connection.run_on_commit]))

        internals.watch_transactions(connection, commit, lambda *done: said.append(done), lambda: False)
        with suppress(ValueError), transaction.atomic():
            transaction.on_commit(lambda: said.append("of another transaction"))
            raise ValueError
        with transaction.atomic():
            assert connection.commit_on_exit
            transaction.on_commit(lambda: said.append("hook"))
            with suppress(ValueError), transaction.atomic():
                transaction.on_commit(lambda: said.append("rolled back"))
                connection.run_on_commit.append((set(), lambda: said.append("without a savepoint"), True))
                raise ValueError

    with OtherConnection() as other:
        other.run(run)
    assert said == [(True, False), ("commit", False, [set(), set()]), "hook", "without a savepoint"]
