"""Counts the rows of a counter in the database."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet

from ..declaration import Declaration
from ..declaration.primary_keys import First, Pk
from ..internals import Uncached
from .owners import of_owners, per_statement

Breakdown = dict[Pk, int]
"""Counts by the last column of their owners."""


def count_rows(counter: Declaration, pks: Sequence[Pk]) -> dict[Pk, int]:
    """Return the number of rows that count, for each of these owners."""
    found = dict.fromkeys(pks, 0)
    for chunk in per_statement(pks, counter.db):
        found |= _count(counter, of_owners(_rows(counter), counter, chunk))
    return found


def break_down(counter: Declaration, firsts: Sequence[First]) -> dict[First, Breakdown]:
    """Return the counts of all owners with each of these values in all columns but the last, by the last, without
    zeros. Rows are counted for all of them together; for several columns, those of each combination of their values."""
    *names, last = counter.owner_attnames
    found: dict[First, Breakdown] = {first: {} for first in firsts}
    for chunk in per_statement(firsts, counter.db):
        owners = {f"{name}__in": values for name, values in zip(names, zip(*chunk, strict=True), strict=True)}
        rows = _rows(counter).filter(**owners, **{f"{last}__isnull": False})
        for (*first, value), count in _count(counter, rows).items():
            if count and tuple(first) in found:
                found[tuple(first)][value] = count
    return found


def _rows(counter: Declaration) -> QuerySet:
    """Return the rows that count."""
    return Uncached(counter.source, using=counter.db).filter(counter.q).order_by()


def _count(counter: Declaration, rows: QuerySet) -> dict[Pk, int]:
    """Return the number of these rows, by owner. Owners without such rows are left out."""
    counts = rows.values_list(*counter.owner_attnames).annotate(counted_rows=counter.condition.aggregate)
    return {row[:-1] if counter.has_several_columns else row[0]: row[-1] for row in counts}
