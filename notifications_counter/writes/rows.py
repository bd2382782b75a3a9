"""What rows count for according to the database, and how a statement has changed that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from math import inf
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Exists, F, Func, Model, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Random
from django.db.models.lookups import Exact, In

from ..buffer.types import Delta
from ..declaration import Declaration
from ..declaration.condition import expressions_of, is_lookup_of_django
from ..internals import AND, ExtraWhere, Query

RowState = Sequence[tuple[Declaration, str | None, bool]]
"""What a row counts for: for each counter, its owner and whether it counts."""

Deltas = Mapping[Declaration, Mapping[str, Delta]]
"""How much the counts of owners change; None if they are to be recounted."""


class Change(NamedTuple):
    """What a statement has changed. ``doubted``: counters of which everyone is to be recounted."""

    deltas: Deltas
    doubted: Sequence[Declaration] = ()


def columns_of(counters: Sequence[Declaration]) -> list[Any]:
    """Return the columns that say what a row counts for: for each counter, the owner's, and whether the row counts."""
    return [column for c in counters for column in (*c.owner_attnames, c.condition.flag)]


def states_of(counters: Sequence[Declaration], rows: Sequence[Sequence[Any]]) -> list[RowState]:
    """Return what rows of these columns count for."""
    columns, states = iter(zip(*rows, strict=True)), []
    for counter in counters if rows else ():
        owners = list(islice(columns, len(counter.owner_attnames)))
        members = counter._encode_all(list(zip(*owners, strict=True)) if counter.has_several_columns else owners[0])
        states.append(zip(repeat(counter), members, map(bool, next(columns)), strict=False))
    return list(zip(*states, strict=True))


def chunks(items: Sequence[Any], using: str) -> Iterator[Sequence[Any]]:
    """Split items into chunks that fit into the parameters of one statement."""
    size = min(connections[using].features.max_query_params or 5000, 5000) * 9 // 10
    if items and isinstance(items[0], tuple):  # a composite primary key
        size //= len(items[0])
    for i in range(0, len(items), size):
        yield items[i : i + size]


def is_plain(query: Query) -> bool:
    """Return whether a query reads only the columns of its own table."""
    return sum(1 for uses in query.alias_refcount.values() if uses) <= 1 and not (
        query.distinct or query.combinator or query.group_by or query.annotations or query.extra
    )


def named_keys(query: Query) -> float:
    """Return how many primary keys the WHERE clause names, so that it selects no more rows. Infinity if it names
    none."""
    where = query.where
    if not is_plain(query) or where.connector != AND or where.negated:
        return inf
    numbers = [inf]
    node: Any
    for node in where.children:
        is_key = isinstance(node, Exact | In) and is_lookup_of_django(node) and node.lhs.target.primary_key
        if is_key and not hasattr(node.rhs, "resolve_expression"):
            numbers.append(1 if isinstance(node, Exact) else len(node.rhs))
    return min(numbers)


def reads_others(query: Query) -> bool:
    """Return whether the selection depends on other rows, by a join or a subquery."""
    return not is_plain(query) or any(isinstance(node, Query) for node in expressions_of(query.where))


def selects_alike(query: Query, any_row: bool = False) -> bool:
    """Return whether a query selects the same rows a moment later, if nobody has changed any. It may not if it draws
    lots, as a slice without an order that decides does, and code that is not Django's. ``any_row``: it does not matter
    which row a slice contains, as in EXISTS."""
    if (query.is_sliced and not any_row) or query.extra or query.combinator:
        return False
    nodes = [node for root in (query.where, *query.annotations.values()) for node in expressions_of(root)]
    existing = {id(node.query) for node in nodes if isinstance(node, Exists)}
    return all(
        selects_alike(node, id(node) in existing)
        if isinstance(node, Query)
        else type(node).__module__.startswith("django.")
        and type(node) is not Func
        and not isinstance(node, ExtraWhere | Random | RawSQL)
        for node in nodes
    )


def rows_of(query: Query, using: str) -> QuerySet:
    """Return the rows that a statement is about to change."""
    model: Any = query.model
    inner = query.chain(klass=Query)
    inner.get_initial_alias()
    inner.select_related = inner.select_for_update = False
    inner.clear_ordering(force=True)
    inner.clear_select_clause()
    if is_plain(query):
        return QuerySet(model, query=inner, using=using)
    inner.add_fields([field.name for field in model._meta.pk_fields])
    return QuerySet(model, using=using).filter(pk__in=inner)


def with_states(rows: QuerySet, counters: Sequence[Declaration], key: Sequence[str]) -> QuerySet:
    """Return these columns of rows, then those that say what the rows count for, under names that no field has."""
    columns = {f"counted_column{i}": F(c) if isinstance(c, str) else c for i, c in enumerate(columns_of(counters))}
    return rows.annotate(**columns).values_list(*key, *columns)


def locked(queryset: QuerySet, counters: Sequence[Declaration]) -> dict[Any, RowState]:
    """Lock the selected rows, in the order of their primary keys, and return what they count for."""
    # Column by column, because Django does not convert the values of a whole composite key.
    key = [field.attname for field in queryset.model._meta.pk_fields]
    rows = queryset.select_related(None).order_by("pk").select_for_update()
    first, found = len(key), list(with_states(rows, counters, key))
    states = states_of(counters, [row[first:] for row in found])
    return {row[0] if first == 1 else row[:first]: state for row, state in zip(found, states, strict=True)}


def locked_for_now(query: Query, using: str, counters: Sequence[Declaration]) -> dict[Any, RowState]:
    """Lock the rows that a statement is about to change. While MySQL waits for the lock of a row, what it reads of
    others grows old. So look again until nothing has changed."""
    found, before = locked(rows_of(query, using), counters), None
    if connections[using].vendor == "mysql" and reads_others(query):
        while found.keys() != before:
            found, before = locked(rows_of(query, using), counters), found.keys()
    return found


def locked_by_key(
    model: type[Model], using: str, pks: Sequence[Any], counters: Sequence[Declaration]
) -> dict[Any, RowState]:
    """Do the same for rows given by their primary keys. Missing rows are left out."""
    found: dict[Any, RowState] = {}
    for chunk in chunks(pks, using):
        found |= locked(QuerySet(model, using=using).filter(pk__in=chunk), counters)
    return found


def add_up(states: Iterable[tuple[RowState, int]]) -> Deltas:
    """Add up the deltas of rows, each with a number: how many were added, negative if they were removed."""
    deltas: dict[Declaration, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for state, number in states:
        for counter, member, counts in state:
            if counts and member is not None:
                deltas[counter][member] += number
    return deltas


def difference(before: Iterable[RowState], after: Iterable[RowState] = ()) -> Deltas:
    """Return the deltas of a statement, given all its rows before and after."""
    return add_up([*((state, -1) for state in before), *((state, 1) for state in after)])


def in_doubt(states: Iterable[RowState]) -> dict[Declaration, dict[str, None]]:
    """Return the owners of these rows, who are to be recounted."""
    owners: dict[Declaration, dict[str, None]] = defaultdict(dict)
    for state in states:
        for counter, member, _ in state:
            if member is not None:
                owners[counter][member] = None
    return owners
