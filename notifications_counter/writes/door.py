"""The one door through which every write of the ORM to a counted table passes.

``save()``, ``create()``, ``bulk_create()``, ``update()``, ``bulk_update()``, ``delete()``, cascades, related managers,
fixtures and the admin all end in ``execute_sql()`` of three compilers. ``install()`` wraps each of them once. So any
model can be counted, without a base class, a manager or signal receivers.

Why not ``post_save`` and ``post_delete``? ``update()``, ``bulk_create()`` and fast deletions send neither. An instance
in memory doesn't know what its row was before, or is now: another process, an ``F()`` or a trigger may have changed it.
The signals come before the COMMIT, which may fail, and after the statement, too late to announce anything in autocommit
mode. And a receiver of ``post_delete`` makes Django load every row that it deletes. The app uses both only to notice
that something else has written a stored total (``totals.py``), whose owner is then in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any

from django.db import connections
from django.db.models import Model

from ..databases.routing import alias_for
from ..declaration import Declaration, counters_of_table
from ..internals import (
    DeleteQuery,
    InsertQuery,
    Query,
    SQLDeleteCompiler,
    SQLInsertCompiler,
    SQLUpdateCompiler,
    UpdateQuery,
)
from .ledger import Ledger
from .statements import Delete, Insert
from .totals import write_totals
from .transaction import Change
from .update import Update

STATEMENTS: dict[type, tuple[type[Query], type[Insert | Update | Delete]]] = {
    SQLInsertCompiler: (InsertQuery, Insert),
    SQLUpdateCompiler: (UpdateQuery, Update),
    SQLDeleteCompiler: (DeleteQuery, Delete),
}
DOORS = (
    (SQLInsertCompiler, "execute_sql"),
    (SQLUpdateCompiler, "execute_sql"),
    (SQLUpdateCompiler, "execute_returning_sql"),  # from Django 6.0 on
    (SQLDeleteCompiler, "execute_sql"),
)


def install() -> None:
    """Wrap each of these methods once."""
    for compiler, method in DOORS:
        if hasattr(compiler, method) and not _is_door(getattr(compiler, method)):
            setattr(compiler, method, _door(compiler, method))


def missing() -> list[str]:
    """Return the methods that other code has unwrapped."""
    return [
        f"{compiler.__name__}.{method}"
        for compiler, method in DOORS
        if hasattr(compiler, method) and not _is_door(getattr(compiler, method))
    ]


def _is_door(method: Any) -> bool:
    """Return whether a method is a door, or a wrapper around one."""
    return method is not None and (hasattr(method, "is_door") or _is_door(getattr(method, "__wrapped__", None)))


def _door(kind: Any, name: str) -> Callable[..., Any]:
    original: Any = vars(kind).get(name)
    if original is None:  # inherited: others may still patch the parent's method

        def original(compiler: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(super(kind, compiler), name)(*args, **kwargs)

    @wraps(getattr(kind, name))
    def execute(compiler: Any, *args: Any, **kwargs: Any) -> Any:
        tables = counters_of_table(compiler.query.get_meta().db_table)
        if tables is None:
            return original(compiler, *args, **kwargs)
        counters, connection = tables.sources, compiler.connection
        if kind is SQLUpdateCompiler and not tables.totals:
            names = {field.attname for field, *_ in compiler.query.values}
            counters = tuple([counter for counter in counters if names and counter.reads(names)])
            if not counters:
                return original(compiler, *args, **kwargs)
        if Ledger.on(connection).is_of_copy and connection is not connections[connection.alias]:
            with as_connection_of_its_alias(connection):
                return execute(compiler, *args, **kwargs)
        if name == "execute_returning_sql" and not (args[0] and connection.features.can_return_rows_from_update):
            return original(compiler, *args, **kwargs)  # it calls execute_sql()
        if tables.totals:
            return write_totals(tables.totals, compiler, lambda: original(compiler, *args, **kwargs))
        return _count(counters, kind, compiler, original, *args, **kwargs)

    execute.is_door = True  # type: ignore[attr-defined]
    return execute


@contextmanager
def as_connection_of_its_alias(connection: Any) -> Iterator[None]:
    """Let an alias stand for this copy of its connection, which has its own transaction and ledger."""
    before = connections[connection.alias]
    connections[connection.alias] = connection
    try:
        yield
    finally:
        connections[connection.alias] = before


@lru_cache(maxsize=100)
def without_columns(counters: tuple[Declaration, ...], model: type[Model]) -> list[Declaration]:
    """Return the counters with columns that this model of their table lacks."""
    return [counter for counter in counters if not counter.has_columns(model)]


def _count(
    counters: tuple[Declaration, ...],
    kind: type,
    compiler: Any,
    original: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Execute a statement on a table with these counters, and count what it changes."""
    query, connection = compiler.query, compiler.connection
    counters = tuple([c for c in counters if alias_for(c.source) == connection.alias])  # it belongs to one database
    if not counters:
        return original(compiler, *args, **kwargs)
    uncountable = without_columns(counters, query.model)
    if not uncountable:
        query_class, statement_class = STATEMENTS[kind]
        is_stock = type(query) is query_class and type(compiler) is connection.ops.compiler(query.compiler)
        return statement_class(counters, compiler, original, is_stock).run(*args, **kwargs)
    countable = tuple([counter for counter in counters if counter not in uncountable])

    def execute_and_doubt() -> tuple[Any, Change]:
        result = _count(countable, kind, compiler, original, *args, **kwargs)
        return result, Change({}, everyone_of=uncountable)

    return Ledger.on(connection).write(None, execute_and_doubt)
