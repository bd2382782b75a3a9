"""The columns that the counters need from RETURNING."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from django.db.models import F, Model

from ..declaration import Declaration
from ..internals import Query
from .rows import RowState, columns_of, states_of


class Returning:
    """For each counter, the columns of its owner and whether the row counts, compiled once."""

    def __init__(self, counters: Sequence[Declaration], using: str, model: type[Model], alias: str = ""):
        self.counters = counters
        query = Query(model)
        names = {query.get_initial_alias(): alias} if alias else {}
        expressions = (F(column) if isinstance(column, str) else column for column in columns_of(counters))
        self.columns: list[Any] = [e.resolve_expression(query).relabeled_clone(names) for e in expressions]
        compiler = query.get_compiler(using)
        sql, params = zip(*(compiler.compile(column) for column in self.columns), strict=True)
        self.sql: list[str] = list(sql)
        self.params: tuple[Any, ...] = tuple(chain(*params))

    def as_columns(self, prefix: str) -> str:
        """Return the columns, named ``{prefix}0``, ``{prefix}1``, …"""
        return ", ".join(f"{column} AS {name}" for column, name in zip(self.sql, self.names(prefix), strict=True))

    def names(self, prefix: str) -> list[str]:
        """Return these names."""
        return [f"{prefix}{i}" for i in range(len(self.columns))]

    def states(self, compiler: Any, rows: Sequence[Sequence[Any]]) -> list[RowState]:
        """Convert rows of these columns."""
        if converters := compiler.get_converters(self.columns):
            rows = list(compiler.apply_converters([list(row) for row in rows], converters))
        return states_of(self.counters, rows)


@lru_cache(maxsize=100)
def returning(counters: tuple[Declaration, ...], using: str, model: type[Model], alias: str = "") -> Returning:
    """Return the columns of counters of one table, which ``model`` has. If the database returns both the old and the
    new row, ``alias`` is the name of one."""
    return Returning(counters, using, model, alias)
