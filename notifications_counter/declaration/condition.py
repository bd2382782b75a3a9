"""Decides which rows count, and what each adds: the database evaluates a condition, and Python one that is simple."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from functools import cached_property
from typing import Any, TypeGuard
from uuid import UUID

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

from ..internals import AND, BaseDatabaseWrapper, Col, WhereNode
from ..models.fields import field_of

NOT_NULL = object()
"""Stands for an unknown value that is not NULL."""

NEVER_NULL = (bool, date, int, str, UUID)
"""Types of values that no field of Django stores as NULL, except an empty text."""

TEXTS = {CharField, SlugField, TextField}
"""Types of fields that store a text as it is given."""


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
    def aggregate(self) -> Aggregate:
        """The count, as an aggregate over the rows that count."""
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
    def _lookups(self) -> list[Any] | None:
        """The comparisons of columns that must all be true, if the condition is nothing else, and Python knows them."""
        found: list[Any] = []
        todo: list[object] = [self.where]
        while todo:
            node = todo.pop()
            if isinstance(node, WhereNode) and node.connector == AND and not node.negated:
                todo += node.children
            elif _is_simple(node):
                found.append(node)
            else:
                return None
        return found

    def value_of(self, values: Mapping[str, object], connection: BaseDatabaseWrapper) -> int | None:
        """Return the number that a row with these values, by attribute name, adds: 0 if it does not count. None if only
        the database can tell, as it must whenever the condition contains OR or NOT."""
        is_known = self._lookups is not None
        for lookup in self._lookups or ():
            name = lookup.lhs.target.attname
            is_true = _is_true(lookup, values[name], connection) if name in values else None
            if is_true is False:
                return 0
            is_known &= is_true is not None
        if not is_known or self.summed is None:
            return 1 if is_known else None
        value = values.get(self.summed.attname, NOT_NULL)
        if connection.vendor == "mysql" or not isinstance(value, int | None):  # it may clip a number
            return None
        return int(value or 0)


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


def _is_simple(node: Any) -> bool:
    """Return whether Python can evaluate a comparison: whether a column is NULL, or equals a boolean, an integer or a
    text."""
    if not isinstance(node, IsNull | Exact) or not is_lookup_of_django(node):
        return False
    field = node.lhs.target
    if isinstance(node, IsNull):
        return True
    if type(field) in TEXTS:
        return _is_text(node.rhs)
    return isinstance(field, BooleanField | IntegerField) and isinstance(node.rhs, int)


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is stored as the text that it equals."""
    return type(value) is str or isinstance(value, TextChoices)


def _is_true(lookup: Any, value: object, connection: BaseDatabaseWrapper) -> bool | None:
    """Return whether such a comparison is true for a row that is given this value. None if only the database can tell:
    the value is an expression, or Django converts it, or the database may cut it, or take different texts for equal."""
    field, other = lookup.lhs.target, lookup.rhs
    if isinstance(lookup, IsNull):
        if value is None:
            return bool(other)
        return not other if value is NOT_NULL or (isinstance(value, NEVER_NULL) and value != "") else None
    if value is None:  # NULL equals nothing
        return False
    if type(field) not in TEXTS:
        return value == other if isinstance(value, int) else None
    if not _is_text(value) or (field.max_length is not None and len(value) > field.max_length):
        return None
    if value != other and (connection.vendor == "mysql" or field.db_collation):
        return None
    return value == other
