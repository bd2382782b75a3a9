"""SQL of PostgreSQL that updates rows, and returns what they counted for before and after."""

from __future__ import annotations

from typing import Any

from ..declaration import Declaration
from ..internals import WhereNode
from .columns import columns_of
from .queries import is_repeatable, max_rows, select_compiler, where_of

SQL = tuple[str, tuple[Any, ...]]


class UpdateReturning:
    """An UPDATE that returns owners and values, which are the columns ``old`` and ``new``, instead of its result.

    If it ``is_one`` row at most, it returns this row. Otherwise it returns sums for groups of the same owners, and for
    each group the numbers of rows before and after.
    """

    def __init__(self, compiler: Any, counters: tuple[Declaration, ...]):
        self.compiler = compiler
        self.query = compiler.query
        self.is_one = max_rows(self.query) <= 1
        self.returns_old = compiler.connection.pg_version >= 18_00_00  # RETURNING has the old row, too
        aliases = ("row_before", "row_after") if self.returns_old else ("", "")
        using, model = compiler.connection.alias, self.query.model
        self.old = columns_of(counters, using, model, "w", aliases[0])
        self.new = columns_of(counters, using, model, "b", aliases[1])

    def as_sql(self) -> SQL:
        """Return the SQL and its parameters."""
        if not self.returns_old:
            return self._locking()
        old, new = self.old, self.new
        update, params = type(self.compiler).as_sql(self.compiler)
        update += f" RETURNING WITH (OLD AS row_before, NEW AS row_after) {old.aliased}, {new.aliased}"
        params = (*params, *old.params, *new.params)
        if self.is_one:
            return update, params
        return (
            f"WITH changed AS ({update}) SELECT {old.sums}, {new.sums}, COUNT(*), COUNT(*) FROM changed"
            f" GROUP BY {old.owners}, {new.owners}",
            params,
        )

    def _locking(self) -> SQL:
        """Before version 18: ``rows_before`` locks and counts the rows, and ``rows_after`` updates and counts them.

        The statement changes the same rows in the same order as without counters. If it could select others a moment
        later, it changes those that were locked."""
        old, new = self.old, self.new
        update, params = self._without_where()
        where, where_params = where_of(select_compiler(self.query, self.compiler.connection))
        select, select_params = old.select(where, where_params)
        keys = {column: f"k{i}" for i, column in enumerate(old.keys)}
        key, was = ", ".join(keys.values()), ", ".join(old.names)
        if self.is_one:  # SQL that begins as without counters
            same = " AND ".join([f"{column} = rows_before.{name}" for column, name in keys.items()])
            return (
                f"{update} FROM ({select} FOR NO KEY UPDATE) AS rows_before ({key}, {was}) WHERE {same}"
                f" RETURNING {', '.join([f'rows_before.{name}' for name in old.names])}, {new.aliased}",
                (*params, *select_params, *new.params),
            )
        if is_repeatable(self.query):
            condition, params = f"({where}) AND (SELECT COUNT(*) FROM rows_before) >= 0", (*params, *where_params)
        else:
            condition = f"({', '.join(keys)}) IN (SELECT {key} FROM rows_before)"
        named = ", ".join([f"{column} AS {name}" for column, name in keys.items()])
        return (
            f"WITH rows_before ({key}, {was}) AS ({select} FOR NO KEY UPDATE),"
            f" rows_after AS ({update} WHERE {condition} RETURNING {named}, {new.aliased})"
            f" SELECT {old.sums}, {new.sums}, COUNT(rows_before.k0), COUNT(rows_after.k0)"
            f" FROM rows_before FULL JOIN rows_after USING ({key})"
            f" GROUP BY {old.owners}, {new.owners}, rows_before.k0 IS NULL, rows_after.k0 IS NULL",
            (*select_params, *params, *new.params),
        )

    def _without_where(self) -> SQL:
        """Return the UPDATE without its WHERE clause."""
        compiler, query = self.compiler, self.query
        where, query.where = query.where, WhereNode()
        compiler.pre_sql_setup = lambda: None  # it would move joins from the clause into a subquery
        try:
            return type(compiler).as_sql(compiler)
        finally:
            query.where = where
            del compiler.pre_sql_setup
