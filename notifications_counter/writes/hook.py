"""The hook through which every write of the ORM to a counted table passes.

``save()``, ``create()``, ``bulk_create()``, ``update()``, ``bulk_update()``, ``delete()``, cascades, related managers,
fixtures and the admin all end in ``execute_sql()`` or ``execute_returning_sql()`` of three compilers. ``install()``
wraps these methods once, and ``callproc()``, whose procedures may commit. So any model can be counted, without a base
class, a manager or signal receivers.

Signals would not do: ``update()``, ``bulk_create()`` and fast deletions send none, an instance in memory doesn't know
what its row is, and a receiver of ``post_delete`` makes Django load every row that it deletes.
"""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

from django.db.backends.signals import connection_created

from ..declaration import counters_of_table
from ..internals import (
    METHODS,
    CursorWrapper,
    DeleteQuery,
    Execute,
    InsertQuery,
    SQLCompiler,
    SQLDeleteCompiler,
    SQLInsertCompiler,
    SQLUpdateCompiler,
    UpdateQuery,
)
from .ledger import Ledger, watch
from .plans import plan_of
from .statements import Counters, Statement

QUERIES: dict[type[SQLCompiler], type] = {
    SQLInsertCompiler: InsertQuery,
    SQLUpdateCompiler: UpdateQuery,
    SQLDeleteCompiler: DeleteQuery,
}
HOOKED = [(kind, name) for kind in (*QUERIES, CursorWrapper) for name in METHODS[kind] if name != "as_sql"]


def install() -> None:
    """Wrap each of these methods once, and watch connections."""
    for kind, method in HOOKED:
        if hasattr(kind, method) and not _is_hooked(getattr(kind, method)):
            hook: Any = _hook_procedures() if kind is CursorWrapper else _hook(kind, method)
            hook.is_hook = True
            setattr(kind, method, hook)
    connection_created.connect(watch)


def missing() -> list[str]:
    """Return the methods that other code has unwrapped."""
    there = [(kind, method) for kind, method in HOOKED if hasattr(kind, method)]
    return [f"{kind.__name__}.{method}" for kind, method in there if not _is_hooked(getattr(kind, method))]


def _is_hooked(method: object) -> bool:
    """Return whether a method is a hook, or a wrapper around one."""
    return method is not None and (hasattr(method, "is_hook") or _is_hooked(getattr(method, "__wrapped__", None)))


def _hook(kind: type[SQLCompiler], name: str) -> Execute:
    original: Execute | None = vars(kind).get(name)

    @wraps(getattr(kind, name))
    def execute(compiler: Any, *args: Any, **kwargs: Any) -> object:
        # If the method is inherited, others may still patch that of the parent.
        run = partial(original, compiler) if original else getattr(super(kind, compiler), name)
        counters = _counters_of(compiler)
        if not counters:
            return run(*args, **kwargs)
        query, connection = compiler.query, compiler.connection
        fields = None  # those to return
        if kind is SQLInsertCompiler or name == "execute_returning_sql":
            fields = args[0] if args else kwargs.get("returning_fields")
        if name == "execute_returning_sql" and not (fields and connection.features.can_return_rows_from_update):
            return run(*args, **kwargs)  # it calls execute_sql()
        is_stock = type(query) is QUERIES[kind] and type(compiler) is connection.ops.compiler(kind.__name__)
        return Ledger.on(connection).write(plan_of(Statement(counters, compiler, run, fields, is_stock)))

    return execute


def _hook_procedures() -> Execute:
    """Tell the ledger of procedures, which Django executes without any wrapper: they may commit or roll back."""
    original = CursorWrapper.callproc

    @wraps(original)
    def callproc(cursor: Any, *args: Any, **kwargs: Any) -> object:
        run = partial(original, cursor, *args, **kwargs)
        ledger = getattr(cursor.db, "counter_ledger", None)
        return ledger.guard("CALL", run) if ledger else run()

    return callproc


def _counters_of(compiler: Any) -> Counters:
    """Return the counters whose counts a statement may change, except those that this process takes for off."""
    query, connection = compiler.query, compiler.connection
    counters = counters_of_table(query.get_meta().db_table)
    if not counters:  # only faster
        return ()
    if hasattr(query, "values"):  # an UPDATE
        columns = {field.column for field, *_ in query.values}
        counters = tuple([counter for counter in counters if columns and counter.reads(columns)])
    mine = [counter for counter in counters if counter.db == connection.alias]
    return tuple([counter for counter in mine if not counter.buffer_in(connection).is_silent])
