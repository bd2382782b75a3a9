"""SQL conditions for the rows of some owners, and how many of them fit into a statement."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections
from django.db.models import BooleanField, Field, IntegerField
from django.db.models.expressions import RawSQL

from ..declaration import Declaration
from ..declaration.primary_keys import Pk
from ..internals import BaseDatabaseWrapper, Param
from ..redis.calls import chunked

SHORT_LIST = 100
"""The most primary keys of one column that PostgreSQL gets as a list. An array is faster to bind and to parse if it is
longer."""


def is_one_of(
    counter: Declaration, columns: Sequence[str], pks: Sequence[Pk], connection: BaseDatabaseWrapper
) -> tuple[str, list[Param]]:
    """Return a condition for rows with one of these primary keys in these columns, and its parameters."""
    values = counter.db_columns(pks, connection)
    names = ", ".join(columns)
    if len(columns) == 1 and (connection.vendor != "postgresql" or len(pks) <= SHORT_LIST):  # only faster
        return f"{names} IN ({', '.join(['%s'] * len(pks))})", values[0]
    if connection.vendor == "postgresql" and len(columns) == 1:
        # With a join, or an array that it has to compute or to cast, PostgreSQL may compare each row with each key.
        (field,), (column,) = counter.pk_fields, values
        kind = str(field.rel_db_type(connection))
        if isinstance(field, IntegerField):
            limit = 1 << {"smallint": 15, "integer": 31}.get(kind, 63)
            column = [pk for pk in column if -limit <= pk < limit]  # others have no rows
        return f"{names} = ANY(%s::{kind}[])", [column]
    if connection.vendor == "postgresql":  # in a list of several columns, it would try one key after the other
        return f"({names}) IN (SELECT * FROM unnest({arrays(counter, connection)}))", values
    row = f"({', '.join(['%s'] * len(columns))})"
    rows = ", ".join([row] * len(pks))
    values_or_rows = f"VALUES {rows}" if connection.vendor == "sqlite" else rows
    return f"({names}) IN ({values_or_rows})", [value for row in zip(*values, strict=True) for value in row]


def of_owners(counter: Declaration, fields: Sequence[Field], pks: Sequence[Pk], using: str) -> RawSQL:
    """Return the same condition for ``filter()``, given fields of a model."""
    quote = connections[using].ops.quote_name
    columns = [f"{quote(field.model._meta.db_table)}.{quote(str(field.column))}" for field in fields]
    return RawSQL(*is_one_of(counter, columns, pks, connections[using]), BooleanField())


def arrays(counter: Declaration, connection: BaseDatabaseWrapper) -> str:
    """Return the placeholders of PostgreSQL's arrays of primary keys, one for each column. An integer that is too
    large for its column is that of an owner without rows, not an error."""
    kinds = ("bigint" if isinstance(f, IntegerField) else f.rel_db_type(connection) for f in counter.pk_fields)
    return ", ".join(f"%s::{kind}[]" for kind in kinds)


def per_statement(items: Sequence[Pk], using: str) -> Sequence[Sequence[Pk]]:
    """Return items in chunks that fit into the parameters of one statement."""
    size = min(connections[using].features.max_query_params or 5000, 5000) * 9 // 10
    if items and isinstance(items[0], tuple):  # a composite primary key
        size //= len(items[0])
    return chunked(items, size)
