"""SQL conditions for the rows of some owners, and how many of them fit into a statement."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from django.db import connections
from django.db.models import Field, IntegerField, QuerySet

from ..declaration import Declaration
from ..declaration.primary_keys import Pk
from ..internals import BaseDatabaseWrapper, Param
from ..redis.calls import chunked

MAX_LISTED_PKS = 100
"""The most primary keys of one column that PostgreSQL gets as a list. An array is faster to bind and to parse if it is
longer."""

MAX_PARAMS = 5000
"""The most parameters of a statement, where the database takes as many."""


def is_one_of(
    counter: Declaration, columns: Sequence[str], pks: Sequence[Pk], connection: BaseDatabaseWrapper
) -> tuple[str, list[Param]]:
    """Return a condition for rows with one of these primary keys in these columns, and its parameters.

    For several columns, there is a list for each, so that any index on one of them will do, in whichever state the
    statistics are. Unless the keys are all combinations of these values, a list of the keys filters the rows.
    """
    values = counter.db_columns(pks, connection)
    different = [list(dict.fromkeys(column)) for column in values]
    parts = [_is_in(*each, connection) for each in zip(columns, counter.pk_fields, different, strict=True)]
    if prod(map(len, different)) > len(set(pks)):
        names = ", ".join(columns)
        row = f"({', '.join(['%s'] * len(columns))})"
        rows = ", ".join([row] * len(pks))
        flat = [value for pk in zip(*values, strict=True) for value in pk]
        if connection.vendor == "postgresql":  # IS TRUE: a filter by a hash table, never a join
            parts.append((f"(({names}) IN (SELECT * FROM unnest({arrays(counter, connection)}))) IS TRUE", values))
        elif connection.vendor == "sqlite":  # for several lists, it would look up each combination of their values
            parts = [(f"({names}) IN (SELECT * FROM (VALUES {rows}))", flat)]
        else:
            parts.append((f"({names}) IN ({rows})", flat))
    return " AND ".join(condition for condition, _ in parts), [param for _, params in parts for param in params]


def _is_in(name: str, field: Field, values: list[Param], connection: BaseDatabaseWrapper) -> tuple[str, list[Param]]:
    """Return a condition for rows with one of these values in this column, and its parameters."""
    if connection.vendor != "postgresql" or len(values) <= MAX_LISTED_PKS:  # only faster
        return f"{name} IN ({', '.join(['%s'] * len(values))})", values
    # With a join, or an array that it has to compute or to cast, PostgreSQL may compare each row with each key.
    kind = str(field.rel_db_type(connection))
    if isinstance(field, IntegerField):
        limit = 1 << {"smallint": 15, "integer": 31}.get(kind, 63)
        values = [value for value in values if -limit <= value < limit]  # others have no rows
    return f"{name} = ANY(%s::{kind}[])", [values]


def of_owners(rows: QuerySet, counter: Declaration, pks: Sequence[Pk]) -> QuerySet:
    """Return those rows of the source that belong to owners with these primary keys."""
    connection = connections[counter.db]
    quote = connection.ops.quote_name
    columns = [f"{quote(field.model._meta.db_table)}.{quote(str(field.column))}" for field in counter.owner_fields]
    condition, params = is_one_of(counter, columns, pks, connection)
    # For an expression in filter(), Django would add "= 1" on MySQL and MariaDB, which then use no index.
    return rows.extra(where=[condition], params=params)


def arrays(counter: Declaration, connection: BaseDatabaseWrapper) -> str:
    """Return the placeholders of PostgreSQL's arrays of primary keys, one for each column. An integer that is too
    large for its column is that of an owner without rows, not an error."""
    kinds = ("bigint" if isinstance(f, IntegerField) else f.rel_db_type(connection) for f in counter.pk_fields)
    return ", ".join(f"%s::{kind}[]" for kind in kinds)


def per_statement(items: Sequence[Pk], using: str) -> Sequence[Sequence[Pk]]:
    """Return items in chunks that fit into the parameters of one statement."""
    size = min(connections[using].features.max_query_params or MAX_PARAMS, MAX_PARAMS) * 9 // 10
    if items and isinstance(items[0], tuple):  # a composite primary key
        size //= len(items[0])
    return chunked(items, size)
