"""Which rows count: a Q over a row's own columns, for the database and, where it is simple enough, for Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from django.db import connections
from django.db.models import BooleanField, Case, Field, IntegerField, Model, Q, QuerySet, Value, When
from django.db.models.expressions import Col
from django.db.models.lookups import Exact, IsNull
from django.db.models.sql.where import AND, OR, WhereNode

Predicate = Callable[[Model, str], bool | None]


class Undecidable(Exception):
    """Only the database can say whether the row counts."""


class Condition:
    """``Q`` that says which rows of a model count."""

    def __init__(self, model: type[Model], condition: Q):
        self.model = model
        self.q = condition

    @cached_property
    def where(self) -> WhereNode:
        return QuerySet(self.model).filter(self.q).query.where

    @cached_property
    def flag(self) -> Case | Value:
        """An expression that is 1 for a row that counts and 0 for another."""
        if not self.q:
            return Value(1)
        return Case(When(self.q, then=Value(1)), default=Value(0), output_field=IntegerField())

    @cached_property
    def fields(self) -> frozenset[Field]:
        """The columns the condition reads."""
        return frozenset(e.target for e in self.expressions() if isinstance(e, Col))

    def expressions(self) -> Iterator[Any]:
        """Every node of the condition, outermost first."""
        todo: list[Any] = [self.where]
        while todo:
            node = todo.pop()
            if node is None:
                continue
            yield node
            if hasattr(node, "get_source_expressions"):
                todo.extend(node.get_source_expressions())

    @cached_property
    def _predicate(self) -> Predicate | None:
        try:
            return _compile(self.where)
        except Undecidable:
            return None

    def holds(self, instance: Model, using: str) -> bool | None:
        """Does this row, about to be written or just written as it stands in memory, count? None: ask the database.

        Decided in Python only where database and Python cannot disagree: NULL or not, and equality of booleans and
        integers. Texts, whose equality depends on a collation, are left to the database.
        """
        if self._predicate is None:
            return None
        try:
            return self._predicate(instance, using) is True
        except Undecidable:
            return None


def _compile(node: Any) -> Predicate:
    if isinstance(node, WhereNode):
        return _compile_node(node)
    if isinstance(node, IsNull | Exact) and isinstance(node.lhs, Col):
        field = node.lhs.target
        if isinstance(node, IsNull):
            return lambda row, using: (_value(row, field, using) is None) == node.rhs
        if isinstance(field, BooleanField | IntegerField) and isinstance(node.rhs, int):
            return lambda row, using: None if (v := _value(row, field, using)) is None else v == node.rhs
    raise Undecidable


def _compile_node(node: WhereNode) -> Predicate:
    """Three-valued logic, as in SQL: None is unknown."""
    children = [_compile(child) for child in node.children]
    if node.connector not in (AND, OR):
        raise Undecidable
    if len(children) == 1 and not node.negated:
        return children[0]
    decisive = node.connector == OR

    def evaluate(row: Model, using: str) -> bool | None:
        values = [child(row, using) for child in children]
        if decisive not in values and None in values:
            return None
        return (decisive in values) == (decisive != node.negated)

    return evaluate


def _value(row: Model, field: Field, using: str) -> Any:
    value = row.__dict__.get(field.attname, row)
    if value is row or hasattr(value, "resolve_expression") or field.generated:
        raise Undecidable
    if value is None:
        return None
    return field.get_db_prep_save(value, connections[using]) if not isinstance(value, bool) else value
