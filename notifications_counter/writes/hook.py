"""The hook through which every write of the ORM to a counted table passes.

``save()``, ``create()``, ``bulk_create()``, ``update()``, ``bulk_update()``, ``delete()``, cascades, related managers,
fixtures and the admin all end in ``execute_sql()`` of three compilers. ``install()`` wraps each of them once. So any
model can be counted, without a base class, a manager or signal receivers.

Signals would not do: ``update()``, ``bulk_create()`` and fast deletions send none, an instance in memory doesn't know
what its row is, and a receiver of ``post_delete`` makes Django load every row that it deletes.
"""

from __future__ import annotations

from functools import lru_cache, wraps
from typing import Any

from django.db.models import Model

from ..databases.routing import alias_for
from ..declaration import counters_of_table
from ..internals import (
    DeleteQuery,
    Execute,
    InsertQuery,
    SQLCompiler,
    SQLDeleteCompiler,
    SQLInsertCompiler,
    SQLUpdateCompiler,
    UpdateQuery,
)
from .doubts import ALL_IN_DOUBT
from .ledger import Ledger
from .statements import Counters, Fields, Insert, UpdateOrDelete

QUERIES: dict[type[SQLCompiler], type] = {
    SQLInsertCompiler: InsertQuery,
    SQLUpdateCompiler: UpdateQuery,
    SQLDeleteCompiler: DeleteQuery,
}
METHODS: tuple[tuple[type[SQLCompiler], str], ...] = (
    *((kind, "execute_sql") for kind in QUERIES),
    (SQLUpdateCompiler, "execute_returning_sql"),  # from Django 6.0 on
)


def install() -> None:
    """Wrap each of these methods once."""
    for compiler, method in METHODS:
        if hasattr(compiler, method) and not _is_hooked(getattr(compiler, method)):
            setattr(compiler, method, _hook(compiler, method))


def missing() -> list[str]:
    """Return the methods that other code has unwrapped."""
    there = [(kind, method) for kind, method in METHODS if hasattr(kind, method)]
    return [f"{kind.__name__}.{method}" for kind, method in there if not _is_hooked(getattr(kind, method))]


def _is_hooked(method: object) -> bool:
    """Return whether a method is a hook, or a wrapper around one."""
    return method is not None and (hasattr(method, "is_hook") or _is_hooked(getattr(method, "__wrapped__", None)))


def _hook(kind: type[SQLCompiler], name: str) -> Execute:
    original: Execute | None = vars(kind).get(name)
    if original is None:  # inherited: others may still patch the parent's method

        def original(compiler: SQLCompiler, *args: object, **kwargs: object) -> object:
            return getattr(super(kind, compiler), name)(*args, **kwargs)

    @wraps(getattr(kind, name))
    def execute(compiler: SQLCompiler, *args: Any, **kwargs: Any) -> object:
        query, connection, meta = compiler.query, compiler.connection, compiler.query.get_meta()
        counters = counters_of_table(meta.db_table)
        if counters is None:
            return original(compiler, *args, **kwargs)
        asked = (*args, *kwargs.values())  # fields to return, or a type of result
        fields = next((each for each in asked if isinstance(each, list | tuple)), None)
        if name == "execute_returning_sql" and not (fields and connection.features.can_return_rows_from_update):
            return original(compiler, *args, **kwargs)  # it calls execute_sql()
        if hasattr(query, "values"):  # an UPDATE
            names = {field.attname for field, *_ in query.values}
            counters = tuple([counter for counter in counters if names and counter.reads(names)])
        here = [counter for counter in counters if alias_for(counter.source) == connection.alias]
        counters = tuple([counter for counter in here if not counter.is_silent(connection)])
        if not counters:
            return original(compiler, *args, **kwargs)
        if lack_columns(counters, meta.model):
            everyone = dict.fromkeys(counters, ALL_IN_DOUBT)
            return Ledger.on(connection).write(None, lambda: (original(compiler, *args, **kwargs), everyone))
        return _count(counters, kind, compiler, original, fields)

    vars(execute)["is_hook"] = True
    return execute


def _count(
    counters: Counters, kind: type[SQLCompiler], compiler: Any, original: Execute, fields: Fields | None
) -> object:
    """Execute a statement on a table with these counters, and count what it changes. ``fields``: those to return."""
    query, connection = compiler.query, compiler.connection
    is_stock = type(query) is QUERIES[kind] and type(compiler) is connection.ops.compiler(kind.__name__)
    of_kind = Insert if kind is SQLInsertCompiler else UpdateOrDelete
    statement = of_kind(counters, compiler, original, is_stock, fields)
    return Ledger.on(connection).write(statement.owners, statement.execute)


@lru_cache(maxsize=100)
def lack_columns(counters: Counters, model: type[Model]) -> bool:
    """Return whether this model of the table lacks a column of any counter, as one of an older migration may."""
    return not all(counter.has_columns(model) for counter in counters)
