"""Locks rows, and returns what they add to counts according to the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import Model, QuerySet

from ..buffer.commands import chunked
from ..declaration import Declaration
from ..internals import Query
from .columns import Row, columns_of, convert
from .queries import reads_others, select_compiler, where_of

Rows = dict[Any, Row]
"""Owners and values of rows, by primary key."""


def chunks(items: Sequence[Any], using: str) -> Sequence[Sequence[Any]]:
    """Return items in chunks that fit into the parameters of one statement."""
    size = min(connections[using].features.max_query_params or 5000, 5000) * 9 // 10
    if items and isinstance(items[0], tuple):  # a composite primary key
        size //= len(items[0])
    return chunked(items, size)


def lock_rows(query: Query, connection: Any, counters: tuple[Declaration, ...]) -> Rows:
    """Lock the rows that a statement is about to change. While MySQL waits for the lock of a row, what it has read of
    other rows gets old, so repeat this until nothing has changed."""
    found, before = _lock(query, connection, counters), None
    if connection.vendor == "mysql" and reads_others(query):
        while found.keys() != before:
            found, before = _lock(query, connection, counters), found.keys()
    return found


def lock_by_key(model: type[Model], connection: Any, pks: Sequence[Any], counters: tuple[Declaration, ...]) -> Rows:
    """Lock the rows with these primary keys that exist."""
    found: Rows = {}
    for chunk in chunks(pks, connection.alias):
        found |= _lock(QuerySet(model, using=connection.alias).filter(pk__in=chunk).query, connection, counters)
    return found


def _lock(query: Query, connection: Any, counters: tuple[Declaration, ...]) -> Rows:
    """Lock the rows that a query selects, in the order of their primary keys."""
    compiler = select_compiler(query, connection)
    ours = columns_of(counters, connection.alias, query.model, alias=compiler.query.get_initial_alias())
    try:
        sql, params = ours.select(*where_of(compiler))
    except EmptyResultSet:
        return {}
    if connection.features.has_select_for_update:
        sql += f" {connection.ops.for_update_sql()}"
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        found = cursor.fetchall()
    first = len(ours.keys)
    rows = map(tuple, convert(compiler, [*ours.key_fields, *ours.fields], found))
    return {row[0] if first == 1 else row[:first]: row[first:] for row in rows}
