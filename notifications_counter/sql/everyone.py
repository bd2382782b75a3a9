"""Everyone, in the order of primary keys, in pages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from django.core.exceptions import ValidationError
from django.db import connections
from django.db.models import F, Field, Model, Q, QuerySet

from ..declaration import Declaration
from ..declaration.primary_keys import First, Pk, values_of
from ..internals import Param
from ..redis.replies import UNREADABLE


def page(counter: Declaration, after: str | None, size: int) -> list[Pk]:
    """Return the first primary keys after an owner key, of owners that have rows that count, or a stored total. None
    stands for the beginning: an empty text may be an owner key."""
    start = _position(counter, after)
    connection = connections[counter.db]
    rows = QuerySet[Model](counter.source).filter(counter.q)
    totals = QuerySet[Model](counter.totals)
    columns = [f"counted_owner{i}" for i in range(len(counter.pk_fields))]

    def owners_of(queryset: QuerySet[Model], fields: Sequence[Field]) -> tuple[str, tuple[Param, ...]]:
        names = [field.attname for field in fields]
        owners = queryset.filter(_after(names, start), **{f"{name}__isnull": False for name in names})
        named = owners.values(**{column: F(name) for column, name in zip(columns, names, strict=True)})
        query = named.order_by(*columns).distinct()[:size].query
        return query.get_compiler(connection.alias, elide_empty=False).as_sql()

    of_rows, row_params = owners_of(rows, counter.owner_fields)
    of_totals, total_params = owners_of(totals, counter.total_fields)
    both = f"SELECT * FROM ({of_rows}) AS part0 UNION SELECT * FROM ({of_totals}) AS part1"
    with connection.cursor() as cursor:
        cursor.execute(f"{both} ORDER BY {', '.join(columns)} LIMIT {size}", (*row_params, *total_params))
        return [counter.pk_of_row(pk) for pk in cursor.fetchall()]


def _position(counter: Declaration, owner_key: str | None) -> First | None:
    """Return the primary key of an owner key, as a tuple; None if there is none: another release may have counted for
    other owners."""
    with suppress(ValidationError, *UNREADABLE):
        if owner_key is not None:
            return values_of(counter.parse(owner_key))
    return None


def _after(names: Sequence[str], values: First | None) -> Q:
    """Return a condition for rows behind these values, in the order of the columns; for all rows if there are none. Not
    every database would use an index to compare lists of columns."""
    if values is None:
        return Q()
    name, value = names[0], values[0]
    if len(names) == 1:
        return Q(**{f"{name}__gt": value})
    return Q(**{f"{name}__gte": value}) & (Q(**{f"{name}__gt": value}) | _after(names[1:], values[1:]))
