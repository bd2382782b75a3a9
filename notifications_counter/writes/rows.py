"""The rows that a statement changes, and what they add to counts according to the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain, compress
from math import inf
from typing import Any

from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import connections
from django.db.models import Exists, F, Func, Model, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Random
from django.db.models.lookups import Exact, In

from ..buffer.commands import chunked
from ..declaration import Declaration
from ..declaration.condition import expressions_of, is_lookup_of_django
from ..internals import AND, Col, ExtraWhere, Query, WhereNode

Row = Sequence[Any]
"""For each counter, the columns of the owner, and the value that the row adds to the count."""

Rows = dict[Any, Row]
"""Rows by primary key."""

MOST_KEYS = 100_000
"""How many primary keys a statement may list. With many more, it is larger than a packet that MariaDB accepts."""


# --------------------------------------------------------------------- queries
def is_plain(query: Query) -> bool:
    """Return whether a query reads only the columns of its own table."""
    return sum(map(bool, query.alias_refcount.values())) <= 1 and not (
        query.distinct or query.combinator or query.group_by or query.annotations or query.extra
    )


def max_rows(query: Query) -> float:
    """Return the most rows that a query can select: as many as the primary keys that its WHERE clause names, as those
    of ``save()`` and ``delete()`` do, or infinity."""
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


def is_repeatable(query: Query, any_row: bool = False) -> bool:
    """Return whether a query selects the same rows a moment later, if none has changed. Random functions, slices with
    an ambiguous order, and code that is not Django's may select others. ``any_row``: which rows a slice contains does
    not matter, as in EXISTS."""
    if (query.is_sliced and not any_row) or query.extra or query.combinator:
        return False
    nodes = [node for root in (query.where, *query.annotations.values()) for node in expressions_of(root)]
    existing = {id(node.query) for node in nodes if isinstance(node, Exists)}
    return all(
        is_repeatable(node, id(node) in existing)
        if isinstance(node, Query)
        else type(node).__module__.startswith("django.")
        and type(node) is not Func
        and not isinstance(node, ExtraWhere | Random | RawSQL)
        for node in nodes
    )


def keeps_to(found: Collection[Any], query: Any, connection: Any, is_stock: bool) -> bool:
    """Return whether a statement changes only rows that were locked for it, unless it changes more.

    It may find others a moment later: on MySQL, by joins and subqueries; where Django itself selects the rows of an
    UPDATE first; and rows with the listed primary keys, which were not there before. Then have it select the locked
    rows by primary key, unless there are too many.
    """
    can_differ = connection.vendor == "mysql" and reads_others(query)
    if is_repeatable(query) and not can_differ and not getattr(query, "related_updates", None):
        if len(found) < max_rows(query) < inf and is_stock:
            query.add_filter("pk__in", list(found))
        return True
    if connection.vendor == "sqlite" or not is_stock or len(found) > MOST_KEYS:
        return False
    query.where = WhereNode()
    query.add_filter("pk__in", list(found))
    return True


# --------------------------------------------------------------------- columns
class Columns:
    """For each counter, the columns of the owner and of the value that a row adds to the count, compiled once.

    ``keys``    the columns of the primary key
    ``sql``     the columns of the counters, with ``params``
    ``owners``  the names that the owners' columns get in RETURNING
    ``sums``    all names, with SUM around the values, for GROUP BY ``owners``

    ``key_fields`` and ``fields`` are the fields of ``keys`` and ``sql``, for conversion.
    """

    def __init__(self, counters: Sequence[Declaration], using: str, model: type[Model], alias: str):
        query, quote = Query(model), connections[using].ops.quote_name
        compiler, table = query.get_compiler(using), query.get_initial_alias()
        self.table = quote(table) if alias in ("", table) else f"{quote(table)} {quote(alias)}"
        keys: list[Any] = [field.get_col(table) for field in model._meta.pk_fields]
        columns: list[Any] = [column for c in counters for column in (*map(F, c.owner_attnames), c.condition.value)]
        columns = [column.resolve_expression(query) for column in columns]
        columns = [column.relabeled_clone({table: alias or table}) for column in (*keys, *columns)]
        sql, params = zip(*map(compiler.compile, columns), strict=True)
        # Values need no conversion.
        fields = [c if isinstance(c, Col) and compiler.get_converters([c]) else None for c in columns]
        self.keys, self.sql = sql[: len(keys)], sql[len(keys) :]
        self.key_fields, self.fields = fields[: len(keys)], fields[len(keys) :]
        self.params: tuple[Any, ...] = tuple(chain(*params))
        names = [f"c{i}" for i in range(len(self.sql))]
        owns = [isinstance(column, Col) for column in columns[len(keys) :]]
        self.aliased = ", ".join(f"{column} AS {name}" for column, name in zip(self.sql, names, strict=True))
        self.owners = ", ".join(compress(names, owns))
        self.sums = ", ".join(n if owned else f"COALESCE(SUM({n}), 0)" for n, owned in zip(names, owns, strict=True))

    def select(self, where: str, params: Iterable[Any]) -> tuple[str, tuple[Any, ...]]:
        """Return a SELECT of primary key and columns, in the order of the key. Compiling it from a QuerySet would take
        several times as long as everything else."""
        keys = ", ".join(self.keys)
        select = f"SELECT {keys}, {', '.join(self.sql)} FROM {self.table} WHERE {where} ORDER BY {keys}"
        return select, (*self.params, *params)


@lru_cache(maxsize=100)
def columns_of(counters: tuple[Declaration, ...], using: str, model: type[Model], alias: str = "") -> Columns:
    """Return the columns of counters of a model's table. ``alias``: of the table in the statement."""
    return Columns(counters, using, model, alias)


def by_key(rows: Iterable[tuple[Any, ...]], keys: int) -> Rows:
    """Return rows by their primary key, of which they begin with so many columns."""
    return {row[0] if keys == 1 else row[:keys]: row[keys:] for row in rows}


def convert(rows: Iterable[Row], fields: Sequence[Any], compiler: Any) -> Iterable[Row]:
    """Convert rows of these fields, as the database returned them. None: the column needs no conversion."""
    converters = compiler.get_converters(fields)
    return compiler.apply_converters(rows, converters) if converters else rows


# ------------------------------------------------------------------------ locks
def chunks(items: Sequence[Any], using: str) -> Sequence[Sequence[Any]]:
    """Return items in chunks that fit into the parameters of one statement."""
    size = min(connections[using].features.max_query_params or 5000, 5000) * 9 // 10
    if items and isinstance(items[0], tuple):  # a composite primary key
        size //= len(items[0])
    return chunked(items, size)


def lock_rows(query: Query, connection: Any, counters: tuple[Declaration, ...], no_key: bool = False) -> Rows:
    """Lock the rows that a statement is about to change, in the order of their primary keys. ``no_key``: it does not
    change these. While MySQL waits for the lock of a row, what it has read of other rows gets old, so repeat this until
    nothing has changed."""
    found, before = _lock(query, connection, counters, no_key), None
    if connection.vendor == "mysql" and reads_others(query):
        while found.keys() != before:
            found, before = _lock(query, connection, counters, no_key), found.keys()
    return found


def rows_by_key(model: type[Model], connection: Any, pks: Sequence[Any], counters: tuple[Declaration, ...]) -> Rows:
    """Return, and lock, the rows with these primary keys that exist."""
    found: Rows = {}
    for chunk in chunks(pks, connection.alias):
        found |= _lock(QuerySet(model, using=connection.alias).filter(pk__in=chunk).query, connection, counters)
    return found


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


def _lock(query: Query, connection: Any, counters: tuple[Declaration, ...], no_key: bool = False) -> Rows:
    using, features = connection.alias, connection.features
    selected = query if is_plain(query) else rows_of(query, using).query
    compiler = connection.ops.compiler("SQLCompiler")(selected, connection, using)
    ours = columns_of(counters, using, query.model, selected.get_initial_alias())
    try:
        where, params = compiler.compile(selected.where)
    except FullResultSet:
        where, params = "1 = 1", ()
    except EmptyResultSet:
        return {}
    sql, params = ours.select(where, params)
    if features.has_select_for_update:
        no_key = no_key and features.has_select_for_no_key_update
        sql += f" {connection.ops.for_update_sql(no_key=no_key)}"
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        rows = convert(cursor.fetchall(), [*ours.key_fields, *ours.fields], compiler)
    return by_key(map(tuple, rows), len(ours.keys))
