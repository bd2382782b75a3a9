"""Everyone, in the order of primary keys, in pages: the owners' rows beside their stored totals."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from django.core.exceptions import ValidationError
from django.db import connections
from django.db.models import F, Model, Q, QuerySet, Value
from django.db.models.expressions import RawSQL

from ..buffer.types import UNREADABLE
from ..declaration import Declaration
from ..declaration.primary_keys import First, Pk, values_of
from ..internals import Combinable
from .owners import of_owners

Where = Q | RawSQL

PAGE = 1000
"""Owners in a page."""


class Counted(NamedTuple):
    """An owner in the database: the primary key, the count of its rows, and the stored total."""

    pk: Pk
    rows: int
    stored: int


class Pages:
    """All owners of one counter that have rows that count, or a stored total."""

    def __init__(self, counter: Declaration):
        self.counter = counter
        self.connection = connections[counter.db]
        self.columns = [f"counted_owner{i}" for i in range(len(counter.pk_fields))]
        self.total_names = [field.attname for field in counter.total_fields]

    def page(self, after: str | None, size: int = PAGE) -> list[Counted]:
        """Return the first owners after an owner key. None stands for the beginning: an empty text may be an owner
        key."""
        start = self._position(after)
        return self._read(_after(self.counter.owner_attnames, start), _after(self.total_names, start), size)

    def first_pk(self, after: str | None) -> Pk | None:
        """Return the first primary key after an owner key, if there is one, without counting rows."""
        start = self._position(after)
        found = self._read(
            _after(self.counter.owner_attnames, start), _after(self.total_names, start), 1, count=Value(0)
        )
        return found[0].pk if found else None

    def these(self, pks: Sequence[Pk]) -> list[Counted]:
        """Return these owners, at most PAGE."""
        counter, using = self.counter, self.connection.alias
        of_rows = of_owners(counter, counter.owner_fields, pks, using)
        found = self._read(of_rows, of_owners(counter, counter.total_fields, pks, using), PAGE)
        known = {counted.pk for counted in found}
        return [*found, *(Counted(pk, 0, 0) for pk in pks if pk not in known)]

    def _position(self, owner_key: str | None) -> First | None:
        """Return the primary key of an owner key, as a tuple; None if there is none: another release may have counted
        for other owners."""
        with suppress(ValidationError, *UNREADABLE):
            if owner_key is not None:
                return values_of(self.counter.parse(owner_key))
        return None

    def _read(self, of_rows: Where, of_totals: Where, size: int, count: Combinable | None = None) -> list[Counted]:
        """Return the first owners that have rows that satisfy one condition, or a total that satisfies another. Rows
        are counted by ``count``, by default as the counter does."""
        counter, count = self.counter, count or self.counter.condition.aggregate
        rows = QuerySet[Model](counter.source).filter(counter.q, of_rows)
        totals = QuerySet[Model](counter.totals).filter(of_totals)
        rows_sql, rows_params = self._compile(rows, counter.owner_attnames, size, counted_rows=count)
        totals_sql, totals_params = self._compile(totals, self.total_names, size, counted_total=F(counter.field))
        owner = ", ".join(self.columns)
        sql = (
            f"SELECT {owner}, COALESCE(MAX(counted_rows), 0), COALESCE(MAX(counted_total), 0) FROM ("
            f"SELECT {owner}, counted_rows, NULL AS counted_total FROM ({rows_sql}) r"
            f" UNION ALL SELECT {owner}, NULL, counted_total FROM ({totals_sql}) t"
            f") u GROUP BY {owner} ORDER BY {owner} LIMIT {size}"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(sql, (*rows_params, *totals_params))
            return [Counted(counter.pk_of_row(pk), int(count), stored) for *pk, count, stored in cursor.fetchall()]

    def _compile(
        self, queryset: QuerySet[Model], names: Sequence[str], size: int, **numbers: Combinable
    ) -> tuple[str, tuple[str | int, ...]]:
        """Return SQL that selects the columns of the first owners, each with numbers."""
        queryset = queryset.filter(**{f"{name}__isnull": False for name in names})
        columns = {column: F(name) for column, name in zip(self.columns, names, strict=True)}
        query = queryset.values(**columns).annotate(**numbers).order_by(*self.columns)[:size].query
        return query.get_compiler(self.connection.alias, elide_empty=False).as_sql()


def _after(names: Sequence[str], values: First | None) -> Q:
    """Return a condition for rows behind these values, in the order of the columns; for all rows if there are none. Not
    every database would use an index to compare lists of columns."""
    if values is None:
        return Q()
    name, value = names[0], values[0]
    if len(names) == 1:
        return Q(**{f"{name}__gt": value})
    return Q(**{f"{name}__gte": value}) & (Q(**{f"{name}__gt": value}) | _after(names[1:], values[1:]))
