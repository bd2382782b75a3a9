"""What the database says of rows of a source model, locked so that it stays true until the transaction ends."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import F, Model, QuerySet
from django.db.models.sql import DeleteQuery

from ..declaration import Declaration, counters_of

RowStates = list[tuple[Declaration, str | None, bool]]
"""For each counter of a row: whose it is, and whether it counts."""


def chunks(items: Sequence[Any], using: str) -> Iterator[Sequence[Any]]:
    """Parts small enough to be parameters of one statement."""
    size = min(connections[using].features.max_query_params or 5000, 5000) * 9 // 10
    if items and isinstance(items[0], tuple):  # a composite primary key
        size //= len(items[0])
    for i in range(0, len(items), size):
        yield items[i : i + size]


def locked(source: type[Model], using: str, pks: Sequence[Any]) -> dict[Any, RowStates]:
    """Lock rows by primary key, in its order, and say what they count for. Missing rows are not there."""
    found: dict[Any, RowStates] = {}
    for chunk in chunks(pks, using):
        found |= states(QuerySet(source, using=using).filter(pk__in=chunk), lock=True)
    return found


def locked_by(queryset: QuerySet, source: type[Model], using: str) -> dict[Any, RowStates]:
    """Lock the rows that a queryset selects, and say what they count for."""
    if not is_plain(queryset, source):
        queryset = QuerySet(source, using=using).filter(pk__in=queryset.order_by().values("pk"))
    return states(queryset.using(using), lock=True)


def is_plain(queryset: QuerySet, source: type[Model]) -> bool:
    """Does the queryset look at nothing but the columns of the source table?"""
    query = queryset.query
    return (
        queryset.model._meta.concrete_model is source
        and queryset._fields is None  # type: ignore[attr-defined]
        and sum(1 for alias, uses in query.alias_refcount.items() if uses) <= 1
        and not (query.distinct or query.combinator or query.group_by or query.annotations or query.extra)
    )


def states(queryset: QuerySet, lock: bool = False) -> dict[Any, RowStates]:
    """What the selected rows of a source model count for."""
    counters = counters_of(queryset.model)
    columns = [column for c in counters for column in (c.owner_attname, c.condition.flag)]
    # One by one: as a whole, a composite primary key comes as the database has it, and not as instances do.
    key = [field.attname for field in queryset.model._meta.pk_fields]
    rows = queryset.select_related(None).order_by("pk")
    if lock:
        rows = rows.select_for_update()
    first = len(key)
    return {
        row[0] if first == 1 else row[:first]: [
            (c, c.encode(row[first + 2 * i]), bool(row[first + 2 * i + 1])) for i, c in enumerate(counters)
        ]
        for row in rows.values_list(*key, *columns)
    }


def can_return_deleted(using: str) -> bool:
    """Has the database a DELETE … RETURNING that can be trusted? PostgreSQL and MariaDB have; MySQL has none, and for
    SQLite 3.40, which is in wide use, no column that it returns IS NULL if the first of the table cannot be."""
    connection = connections[using]
    return connection.vendor in ("postgresql", "mysql") and connection.features.can_return_columns_from_insert


def delete_returning(queryset: QuerySet, using: str) -> tuple[int, dict[Declaration, dict[str, int]]]:
    """Delete the rows that a queryset selects, looking at nothing but the columns of the source: how many there were,
    and what that changed."""
    counters = counters_of(queryset.model)
    query: Any = queryset.query.clone()
    query.__class__ = DeleteQuery
    query.clear_ordering(force=True)
    compiler = query.get_compiler(using)
    columns = [
        expression.resolve_expression(query) for c in counters for expression in (F(c.owner_attname), c.condition.flag)
    ]
    try:
        sql, params = compiler.as_sql()
    except EmptyResultSet:
        return 0, {}
    returning, more = zip(*(compiler.compile(column) for column in columns), strict=True)
    sql = f"{sql} RETURNING {', '.join(f'{column} AS c{i}' for i, column in enumerate(returning))}"
    if adds_up := connections[using].vendor == "postgresql":  # users come back, not rows
        names = ", ".join(f"c{i}" for i in range(len(columns)))
        sql = f"WITH deleted AS ({sql}) SELECT {names}, COUNT(*) FROM deleted GROUP BY {names}"
    with connections[using].cursor() as cursor:
        cursor.execute(sql, (*params, *chain(*more)))
        rows = Tally({row[:-1]: row[-1] for row in cursor} if adds_up else cursor)
    deltas: dict[Declaration, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    converted = compiler.apply_converters(map(list, rows), compiler.get_converters(columns))
    for row, number in zip(converted, rows.values(), strict=True):
        for i, counter in enumerate(counters):
            member = counter.encode(row[2 * i])
            if row[2 * i + 1] and member is not None:
                deltas[counter][member] -= number
    return rows.total(), deltas


def difference(before: Iterable[RowStates], after: Iterable[RowStates] = ()) -> dict[Declaration, dict[str, int]]:
    """What a statement changed, given all its rows before and after."""
    deltas: dict[Declaration, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for sign, rows in ((-1, before), (1, after)):
        for row in rows:
            for counter, member, counts in row:
                if counts and member is not None:
                    deltas[counter][member] += sign
    return deltas


def activity(
    before: Mapping[Any, RowStates], after: Mapping[Any, RowStates] | None = None
) -> dict[tuple[Declaration, str], int]:
    """How many rows a statement created or deleted, and how many stayed and ceased to count (``read``)."""
    after = after or {}
    happened: dict[tuple[Declaration, str], int] = defaultdict(int)
    for pk, row in after.items():
        for i, (counter, _, counts) in enumerate(row):
            if pk not in before:
                happened[counter, "created"] += 1
            elif before[pk][i][2] and not counts:
                happened[counter, "read"] += 1
    for pk, row in before.items():
        if pk not in after:
            for counter, _, _ in row:
                happened[counter, "deleted"] += 1
    return happened
