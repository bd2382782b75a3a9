"""The columns of owners and values, for SELECT and RETURNING."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, compress
from typing import Any

from django.db import connections
from django.db.models import F, Model

from ..declaration import Declaration
from ..internals import Col, Query

Row = Sequence[Any]


class Columns:
    """For each counter, the columns of the owner and of the value that a row adds to the count, compiled once.

    ``keys``     the columns of the primary key
    ``sql``      the columns of the counters, with ``params``
    ``names``    their names in a result
    ``aliased``  the columns with these names
    ``owners``   the names of the owners' columns
    ``sums``     all names, with SUM around the values, for GROUP BY ``owners``

    ``key_fields`` and ``fields`` are the fields of ``keys`` and ``sql``, for ``convert``.
    """

    def __init__(self, counters: Sequence[Declaration], using: str, model: type[Model], prefix: str, alias: str):
        query, quote = Query(model), connections[using].ops.quote_name
        compiler, table = query.get_compiler(using), query.get_initial_alias()
        self.table = quote(table) if alias in ("", table) else f"{quote(table)} {quote(alias)}"
        keys: list[Any] = [field.get_col(table) for field in model._meta.pk_fields]
        columns: list[Any] = [column for c in counters for column in (*map(F, c.owner_attnames), c.condition.value)]
        columns = [column.resolve_expression(query) for column in columns]
        columns = [column.relabeled_clone({table: alias or table}) for column in (*keys, *columns)]
        sql, params = zip(*map(compiler.compile, columns), strict=True)
        # Values need no conversion.
        fields = [c if isinstance(c, Col) and compiler.get_converters([c]) else None for c in columns]
        self.keys, self.sql = sql[: len(keys)], sql[len(keys) :]
        self.key_fields, self.fields = fields[: len(keys)], fields[len(keys) :]
        self.params: tuple[Any, ...] = tuple(chain(*params))
        self.names = [f"{prefix}{i}" for i in range(len(self.sql))]
        self.aliased = ", ".join(f"{column} AS {name}" for column, name in zip(self.sql, self.names, strict=True))
        owns = [isinstance(column, Col) for column in columns[len(keys) :]]
        self.owners = ", ".join(compress(self.names, owns))
        self.sums = ", ".join(
            n if owned else f"COALESCE(SUM({n}), 0)" for n, owned in zip(self.names, owns, strict=True)
        )

    def select(self, where: str, params: Iterable[Any]) -> tuple[str, tuple[Any, ...]]:
        """Return a SELECT of primary key and columns, in the order of the key. Compiling it from a QuerySet would take
        several times as long as everything else."""
        keys = ", ".join(self.keys)
        select = f"SELECT {keys}, {', '.join(self.sql)} FROM {self.table} WHERE {where} ORDER BY {keys}"
        return select, (*self.params, *params)


@lru_cache(maxsize=100)
def columns_of(
    counters: tuple[Declaration, ...], using: str, model: type[Model], prefix: str = "c", alias: str = ""
) -> Columns:
    """Return the columns of counters of a model's table. ``prefix``: of their names. ``alias``: of the table in the
    statement."""
    return Columns(counters, using, model, prefix, alias)


def convert(compiler: Any, fields: Sequence[Any], rows: Iterable[Row]) -> Iterable[Row]:
    """Convert rows of these fields, as the database returned them. None: the column needs no conversion."""
    converters = compiler.get_converters(fields)
    return compiler.apply_converters(rows, converters) if converters else rows
