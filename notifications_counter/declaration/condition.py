"""Decides which rows count, and what each adds: the database evaluates a condition, and Python one that is simple."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cached_property
from types import NoneType
from typing import Any
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
    Subquery,
    Sum,
    TextChoices,
    TextField,
    UUIDField,
    Value,
    When,
)
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce

from ..internals import (
    AND,
    OPERATORS,
    STABLE,
    BaseDatabaseWrapper,
    Col,
    Exact,
    ExtraWhere,
    In,
    IsNull,
    Query,
    WhereNode,
)
from ..models.fields import ExactCharField, field_of, is_converted_by_django, target_of

Facts = dict[str, object]
"""What is known of rows: values by attribute name. A missing attribute is unknown."""

NOT_NULL = object()
"""Stands for an unknown value that is not NULL."""


@dataclass(frozen=True)
class OneOf:
    """Stands for an unknown value that is one of these, or if ``negated``, none of them."""

    values: tuple[object, ...]
    negated: bool


NEVER_NULL = (bool, date, int, str, UUID)
"""Types of values that no field of Django stores as NULL, except an empty text."""

PLAIN = (*NEVER_NULL, bytes, Decimal, float, NoneType, time, timedelta)
"""Types of values that stay as they are, unlike a text that is translated whenever it is used."""

OF_OTHER_ROWS = ExtraWhere | Query | RawSQL | Subquery
"""Types of nodes that depend on other rows, or may do so."""

TEXTS = {CharField, ExactCharField, SlugField, TextField}
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
        if self.summed:
            return Sum(self.summed.name, default=0, output_field=BigIntegerField())
        return Count("*")  # of "pk", not every index would do

    @cached_property
    def fields(self) -> frozenset[Field]:
        """The columns that decide what a row adds."""
        read = {e.target for e in self.expressions() if isinstance(e, Col)}
        return frozenset({*read, self.summed} if self.summed else read)

    def expressions(self) -> Iterator[object]:
        """Yield every node of the condition, outermost first."""
        return expressions_of(self.where)

    @cached_property
    def _wanted(self) -> tuple[list[tuple[Field, bool, str, object]], bool]:
        """What the columns must be, and whether that is the whole condition. Of each, the field at the end of any
        foreign keys, and whether it may be NULL."""
        facts, is_all = facts_of_where(self.where)
        columns = [(field_of(self.model, name), name, fact) for name, fact in facts.items()]
        return [(target_of(field), field.null, name, fact) for field, name, fact in columns], is_all

    def value_of(self, facts: Mapping[str, object], connection: BaseDatabaseWrapper) -> int | None:
        """Return the number that a row with these facts adds: 0 if it does not count. None if only the database can
        tell, as it must whenever the condition contains OR."""
        wanted, is_known = self._wanted
        for field, has_null, name, fact in wanted:
            is_true = None
            if name in facts and ((value := facts[name]) is NOT_NULL or is_kept(field, has_null, value, connection)):
                is_true = _is_true(field, fact, value, connection)
            if is_true is False:
                return 0
            is_known &= is_true is not None
        if not is_known or self.summed is None:
            return 1 if is_known else None
        value = facts.get(self.summed.attname, NOT_NULL)
        if connection.vendor == "mysql" or not isinstance(value, int | None):  # it may clip a number
            return None
        return int(value or 0)


def expressions_of(root: object) -> Iterator[object]:
    """Yield every node of a WHERE clause or of another expression, outermost first."""
    todo: list[object] = [root]
    while todo:
        node = todo.pop()
        yield node
        if hasattr(node, "get_source_expressions"):
            todo.extend(node.get_source_expressions())


def is_stable(node: object) -> bool:
    """Return whether a node of an expression is known to be the same at two moments, if its operands are, and the
    session's settings. What a site or another package defines is not, nor a function whose SQL it replaces."""
    value = getattr(node, "rhs", getattr(node, "value", None))
    if getattr(node, "extra", None) or not (hasattr(value, "resolve_expression") or _is_plain(value)):
        return False
    return type(node) in STABLE or type(node).__module__ in OPERATORS


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if isinstance(value, list | tuple) else isinstance(value, PLAIN)


def is_lookup_of_django(node: object) -> bool:
    """Return whether Django itself compares a column. In another package, ``exact`` may mean anything. A generated
    column changes although nobody sets it."""
    column = getattr(node, "lhs", None)
    is_set = isinstance(column, Col) and not isinstance(column.target, GeneratedField)
    return is_set and type(node).__module__ in OPERATORS


def facts_of_where(where: WhereNode) -> tuple[Facts, bool]:
    """Return the facts about every row that a WHERE clause selects, and whether it says nothing else. It must not have
    joins.

    Only conditions that AND combines at the top apply to every row. A condition on other rows, such as a subquery, says
    nothing, because the database does not check it again after waiting for a lock.
    """
    facts: Facts = {}
    if where.connector != AND or (where.negated and len(where.children) != 1):
        return facts, False
    is_all = True
    for child in where.children:
        if isinstance(child, WhereNode):
            found, is_whole = ({}, False) if where.negated else facts_of_where(child)
        else:
            found, is_whole = _facts_of_lookup(child, where.negated)
        is_all &= is_whole and facts.keys().isdisjoint(found)
        for name, value in found.items():
            if name not in facts or not (value is NOT_NULL or isinstance(value, OneOf)):  # a value says more
                facts[name] = value
    return facts, is_all


def _facts_of_lookup(lookup: Any, negated: bool) -> tuple[Facts, bool]:
    if is_lookup_of_django(lookup):
        field: Field = lookup.lhs.target
        if isinstance(lookup, IsNull):
            return {field.attname: None if lookup.rhs != negated else NOT_NULL}, True
        values = tuple(lookup.rhs) if isinstance(lookup.rhs, list | tuple) else (lookup.rhs,)
        are_stored = is_converted_by_django(field) and all(_is_stored(target_of(field), value) for value in values)
        if isinstance(lookup, Exact) and not negated:
            return {field.attname: lookup.rhs if are_stored else NOT_NULL}, are_stored
        if isinstance(lookup, Exact | In) and are_stored and not (negated and field.null):
            return {field.attname: OneOf(values, negated)}, True
    return {}, False


def _is_stored(field: Field, value: Any) -> bool:
    """Return whether a column stores this value as it is: neither Django converts it, nor does the database cut it."""
    if type(field) in TEXTS:
        is_text = type(value) is str or isinstance(value, TextChoices)
        return is_text and (field.max_length is None or len(value) <= field.max_length)
    if isinstance(field, UUIDField):
        return isinstance(value, UUID)
    return isinstance(field, BooleanField | IntegerField) and isinstance(value, int)


def is_kept(field: Field, has_null: bool, value: object, connection: BaseDatabaseWrapper) -> bool:
    """Return whether a column that is set to this value has it then. A database may cut spaces off a text that is too
    long. MySQL and MariaDB store another value in place of one that they cannot, such as 0 for NULL, if the statement
    is an INSERT IGNORE, or the mode is not strict."""
    if value is None:
        return has_null or connection.vendor != "mysql"
    if isinstance(value, str) and isinstance(field, CharField):
        return field.max_length is None or len(value) <= field.max_length
    if connection.vendor == "mysql" and isinstance(field, IntegerField):
        try:
            least, most = connection.ops.integer_field_range(field.get_internal_type())
            return bool(least <= int(value) <= most)  # type: ignore[call-overload]
        except (ArithmeticError, LookupError, TypeError, ValueError):  # no number, or a field of another package
            return False
    return isinstance(value, PLAIN)


def _is_true(field: Field, wanted: object, value: object, connection: BaseDatabaseWrapper) -> bool | None:
    """Return whether a column with this value is as a condition wants it. None if only the database can tell: the value
    is an expression, or may be stored as another one, or the database may take different texts for equal."""
    if isinstance(wanted, OneOf):
        if value is None and wanted.negated:
            return None
        answers = [_is_true(field, each, value, connection) for each in wanted.values]
        if True not in answers and None in answers:
            return None
        return (True in answers) != wanted.negated
    if value is None:
        return wanted is None
    if wanted in (None, NOT_NULL):
        is_never_null = value is NOT_NULL or (isinstance(value, NEVER_NULL) and value != "")
        return wanted is NOT_NULL if is_never_null else None
    may_equal = isinstance(wanted, str) and (connection.vendor == "mysql" or bool(getattr(field, "db_collation", None)))
    if not _is_stored(field, value) or (value != wanted and may_equal):
        return None
    return value == wanted
