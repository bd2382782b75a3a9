"""Which rows the query of a statement selects."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Any

from django.core.exceptions import FullResultSet
from django.db.models import Exists, Func, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Random
from django.db.models.lookups import Exact, In

from ..declaration.condition import expressions_of, is_lookup_of_django
from ..internals import AND, ExtraWhere, Query, WhereNode

MOST_KEYS = 100_000
"""How many primary keys a statement may list. With many more, it is larger than a packet that MariaDB accepts."""


def is_plain(query: Query) -> bool:
    """Return whether a query reads only the columns of its own table."""
    return sum(map(bool, query.alias_refcount.values())) <= 1 and not (
        query.distinct or query.combinator or query.group_by or query.annotations or query.extra
    )


def max_rows(query: Query) -> float:
    """Return the most rows that a query can select: as many as the primary keys that its WHERE clause names, or
    infinity."""
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


def keeps_to(found: Collection[Any], query: Any, connection: Any) -> bool:
    """Return whether a statement changes the rows that were locked for it, if it changes as many. On MySQL, others can
    still change what its joins and subqueries read, so have it select the rows by primary key, unless there are too
    many."""
    is_mysql = connection.vendor == "mysql"
    if is_repeatable(query) and not (is_mysql and reads_others(query)):
        return True
    if not is_mysql or len(found) > MOST_KEYS:
        return False
    query.where = WhereNode()
    query.add_filter("pk__in", list(found))
    return True


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


def select_compiler(query: Query, connection: Any) -> Any:
    """Return a compiler for a SELECT of the rows that a statement is about to change. Its condition reads other tables
    only in subqueries."""
    selected = query if is_plain(query) else rows_of(query, connection.alias).query
    return connection.ops.compiler("SQLCompiler")(selected, connection, connection.alias)


def where_of(compiler: Any) -> tuple[str, Sequence[Any]]:
    """Return the condition of a query, as SQL and parameters. EmptyResultSet if no row can satisfy it."""
    try:
        return compiler.compile(compiler.query.where)
    except FullResultSet:
        return "1 = 1", ()
