"""Decides which rows count, and what each adds. The database evaluates a condition, or Python if it is simple."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from django.core.exceptions import ValidationError
from django.db import Error
from django.db.models import (
    BigIntegerField,
    BooleanField,
    Case,
    Count,
    Field,
    GeneratedField,
    IntegerField,
    Model,
    Q,
    QuerySet,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact, IsNull

from ..internals import AND, OR, Col, WhereNode

Predicate = Callable[[Mapping[str, Any], Any], bool | None]

NOT_NULL = object()
"""Stands for an unknown value that is not NULL."""

MISSING = object()

NEVER_NULL = {bool, datetime, int}
"""Types of values that no field of Django stores as NULL, unlike an empty text."""


class Undecidable(Exception):
    """Only the database can tell what a row adds."""


class Condition:
    """A Q over a row's own columns that says which rows of a model count. Each adds 1, or if ``sum`` names an integer
    column, its value there; NULL adds 0."""

    def __init__(self, model: type[Model], condition: Q, sum: str | None = None):
        self.model = model
        self.q = condition
        self.summed: Any = sum and model._meta.get_field(sum)

    @cached_property
    def where(self) -> WhereNode:
        return QuerySet(self.model).filter(self.q).query.where

    @cached_property
    def value(self) -> Case | Coalesce | Value:
        """An expression for the number that a row adds: 0 if it does not count."""
        added = Coalesce(self.summed.name, 0) if self.summed else Value(1)
        if not self.q:
            return added
        return Case(When(self.q, then=added), default=Value(0), output_field=IntegerField())

    @cached_property
    def total(self) -> Any:
        """An aggregate over rows that count: the count."""
        return Sum(self.summed.name, default=0, output_field=BigIntegerField()) if self.summed else Count("pk")

    @cached_property
    def fields(self) -> frozenset[Field]:
        """The columns that decide what a row adds."""
        read = {e.target for e in self.expressions() if isinstance(e, Col)}
        return frozenset({*read, self.summed} if self.summed else read)

    def expressions(self) -> Iterator[Any]:
        """Yield every node of the condition, outermost first."""
        return expressions_of(self.where)

    @cached_property
    def _predicate(self) -> Predicate:
        return _compile(self.where)

    def value_of(self, values: Mapping[str, Any], connection: Any) -> int | None:
        """Return the number that a row with these values, by attribute name, adds: 0 if it does not count. None if only
        the database can tell.

        Python decides only where the database cannot differ: whether a value is NULL, and whether booleans or integers
        are equal. The equality of texts depends on a collation.
        """
        try:
            if self._predicate(values, connection) is not True:
                return 0
            return _integer(values, self.summed, connection) if self.summed else 1
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
    """Return whether Django itself compares a column. In another package, ``exact`` may mean anything. A generated
    column changes although nobody sets it."""
    column = getattr(node, "lhs", None)
    is_set = isinstance(column, Col) and not isinstance(column.target, GeneratedField)
    return is_set and type(node).__module__.startswith("django.")


def _compile(node: Any) -> Predicate:
    if isinstance(node, WhereNode) and node.connector in (AND, OR):
        return _compile_node(node)
    if isinstance(node, IsNull | Exact) and is_lookup_of_django(node):
        field, name = node.lhs.target, node.lhs.target.attname
        if isinstance(node, IsNull):
            return partial(_is_null, field, name, node.rhs)
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


def _is_null(field: Any, name: str, expected: bool, values: Mapping[str, Any], connection: Any) -> bool:
    value = values.get(name, MISSING)
    if value is not None and type(value) not in NEVER_NULL:
        value = _value(values, field, connection)
    return (value is None) == expected


def _value(values: Mapping[str, Any], field: Field, connection: Any) -> Any:
    value = values.get(field.attname, MISSING)
    if value is None or value is NOT_NULL or (isinstance(value, bool) and type(field) is BooleanField):
        return value
    if value is MISSING or hasattr(value, "resolve_expression"):
        raise Undecidable
    try:
        return field.get_db_prep_save(value, connection)
    except (ArithmeticError, AttributeError, TypeError, ValueError, ValidationError, Error):
        # The statement raises the same error, where the site expects it.
        raise Undecidable from None


def _integer(values: Mapping[str, Any], field: Any, connection: Any) -> int:
    value = values.get(field.attname, MISSING)
    if type(value) is not int:
        value = _value(values, field, connection)
    if value is NOT_NULL or isinstance(field, GeneratedField):
        raise Undecidable
    if value and connection.vendor == "mysql":  # it may clip the number
        low, high = connection.ops.integer_field_range(field.get_internal_type())
        if not low <= value <= high:
            raise Undecidable
    return value or 0


def _equals(value: Any, other: int) -> bool | None:
    if value is NOT_NULL:
        raise Undecidable
    return None if value is None else value == other
