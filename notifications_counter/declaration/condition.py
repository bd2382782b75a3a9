"""Decides which rows count, and what each adds. The database evaluates a condition, or Python if it is simple."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cached_property, partial
from typing import TypeGuard

from django.core.exceptions import ValidationError
from django.db import Error
from django.db.models import (
    Aggregate,
    BigIntegerField,
    BooleanField,
    Case,
    CharField,
    Count,
    Field,
    GeneratedField,
    IntegerField,
    Model,
    Q,
    QuerySet,
    SlugField,
    Sum,
    TextChoices,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact, IsNull

from ..internals import AND, OR, BaseDatabaseWrapper, Col, WhereNode
from ..models.fields import field_of

Predicate = Callable[[Mapping[str, object], BaseDatabaseWrapper], bool]

NOT_NULL = object()
"""Stands for an unknown value that is not NULL."""

MISSING = object()

NEVER_NULL = {bool, datetime, int}
"""Types of values that no field of Django stores as NULL, unlike an empty text."""


TEXTS = {CharField, SlugField, TextField}
"""Types of fields that store a text as it is given."""


class Undecidable(Exception):
    """Only the database can tell what a row adds."""


class Condition:
    """A Q over a row's own columns that says which rows of a model count. Each adds 1, or if ``sum`` names an integer
    column, its value there; NULL adds 0."""

    def __init__(self, model: type[Model], condition: Q, sum: str | None = None):
        self.model = model
        self.q = condition
        self.summed = field_of(model, sum) if sum else None

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
    def total(self) -> Aggregate:
        """An aggregate over rows that count: the count."""
        return Sum(self.summed.name, default=0, output_field=BigIntegerField()) if self.summed else Count("pk")

    @cached_property
    def fields(self) -> frozenset[Field]:
        """The columns that decide what a row adds."""
        read = {e.target for e in self.expressions() if isinstance(e, Col)}
        return frozenset({*read, self.summed} if self.summed else read)

    def expressions(self) -> Iterator[object]:
        """Yield every node of the condition, outermost first."""
        return expressions_of(self.where)

    @cached_property
    def _predicate(self) -> Predicate:
        return _compile(self.where)

    def value_of(self, values: Mapping[str, object], connection: BaseDatabaseWrapper) -> int | None:
        """Return the number that a row with these values, by attribute name, adds: 0 if it does not count. None if only
        the database can tell.

        Python decides only where the database cannot differ: whether a value is NULL, and whether booleans, integers or
        texts are equal. Different texts may be equal, depending on a collation.
        """
        try:
            if not self._predicate(values, connection):
                return 0
            return _integer(values, self.summed, connection) if self.summed else 1
        except Undecidable:
            return None


def expressions_of(root: object) -> Iterator[object]:
    """Yield every node of a WHERE clause or of another expression, outermost first."""
    todo: list[object] = [root]
    while todo:
        node = todo.pop()
        if node is None:
            continue
        yield node
        if hasattr(node, "get_source_expressions"):
            todo.extend(node.get_source_expressions())


def is_lookup_of_django(node: object) -> bool:
    """Return whether Django itself compares a column. In another package, ``exact`` may mean anything. A generated
    column changes although nobody sets it."""
    column = getattr(node, "lhs", None)
    is_set = isinstance(column, Col) and not isinstance(column.target, GeneratedField)
    return is_set and type(node).__module__.startswith("django.")


def _compile(node: object, negated: bool = False) -> Predicate:
    """Compile a condition. ``negated``: NOT stands somewhere before it."""
    if isinstance(node, WhereNode) and node.connector in (AND, OR):
        negated, nodes = negated or node.negated, node.children
        if negated:  # Django adds whether values are NULL, which comes first
            nodes = sorted(nodes, key=lambda child: not isinstance(child, IsNull))
        children = [_compile(child, negated) for child in nodes]
        if len(children) == 1 and not node.negated:
            return children[0]
        decide, inverted = any if node.connector == OR else all, node.negated
        return lambda values, connection: decide(child(values, connection) for child in children) != inverted
    if isinstance(node, IsNull | Exact) and is_lookup_of_django(node):
        field, name = node.lhs.target, node.lhs.target.attname
        if isinstance(node, IsNull):
            return partial(_is_null, field, name, node.rhs)
        if isinstance(field, BooleanField | IntegerField) and isinstance(node.rhs, int):
            return partial(_equals, field, node.rhs, negated)
        if type(field) in TEXTS and _is_text(node.rhs):
            return partial(_equals_text, field, node.rhs, negated)
    return _undecidable


def _undecidable(values: Mapping[str, object], connection: BaseDatabaseWrapper) -> bool:
    raise Undecidable


def _is_null(
    field: Field, name: str, expected: bool, values: Mapping[str, object], connection: BaseDatabaseWrapper
) -> bool:
    value = values.get(name, MISSING)
    if value is not None and type(value) not in NEVER_NULL:
        value = _value(values, field, connection)
    return (value is None) == expected


def _equals(
    field: Field, other: int, negated: bool, values: Mapping[str, object], connection: BaseDatabaseWrapper
) -> bool:
    value = _value(values, field, connection)
    if value is NOT_NULL or (value is None and negated):  # NOT NULL is NULL
        raise Undecidable
    return value == other


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is stored as the text that it equals."""
    return type(value) is str or isinstance(value, TextChoices)


def _equals_text(
    field: Field, other: str, negated: bool, values: Mapping[str, object], connection: BaseDatabaseWrapper
) -> bool:
    value = values.get(field.attname, MISSING)
    if value is None and not negated:
        return False
    if not _is_text(value) or (field.max_length is not None and len(value) > field.max_length):  # it may be cut
        raise Undecidable
    if value != other and (connection.vendor == "mysql" or getattr(field, "db_collation", None)):
        raise Undecidable
    return value == other


def _value(values: Mapping[str, object], field: Field, connection: BaseDatabaseWrapper) -> object:
    value = values.get(field.attname, MISSING)
    if value is None or value is NOT_NULL:
        return value
    if value is MISSING or hasattr(value, "resolve_expression"):
        raise Undecidable
    try:
        return field.get_db_prep_save(value, connection)
    except (ArithmeticError, AttributeError, TypeError, ValueError, ValidationError, Error):
        # The statement raises the same error, where the site expects it.
        raise Undecidable from None


def _integer(values: Mapping[str, object], field: Field, connection: BaseDatabaseWrapper) -> int:
    value = values.get(field.attname, MISSING)
    if type(value) is not int:
        value = _value(values, field, connection)
    if isinstance(field, GeneratedField) or not isinstance(value, int | None):
        raise Undecidable
    if value and connection.vendor == "mysql":  # it may clip the number
        low, high = connection.ops.integer_field_range(field.get_internal_type())
        if not low <= value <= high:
            raise Undecidable
    return value or 0
