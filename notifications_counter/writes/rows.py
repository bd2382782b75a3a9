"""What rows add to counts according to the database, and how a statement has changed that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from math import inf
from operator import mul
from typing import Any, NamedTuple

from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import connections
from django.db.models import Exists, Func, Model, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Random
from django.db.models.lookups import Exact, In

from ..buffer.commands import chunked
from ..buffer.types import Delta
from ..declaration import Declaration
from ..declaration.condition import expressions_of, is_lookup_of_django
from ..internals import AND, ExtraWhere, Query, WhereNode
from .columns import Row, columns_of, convert

Deltas = Mapping[Declaration, Mapping[str, Delta]]
"""How much the counts of owners change; None if they are to be recounted."""


class Change(NamedTuple):
    """The deltas of a statement. In the counters ``everyone_of``, it may have changed anyone's count."""

    deltas: Deltas
    everyone_of: Sequence[Declaration] = ()


def chunks(items: Sequence[Any], using: str) -> Sequence[Sequence[Any]]:
    """Return items in chunks that fit into the parameters of one statement."""
    size = min(connections[using].features.max_query_params or 5000, 5000) * 9 // 10
    if items and isinstance(items[0], tuple):  # a composite primary key
        size //= len(items[0])
    return chunked(items, size)


def is_plain(query: Query) -> bool:
    """Return whether a query reads only the columns of its own table."""
    return sum(map(bool, query.alias_refcount.values())) <= 1 and not (
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


def selecting(query: Query, connection: Any) -> Any:
    """Return the compiler of a query for the rows that a statement is about to change. Its condition reads no other
    table, except in subqueries."""
    selected = query if is_plain(query) else rows_of(query, connection.alias).query
    return connection.ops.compiler("SQLCompiler")(selected, connection, connection.alias)


def where_of(compiler: Any) -> tuple[str, Sequence[Any]]:
    """Return the condition of a query. EmptyResultSet if no row can satisfy it."""
    try:
        return compiler.compile(compiler.query.where)
    except FullResultSet:
        return "1 = 1", ()


def locked(query: Query, connection: Any, counters: tuple[Declaration, ...]) -> dict[Any, Row]:
    """Lock the rows that a query selects, in the order of their primary keys. Returns owners and values, by key."""
    compiler = selecting(query, connection)
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


def locked_for_now(query: Query, connection: Any, counters: tuple[Declaration, ...]) -> dict[Any, Row]:
    """Lock the rows that a statement is about to change. While MySQL waits for the lock of a row, what it reads of
    others grows old. So look again until nothing has changed."""
    found, before = locked(query, connection, counters), None
    if connection.vendor == "mysql" and reads_others(query):
        while found.keys() != before:
            found, before = locked(query, connection, counters), found.keys()
    return found


def keeps_to(found: Iterable[Any], query: Any, connection: Any) -> bool:
    """Return whether a statement changes the rows that were found for it, if their number is the same. On MySQL, have
    it select them by key if others could change what its joins and subqueries read, of which nothing is locked."""
    is_mysql = connection.vendor == "mysql"
    if selects_alike(query) and not (is_mysql and reads_others(query)):
        return True
    if is_mysql:
        query.where = WhereNode()
        query.add_filter("pk__in", list(found))
    return is_mysql


def locked_by_key(
    model: type[Model], connection: Any, pks: Sequence[Any], counters: tuple[Declaration, ...]
) -> dict[Any, Row]:
    """Do the same for rows given by their primary keys. Missing rows are left out."""
    found: dict[Any, Row] = {}
    for chunk in chunks(pks, connection.alias):
        found |= locked(QuerySet(model, using=connection.alias).filter(pk__in=chunk).query, connection, counters)
    return found


def grouped(rows: Iterable[Row]) -> list[Row]:
    """Return the different rows, each followed by how many there are, as with GROUP BY."""
    return [(*row, number) for row, number in Counter(map(tuple, rows)).items()]


def keys_of(
    counters: Iterable[Declaration], columns: Iterable[Sequence[Any]]
) -> Iterator[tuple[Declaration, Sequence[Any], Sequence[Any]]]:
    """Yield for each counter the owner's key in each row, and what the row adds."""
    columns = iter(columns)
    for counter in counters:
        keys = [next(columns, ()) for _ in counter.owner_attnames]
        yield counter, list(zip(*keys, strict=True)) if counter.has_several_columns else keys[0], next(columns, ())


class Sums(dict[Declaration, dict[str, int]]):
    """How much the counts of owners change, added up."""

    def __init__(self, counters: Iterable[Declaration]):
        super().__init__((counter, {}) for counter in counters)

    def add(self, counter: Declaration, owner_keys: Sequence[str | None], numbers: Sequence[int]) -> None:
        """Add to the counts of these owners."""
        sums: dict[Any, int] = self[counter]
        added = {**sums, **dict(zip(owner_keys, numbers, strict=True))}
        if len(added) < len(sums) + len(owner_keys):  # somebody twice; to do so for each owner takes much longer
            added = sums
            for owner_key, number in zip(owner_keys, numbers, strict=True):
                added[owner_key] = added.get(owner_key, 0) + number
        added.pop(None, None)
        self[counter] = added

    def add_columns(self, columns: Iterable[Sequence[Any]], numbers: Sequence[int]) -> None:
        """Add so many rows of each kind, given the columns of all kinds."""
        for counter, keys, values in keys_of(self, columns):
            added = list(map(int, map(mul, values, numbers)))  # a sum of PostgreSQL may be a Decimal
            self.add(counter, counter.encode_all(list(compress(keys, added))), list(filter(None, added)))


def difference(counters: Iterable[Declaration], before: Iterable[Row] = (), after: Iterable[Row] = ()) -> Deltas:
    """Return the deltas of a statement, given all its rows before and after."""
    sums, were, are = Sums(counters), Counter(map(tuple, before)), Counter(map(tuple, after))
    sums.add_columns(zip(*were, strict=True), [-number for number in were.values()])
    sums.add_columns(zip(*are, strict=True), list(are.values()))
    return sums


def unknown(counters: Iterable[Declaration], rows: Iterable[Row]) -> dict[Declaration, dict[str, None]]:
    """Return the owners of these rows, who are to be recounted."""
    return {
        counter: dict.fromkeys(owner_key for owner_key in counter.encode_all(keys) if owner_key is not None)
        for counter, keys, _ in keys_of(counters, zip(*rows, strict=True))
    }
