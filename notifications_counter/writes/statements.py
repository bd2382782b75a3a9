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
        """Execute it. Return its result, the number of rows, infinite if unknown, and their values in these columns.

        Wrappers of other packages may execute other statements, or put one before it and step to the last result. So
        the cursor is read outside of them, where Django reads it, and only if the compiler has made its SQL.
        """
        if self.fields and self.connection.features.can_return_columns_from_insert:
            result = self.run(self.fields)
            # None: Django fetched a row that was skipped.
            return result, sum(row is not None for row in result or ()), Tally()
        compiler, wrappers = self.compiler, self.connection.execute_wrappers
        as_sql = compiler.as_sql
        made: list[str] = []
        numbers: list[float] = []
        rows = Tally[Row]()

        def make_sql() -> Any:
            sql: Any = as_sql()
            if columns:
                sql = f"{sql[0]} RETURNING {columns.sql}", (*sql[1], *columns.params)
            made.extend(text for text, _ in (sql if self.is_insert else [sql]))
            return sql

        def read(execute: Execute, sql: str, params: object, many: bool, context: WrapperContext) -> object:
            result, cursor = execute(sql, params, many, context), context["cursor"]
            if sql in made:
                if columns:
                    rows.update(tally(cursor, columns, compiler))
                is_other = cursor.rowcount < 0 or (cursor.description and not columns)
                numbers.append(math.inf if is_other else cursor.rowcount)
            elif "ANALYZE" in str(sql).upper():  # a wrapper may have the database execute ours once more
                numbers.append(math.inf)
            return result

        with ExitStack() as stack:
            stack.callback(vars(compiler).pop, "as_sql", None)
            compiler.as_sql = make_sql
            # In one line, so that little can strike in between: a wrapper that isn't there can't be removed.
            wrappers.insert(0, read), stack.callback(wrappers.remove, read)
            result = self.run(self.fields if self.is_insert else ROW_COUNT)
        number = sum(numbers)
        if isinstance(result, int) and result != number:
            number = math.inf
        return result, number, rows
