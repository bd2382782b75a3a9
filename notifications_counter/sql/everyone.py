"""Everyone in the order of the primary keys, and for a range of them, the rows beside the stored totals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.models import Count, F, IntegerField, QuerySet, UUIDField

from ..declaration import Declaration

JOINED = {
    "postgresql": (
        "(array_agg(counted_owner ORDER BY counted_owner DESC))[1]",
        "json_agg(counted_owner)::text",
        "NULL",
    ),
    "mysql": ("MAX(counted_owner)", "JSON_ARRAYAGG(counted_owner)", "@@group_concat_max_len"),
    "sqlite": ("MAX(counted_owner)", "json_group_array(counted_owner)", "NULL"),
}
"""For each database: the last owner; all owners as one text, since drivers are slow with thousands of rows; and the
length at which the database cuts off such a text without an error."""

MARGIN = 100
"""Characters by which a text is shorter than that length, so that nothing can be missing."""

END = "owner:"

FEW = 500
"""Owners that are asked for by name. Beyond, the whole range is fetched."""


@dataclass(frozen=True, slots=True)
class Page:
    """Owners by member: those after one primary key, up to the ``last``."""

    after: Any
    last: Any
    keys: dict[str, Any]

    @property
    def end(self) -> str:
        """Where the page ends, as a text for ``Everyone.start``."""
        return f"{END}{self.last}"


class Everyone:
    """Owners of one counter who have rows that count, or a stored total."""

    def __init__(self, counter: Declaration):
        self.counter = counter
        self.connection = connections[counter.db]
        self.joined = JOINED.get(self.connection.vendor)
        if not isinstance(counter.key_field, IntegerField | UUIDField):
            self.joined = None  # a text of texts may be longer than the database returns

    def start(self, position: str) -> Any:
        """The primary key where a page ended. None, for the beginning, if the text is that of no page."""
        before, found, key = position.partition(END)
        return self.counter.key_field.to_python(key) if found and not before else None

    def page(self, after: Any, size: int) -> Page | None:
        """The first owners after a primary key, None: from the beginning. None if there are no more."""
        rows = self._rows(after).order_by("counted_owner").distinct()[:size]
        totals = self._totals(after).order_by("counted_owner").values("counted_owner")[:size]
        (rows_sql, rows_params), (totals_sql, totals_params) = self._compile(rows), self._compile(totals)
        sql = (
            f"SELECT counted_owner FROM ({rows_sql}) r UNION SELECT counted_owner FROM ({totals_sql}) t"
            f" ORDER BY counted_owner {self.connection.ops.limit_offset_sql(0, size)}"
        )
        owners = self._owners(sql, (*rows_params, *totals_params))
        if not owners:
            return None
        to_python = self.counter.key_field.to_python
        *keys, last = map(to_python, owners)
        return Page(after, last, {str(key): key for key in keys})

    def _owners(self, sql: str, params: Sequence[Any]) -> list[Any]:
        """The owners that a statement selects, and the last of them once more."""
        if self.joined:
            ((last, text, limit),) = self._fetch(f"SELECT {', '.join(self.joined)} FROM ({sql}) page", params)
            if last is None:
                return []
            if limit is None or len(text) + MARGIN < limit:
                return [*json.loads(text), last]
            self.joined = None
        owners = [owner for (owner,) in self._fetch(sql, params)]
        return owners + owners[-1:]

    def counts(self, page: Page, batch: int, members: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        """Return the number of rows, stored total and batch of those in a page whose total is not the number of rows or
        has a later batch, and of these members."""
        rows = self._rows(page.after, page.last).annotate(counted_rows=Count("pk")).order_by()
        totals = self._totals(page.after, page.last)
        (rows_sql, rows_params), (totals_sql, totals_params) = self._compile(rows), self._compile(totals)
        counts = (
            "SELECT counted_owner, COALESCE(MAX(counted_rows), 0) AS counted_rows,"
            " COALESCE(MAX(counted_total), 0) AS counted_total, COALESCE(MAX(counted_batch), 0) AS counted_batch FROM ("
            f"SELECT counted_owner, counted_rows, NULL AS counted_total, NULL AS counted_batch FROM ({rows_sql}) r"
            f" UNION ALL SELECT counted_owner, NULL, counted_total, counted_batch FROM ({totals_sql}) t"
            ") u GROUP BY counted_owner"
        )
        params = [*rows_params, *totals_params]
        if len(members) <= FEW:
            counts = f"SELECT * FROM ({counts}) page WHERE counted_rows <> counted_total OR counted_batch > %s"
            params.append(batch)
            if members:
                params += self.counter.db_keys([page.keys[member] for member in members], self.connection)
                counts += f" OR counted_owner IN ({', '.join(['%s'] * len(members))})"
        to_python = self.counter.key_field.to_python
        return {str(to_python(owner)): tuple(numbers) for owner, *numbers in self._fetch(counts, params)}

    def _rows(self, after: Any, last: Any = None) -> QuerySet:
        counter = self.counter
        rows: QuerySet = QuerySet(counter.source, using=counter.db).filter(counter.q)
        return _between(rows, counter.owner_attname, after, last).values(counted_owner=F(counter.owner_attname))

    def _totals(self, after: Any, last: Any = None) -> QuerySet:
        counter = self.counter
        totals = _between(QuerySet(counter.totals, using=counter.db), "pk", after, last)
        columns = {"owner": "pk", "total": counter.field, "batch": counter.batch_field}
        return totals.order_by().values(**{f"counted_{name}": F(column) for name, column in columns.items()})

    def _compile(self, queryset: QuerySet) -> tuple[str, Sequence[Any]]:
        return queryset.query.get_compiler(self.connection.alias, elide_empty=False).as_sql()

    def _fetch(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall()


def _between(queryset: QuerySet, column: str, after: Any, last: Any) -> QuerySet:
    queryset = queryset.filter(**({f"{column}__isnull": False} if after is None else {f"{column}__gt": after}))
    return queryset if last is None else queryset.filter(**{f"{column}__lte": last})
