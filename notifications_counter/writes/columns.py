"""The columns that say what rows count for, in SELECT and RETURNING."""

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
    """For each counter, the columns of the owner and what a row adds to the count, compiled once.

    ``keys``    the columns of the primary key
    ``sql``     these columns, with ``params``
    ``names``   what they are called in a result
    ``named``   these columns, with their names
    ``owners``  the names of the owners' columns
    ``sums``    all names, with sums for groups of the same ``owners``

    ``key_fields`` and ``fields`` are the same columns, as ``convert`` needs them.
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
        # What a row adds needs no conversion.
        fields = [c if isinstance(c, Col) and compiler.get_converters([c]) else None for c in columns]
        self.keys, self.sql = sql[: len(keys)], sql[len(keys) :]
        self.key_fields, self.fields = fields[: len(keys)], fields[len(keys) :]
        self.params: tuple[Any, ...] = tuple(chain(*params))
        self.names = [f"{prefix}{i}" for i in range(len(self.sql))]
        self.named = ", ".join(f"{column} AS {name}" for column, name in zip(self.sql, self.names, strict=True))
        owns = [isinstance(column, Col) for column in columns[len(keys) :]]
        self.owners = ", ".join(compress(self.names, owns))
        self.sums = ", ".join(
            n if owned else f"COALESCE(SUM({n}), 0)" for n, owned in zip(self.names, owns, strict=True)
        )

    def select(self, where: str, params: Iterable[Any]) -> tuple[str, tuple[Any, ...]]:
        """Return a SELECT of rows in the order of their primary keys: the key, then these columns. To compile it from a
        QuerySet would take several times as long as everything else."""
        keys = ", ".join(self.keys)
        select = f"SELECT {keys}, {', '.join(self.sql)} FROM {self.table} WHERE {where} ORDER BY {keys}"
        return select, (*self.params, *params)


@lru_cache(maxsize=100)
def columns_of(
    counters: tuple[Declaration, ...], using: str, model: type[Model], prefix: str = "c", alias: str = ""
) -> Columns:
    """Return the columns of counters of one table, which ``model`` has. ``prefix``: of their names. ``alias``: what the
    statement calls the table, if not by its name."""
    return Columns(counters, using, model, prefix, alias)


def convert(compiler: Any, fields: Sequence[Any], rows: Iterable[Row]) -> Iterable[Row]:
    """Convert what the database returned for these fields. None: a column that needs no conversion."""
    converters = compiler.get_converters(fields)
    return compiler.apply_converters(rows, converters) if converters else rows
