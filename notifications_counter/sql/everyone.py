"""Everyone, in the order of primary keys, in pages: the owners' rows beside their stored totals."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db import connections
from django.db.models import F, Q, QuerySet

from ..declaration import Declaration
from .owners import is_one_of, of_owners

END = "owner:"

MOST_NAMED = 500
"""The most owners that a query names. For more, it fetches the whole page."""


@dataclass(frozen=True, slots=True)
class Page:
    """The owners after one primary key and up to the ``last``. ``keys``: by owner key. ``is_last``: nobody follows."""

    after: Any
    last: Any
    keys: dict[str, Any]
    is_last: bool

    @property
    def end(self) -> str:
        """The end of the page, as text for ``Everyone.start``."""
        return f"{END}{self.last}"


class Counted(NamedTuple):
    """An owner in the database: the count of its rows, the stored total, and the last batch added to it."""

    rows: int = 0
    total: int = 0
    batch: int = 0


class Everyone:
    """All owners of one counter that have rows that count, or a stored total."""

    def __init__(self, counter: Declaration):
        self.counter = counter
        self.connection = connections[counter.db]
        self.columns = [f"counted_owner{i}" for i in range(len(counter.key_fields))]
        self.owner = ", ".join(self.columns)

    def start(self, position: str) -> Any:
        """Return the primary key where a page ended. None, which is the beginning, if the text does not name one."""
        before, found, key = position.partition(END)
        if found and not before:
            with suppress(ValidationError):  # another release may have counted for other owners
                return self.counter.decode(key)
        return None

    def page(self, after: Any, size: int, last: Any = None) -> Page | None:
        """Return the first owners after a primary key, and up to the ``last``. None: from the beginning, or to the end.
        Returns None if there are no more."""
        rows = self._rows(after, last).order_by(*self.columns).distinct()[:size]
        totals = self._totals(after, last).order_by(*self.columns).values(*self.columns)[:size]
        (rows_sql, rows_params), (totals_sql, totals_params) = self._compile(rows), self._compile(totals)
        sql = (
            f"SELECT {self.owner} FROM ({rows_sql}) r UNION SELECT {self.owner} FROM ({totals_sql}) t"
            f" ORDER BY {self.owner} LIMIT {size}"
        )
        keys = list(map(self.counter.key_of, self._fetch(sql, (*rows_params, *totals_params))))
        return Page(after, keys[-1], {str(key): key for key in keys}, len(keys) < size) if keys else None

    def counts(self, page: Page, batch: int, owner_keys: Sequence[str], only: Sequence[Any] = ()) -> dict[str, Counted]:
        """Count these owners, and all in the page whose total differs from the count of the rows or has a later batch
        (rule: above). ``only``: limits the page to these keys."""
        rows, totals = self._rows(page.after, page.last), self._totals(page.after, page.last)
        if only:
            rows = rows.filter(of_owners(self.counter, self.counter.owner_fields, only, self.counter.db))
            totals = totals.filter(of_owners(self.counter, self.counter.total_fields, only, self.counter.db))
        rows = rows.annotate(counted_rows=self.counter.condition.total).order_by()
        (rows_sql, rows_params), (totals_sql, totals_params) = self._compile(rows), self._compile(totals)
        counts = (
            f"SELECT {self.owner}, COALESCE(MAX(counted_rows), 0) AS counted_rows,"
            " COALESCE(MAX(counted_total), 0) AS counted_total, COALESCE(MAX(counted_batch), 0) AS counted_batch FROM ("
            f"SELECT {self.owner}, counted_rows, NULL AS counted_total, NULL AS counted_batch FROM ({rows_sql}) r"
            f" UNION ALL SELECT {self.owner}, NULL, counted_total, counted_batch FROM ({totals_sql}) t"
            f") u GROUP BY {self.owner}"
        )
        params = [*rows_params, *totals_params]
        if len(owner_keys) <= MOST_NAMED:
            counts = f"SELECT * FROM ({counts}) page WHERE counted_rows <> counted_total OR counted_batch > %s"
            params.append(batch)
            if owner_keys:
                keys = [page.keys[owner_key] for owner_key in owner_keys]
                condition, values = is_one_of(self.counter, self.columns, keys, self.connection)
                counts += f" OR {condition}"
                params += values
        found = self._fetch(counts, params)
        return {str(self.counter.key_of(row[:-3])): Counted(int(row[-3]), *row[-2:]) for row in found}

    def _rows(self, after: Any, last: Any) -> QuerySet:
        counter = self.counter
        rows: QuerySet = QuerySet(counter.source, using=counter.db).filter(counter.q)
        return self._between(rows, counter.owner_attnames, after, last)

    def _totals(self, after: Any, last: Any) -> QuerySet:
        counter = self.counter
        attnames = [field.attname for field in counter.total_fields]
        totals = self._between(QuerySet(counter.totals, using=counter.db), attnames, after, last).order_by()
        return totals.values(*self.columns, counted_total=F(counter.field), counted_batch=F(counter.batch_field))

    def _between(self, queryset: QuerySet, names: Sequence[str], after: Any, last: Any) -> QuerySet:
        """Filter the rows of owners after one key and up to another, and select the owner's columns."""
        queryset = queryset.filter(between(self.counter, names, after, last))
        return queryset.values(**{alias: F(name) for alias, name in zip(self.columns, names, strict=True)})

    def _compile(self, queryset: QuerySet) -> tuple[str, Sequence[Any]]:
        return queryset.query.get_compiler(self.connection.alias, elide_empty=False).as_sql()

    def _fetch(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall()


def between(counter: Declaration, names: Sequence[str], after: Any, last: Any) -> Q:
    """Return a condition for rows of owners, in these columns, after one key and up to another. None: from the
    beginning, or to the end."""
    condition = Q(**{f"{name}__isnull": False for name in names})
    for key, direction in ((after, "gt"), (last, "lt")):
        if key is not None:
            values = key if counter.has_several_columns else (key,)
            condition &= _beyond(names, values, direction, or_equal=direction == "lt")
    return condition


def _beyond(names: Sequence[str], values: Sequence[Any], direction: str, or_equal: bool) -> Q:
    """Return a condition for rows beyond these values, in the order of the columns. Not every database would use an
    index to compare lists of columns."""
    if len(names) == 1:
        return Q(**{f"{names[0]}__{direction}{'e' if or_equal else ''}": values[0]})
    rest = _beyond(names[1:], values[1:], direction, or_equal)
    return Q(**{f"{names[0]}__{direction}e": values[0]}) & (Q(**{f"{names[0]}__{direction}": values[0]}) | rest)
