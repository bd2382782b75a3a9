"""Which rows count: a Q over a row's own columns, evaluated by the database, or in Python if it is simple enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from django.core.exceptions import ValidationError
from django.db import Error
from django.db.models import BooleanField, Case, Field, IntegerField, Model, Q, QuerySet, Value, When
from django.db.models.lookups import Exact, IsNull

from ..internals import AND, OR, Col, WhereNode

Predicate = Callable[[Mapping[str, Any], Any], bool | None]

NOT_NULL = object()
"""Stands for a value that is not NULL and otherwise unknown."""

MISSING = object()


class Undecidable(Exception):
    """Only the database can say whether the row counts."""


class Condition:
    """A Q that says which rows of a model count."""

    def __init__(self, model: type[Model], condition: Q):
        self.model = model
        self.q = condition

    @cached_property
    def where(self) -> WhereNode:
        return QuerySet(self.model).filter(self.q).query.where

    @cached_property
    def flag(self) -> Case | Value:
        """An expression that is 1 for a row that counts, and otherwise 0."""
        if not self.q:
            return Value(1)
        return Case(When(self.q, then=Value(1)), default=Value(0), output_field=IntegerField())

    @cached_property
    def fields(self) -> frozenset[Field]:
        """The columns that the condition reads."""
        return frozenset(e.target for e in self.expressions() if isinstance(e, Col))

    def expressions(self) -> Iterator[Any]:
        """Yield every node of the condition, outermost first."""
        return expressions_of(self.where)

    @cached_property
    def _predicate(self) -> Predicate:
        return _compile(self.where)

    def holds(self, values: Mapping[str, Any], connection: Any) -> bool | None:
        """Return whether a row with these values, by attribute name, counts. None if only the database can tell.

        Python decides only what the database cannot see differently: whether a value is NULL, and the equality of
        booleans and integers. The equality of texts depends on a collation.
        """
        try:
            return self._predicate(values, connection) is True
        except Undecidable:
            return None


def expressions_of(root: Any) -> Iterator[Any]:
    """Yield every node of a WHERE clause or of another expression, outermost first."""
    todo: list[Any] = [root]
    while todo:
        node = todo.pop()
        if node is None:
            continue
        yield node
        if hasattr(node, "get_source_expressions"):
            todo.extend(node.get_source_expressions())


def is_lookup_of_django(node: Any) -> bool:
    """Return whether Django itself compares a column. A lookup of another package may mean anything by ``exact``."""
    return type(node).__module__.startswith("django.") and isinstance(getattr(node, "lhs", None), Col)


def _compile(node: Any) -> Predicate:
    if isinstance(node, WhereNode) and node.connector in (AND, OR):
        return _compile_node(node)
    if isinstance(node, IsNull | Exact) and is_lookup_of_django(node) and not node.lhs.target.generated:
        field = node.lhs.target
        if isinstance(node, IsNull):
            return lambda values, connection: (_value(values, field, connection) is None) == node.rhs
        if isinstance(field, BooleanField | IntegerField) and isinstance(node.rhs, int):
            return lambda values, connection: _equals(_value(values, field, connection), node.rhs)
    return _undecidable


def _undecidable(values: Mapping[str, Any], connection: Any) -> bool | None:
    raise Undecidable


def _compile_node(node: WhereNode) -> Predicate:
    """Compile AND and OR with three-valued logic, as in SQL: None is unknown."""
    children = [_compile(child) for child in node.children]
    if len(children) == 1 and not node.negated:
        return children[0]
    decisive = node.connector == OR

    def evaluate(values: Mapping[str, Any], connection: Any) -> bool | None:
        results, undecided = [], False
        for child in children:
            try:
                results.append(child(values, connection))
            except Undecidable:  # another child may be decisive
                undecided = True
        if decisive not in results:
            if undecided:
                raise Undecidable
            if None in results:
                return None
        return (decisive in results) == (decisive != node.negated)

    return evaluate


def _value(values: Mapping[str, Any], field: Field, connection: Any) -> Any:
    value = values.get(field.attname, MISSING)
    if value is None or value is NOT_NULL or (isinstance(value, bool) and type(field) is BooleanField):
        return value
    if value is MISSING or hasattr(value, "resolve_expression"):
        raise Undecidable
    try:
        return field.get_db_prep_save(value, connection)
    except (ArithmeticError, AttributeError, TypeError, ValueError, ValidationError, Error):
        # The statement will raise the same error, where the site expects it.
        raise Undecidable from None


def _equals(value: Any, other: int) -> bool | None:
    if value is NOT_NULL:
        raise Undecidable
    return None if value is None else value == other
