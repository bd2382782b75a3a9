"""The rows that a statement changes, and what they add to counts according to the database."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from django.core.exceptions import EmptyResultSet, FullResultSet
from django.db import connections
from django.db.models import F, Model, Q, QuerySet

from ..declaration import Declaration
from ..declaration.condition import OF_OTHER_ROWS, expressions_of, is_lookup_of_django, is_stable
from ..declaration.primary_keys import Pk
from ..internals import OPERATORS, BaseDatabaseWrapper, Col, ColPairs, Exact, In, Param, Query, SQLCompiler
from ..sql.owners import per_statement

Row = tuple[Param, ...]
"""For each counter, the columns of the owner, and the value that the row adds to the count."""

Sums = dict[str | None, tuple[int, int]]
"""What rows add to a count, and their number, by owner key; None if they have no owner."""

MAX_ROWS_IN_MEMORY = 1000
"""Rows that are in memory at a time."""

MAX_NAMED_ROWS = 900
"""Rows that a statement names by their keys. Of composite ones, SQLite takes fewer than a thousand."""


# --------------------------------------------------------------------- queries
def is_of_one_table(query: Query) -> bool:
    """Return whether a query reads only the columns of its own table."""
    return sum(map(bool, query.alias_refcount.values())) <= 1 and not (
        query.distinct or query.combinator or query.group_by or query.annotations or query.extra
    )


def lists_pks(query: Query) -> bool:
    """Return whether the WHERE clause is a list of primary keys, as those of ``save()`` and ``bulk_update()`` are."""
    model: Any = query.model
    lookup: Any = query.where.children[0] if len(query.where.children) == 1 else None
    if not isinstance(lookup, Exact | In) or query.where.negated or hasattr(lookup.rhs, "resolve_expression"):
        return False
    if isinstance(lookup.lhs, ColPairs):  # a composite key, or a relation to one
        targets = [column.target for column in lookup.lhs]
        return type(lookup).__module__ in OPERATORS and targets == model._meta.pk_fields
    return is_lookup_of_django(lookup) and lookup.lhs.target.primary_key


def is_repeatable(query: Query) -> bool:
    """Return whether a query selects the same rows a moment later, if none of them has changed. Joins, and what is not
    known to be stable, may select others; so may an UPDATE of a parent's columns, for which Django first selects the
    keys, at REPEATABLE READ as they were."""
    is_direct = is_of_one_table(query) and not getattr(query, "related_updates", None)
    return is_direct and all(map(is_stable, expressions_of(query.where)))


def name_rows(query: Query, connection: BaseDatabaseWrapper) -> bool:
    """Lock the rows that a query selects, and have it select them by their primary keys, because it may select others a
    moment later, or once they are changed. Returns False if they are too many, or depend on other rows, which MariaDB
    might read as they were."""
    of_others = any(isinstance(node, OF_OTHER_ROWS) for node in expressions_of(query.where))
    if of_others or not is_of_one_table(query):
        return False
    rows = QuerySet[Model](query.model, using=connection.alias).order_by("pk")
    rows.query.where = query.where
    locked = rows.select_for_update(no_key=connection.features.has_select_for_no_key_update)
    pks = list(locked.values_list("pk", flat=True)[: MAX_NAMED_ROWS + 1])
    if len(pks) > MAX_NAMED_ROWS:
        return False
    query.clear_where()
    query.add_q(Q(pk__in=pks))
    return True


# --------------------------------------------------------------------- columns
class Columns:
    """The columns that rows are asked for, compiled once.

    ``pk``      the columns of the primary key, by which rows are locked
    ``sql``     for each counter, the columns of the owner, and the value that a row adds to the count, with ``params``,
                under ``names`` that no other statement has
    ``fields``  their fields, for conversion; None if a column needs none
    """

    def __init__(self, counters: Sequence[Declaration], using: str, model: type[Model]):
        query = Query(model)
        compiler, table = query.get_compiler(using), query.get_initial_alias()
        self.table = connections[using].ops.quote_name(table)
        self.pk = ", ".join(compiler.compile(field.get_col(table))[0] for field in model._meta.pk_fields)
        expressions = [column for c in counters for column in (*map(F, c.owner_attnames), c.condition.value)]
        columns: list[Any] = [expression.resolve_expression(query) for expression in expressions]
        sql, params = zip(*map(compiler.compile, columns), strict=True)
        self.names = [f"counted{number}" for number in range(len(sql))]
        self.sql = ", ".join(map("{} AS {}".format, sql, self.names))
        self.params: tuple[Param, ...] = tuple(chain(*params))
        self.fields: list[Any] = [c if isinstance(c, Col) and compiler.get_converters([c]) else None for c in columns]


columns_of = lru_cache(maxsize=100)(Columns)


def tally(cursor: Any, columns: Columns, compiler: SQLCompiler) -> Tally[Row]:
    """Count the rows that a cursor returns, of each kind. Millions of rows are of few kinds. If a wrapper of another
    package leaves a cursor with other columns, there are none."""
    found = Tally[Row]()
    converters = compiler.get_converters(columns.fields)
    if [name for name, *_ in cursor.description or ()] != columns.names:
        return found
    while rows := cursor.fetchmany(MAX_ROWS_IN_MEMORY):
        found.update(map(tuple, compiler.apply_converters(rows, converters) if converters else rows))
    return found


def sums_of(counters: Iterable[Declaration], rows: Tally[Row]) -> dict[Declaration, Sums]:
    """Return what these rows add to each counter."""
    found: dict[Declaration, Sums] = {counter: {} for counter in counters}
    columns = list(zip(*rows, strict=True))
    for counter, sums in found.items() if rows else ():
        width = len(counter.owner_attnames)
        owner_keys = counter.owner_keys(columns[:width])
        values = columns[width]
        columns = columns[width + 1 :]  # those of the next counter
        for owner_key, value, number in zip(owner_keys, values, rows.values(), strict=True):
            total, so_far = sums.get(owner_key, (0, 0))
            sums[owner_key] = total + number * value, so_far + number
    return found


# ------------------------------------------------------------------------ locks
def lock_rows(query: Query, connection: BaseDatabaseWrapper, counters: tuple[Declaration, ...]) -> Tally[Row]:
    """Lock the rows that a query of one table selects, in the order of their primary keys. Compiling a QuerySet would
    take several times as long as everything else."""
    compiler: Any = connection.ops.compiler("SQLCompiler")(query, connection, connection.alias)
    model: Any = query.model
    ours = columns_of(counters, connection.alias, model)
    try:
        where, params = compiler.compile(query.where)
    except FullResultSet:
        where, params = "1 = 1", ()
    except EmptyResultSet:
        return Tally()
    sql = f"SELECT {ours.sql} FROM {ours.table} WHERE {where} ORDER BY {ours.pk}"
    if connection.features.has_select_for_update:  # as an UPDATE does: others may go on referring to the rows
        sql += f" {connection.ops.for_update_sql(no_key=connection.features.has_select_for_no_key_update)}"
    with connection.cursor() as cursor:
        cursor.execute(sql, (*ours.params, *params))
        return tally(cursor, ours, compiler)


def lock_pks(
    model: type[Model], connection: BaseDatabaseWrapper, pks: Sequence[Pk], counters: tuple[Declaration, ...]
) -> Tally[Row]:
    """Lock the rows with these primary keys that exist."""
    found = Tally[Row]()
    for chunk in per_statement(pks, connection.alias):
        query = QuerySet[Model](model, using=connection.alias).filter(pk__in=chunk).query
        found.update(lock_rows(query, connection, counters))
    return found
