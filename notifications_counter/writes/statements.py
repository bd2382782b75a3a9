"""A statement of the ORM: its execution, and how many rows it has changed."""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from django.db.models import Field

from ..declaration import Declaration
from ..internals import ROW_COUNT, Execute, SQLCompiler, SQLDeleteCompiler, SQLInsertCompiler, WrapperContext
from .rows import Columns, Row, tally

Counters = tuple[Declaration, ...]


class Statement:
    """A statement on a table with these counters.

    ``run``       executes it
    ``fields``    those of each row that it returns; None if it returns the number of rows
    ``is_stock``  whether query and compiler have Django's own classes. Others may do anything
    """

    def __init__(
        self, counters: Counters, compiler: SQLCompiler, run: Execute, fields: Sequence[Field] | None, is_stock: bool
    ):
        self.counters = counters
        self.compiler: Any = compiler
        self.run = run
        self.fields = fields
        self.is_stock = is_stock
        self.query: Any = compiler.query
        self.connection: Any = compiler.connection
        self.model = self.query.get_meta().model  # perhaps a migration's, of the counted table
        self.is_insert = isinstance(compiler, SQLInsertCompiler)
        self.is_delete = isinstance(compiler, SQLDeleteCompiler)

    def execute(self, columns: Columns | None = None) -> tuple[Any, Any, Tally[Row]]:
        """Execute it. Return its result, the number of rows, infinite if unknown, and their values in these columns."""
        if self.fields and self.connection.features.can_return_columns_from_insert:
            result = self.run(self.fields)
            number = sum(row is not None for row in result or ())  # None: Django fetched a row that was skipped
            return result, number, Tally()
        cursor, wrappers = CursorReader(self.compiler, columns), self.connection.execute_wrappers
        with ExitStack() as stack:
            self.compiler.as_sql = cursor.as_sql
            stack.callback(delattr, self.compiler, "as_sql")
            # In one line, so that little can strike in between: a wrapper that isn't there can't be removed.
            wrappers.insert(0, cursor), stack.callback(wrappers.remove, cursor)
            result = self.run(self.fields if self.is_insert else ROW_COUNT)
        if isinstance(result, int) and result != cursor.number:
            return result, math.inf, cursor.rows
        return result, cursor.number, cursor.rows


class CursorReader:
    """Reads the cursors of a statement, if its compiler has made their SQL.

    Wrappers of other packages may execute other statements, or put one before it and step to the last result. So it is
    the outermost wrapper, which reads a cursor where Django does.

    ``number``  of rows that the statement has changed, infinite if unknown
    ``rows``    their values in the columns
    """

    def __init__(self, compiler: SQLCompiler, columns: Columns | None):
        self.compiler: Any = compiler
        self.columns = columns
        self.number: float = 0
        self.rows = Tally[Row]()
        self._made: list[str] = []  # by the compiler
        self._as_sql = self.compiler.as_sql

    def as_sql(self) -> Any:
        """Make the SQL, of an INSERT several, in place of the compiler."""
        made: Any = self._as_sql()
        if self.columns:
            sql, params = made
            made = f"{sql} RETURNING {self.columns.sql}", (*params, *self.columns.params)
        self._made += [sql for sql, _ in (made if isinstance(made, list) else [made])]
        return made

    def __call__(self, execute: Execute, sql: str, params: object, many: bool, context: WrapperContext) -> object:
        """Execute any statement, and read the cursor if it is ours."""
        result = execute(sql, params, many, context)
        cursor = context["cursor"]
        if sql in self._made:
            if self.columns:
                self.rows.update(tally(cursor, self.columns, self.compiler))
            is_other = cursor.rowcount < 0 or (cursor.description and not self.columns)
            self.number += math.inf if is_other else cursor.rowcount
        elif "ANALYZE" in str(sql).upper():  # a wrapper may have the database execute ours once more
            self.number = math.inf
        return result
