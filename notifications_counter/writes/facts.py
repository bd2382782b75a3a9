"""What a statement says about its rows, before the database is asked: values by attribute name.

A value that is missing is unknown; ``NOT_NULL`` says that there is one. Nothing here is a guess: a fact holds for every
row that the statement touches, also if another session changed the row while the statement waited for its lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import (
    BooleanField,
    DateField,
    DateTimeField,
    Field,
    IntegerField,
    JSONField,
    Model,
    TimeField,
    UUIDField,
    Value,
)
from django.db.models.functions import Now
from django.db.models.lookups import Exact, IsNull

from ..condition import NOT_NULL
from ..declaration import Declaration
from ..internals import AND, Col, DeferredAttribute, WhereNode

Facts = dict[str, Any]
UNKNOWN = object()

PRE_SAVES = {Field.pre_save, DateField.pre_save, DateTimeField.pre_save, TimeField.pre_save}
"""Those that write what the instance holds, or the time."""


class Fate(NamedTuple):
    """Whose the rows are, and whether they count. ``owner`` is UNKNOWN or a member, None for no owner; ``counts`` is
    None where only the database can tell."""

    owner: Any
    counts: bool | None

    @property
    def names_owner(self) -> bool:
        """Is it said whose count the rows are part of, if they are part of any?"""
        return self.counts is False or self.owner is not UNKNOWN

    @property
    def is_known(self) -> bool:
        """Is it said what the rows count for?"""
        return self.counts is not None and self.names_owner

    @property
    def members(self) -> list[str]:
        """The owner whose count the rows may be part of, if there is one."""
        return [] if self.counts is False or self.owner in (UNKNOWN, None) else [self.owner]


def fate(counter: Declaration, facts: Mapping[str, Any], using: str) -> Fate:
    """What rows count for, given what is known about them."""
    owner = facts.get(counter.owner_attname, UNKNOWN)
    if owner is NOT_NULL or hasattr(owner, "resolve_expression"):
        owner = UNKNOWN
    return Fate(owner if owner is UNKNOWN else counter.encode(owner), counter.condition.holds(facts, using))


# ------------------------------------------------------------------------ WHERE
def facts_of_where(where: WhereNode) -> Facts:
    """What the conditions of a query say of each row that it selects, where the query has no joins.

    Only conditions that all rows meet say anything: those that AND combines at the top. A condition on another row,
    such as a subquery's, says nothing, because the database does not look at it again after it has waited for a lock.
    """
    facts: Facts = {}
    if where.connector != AND or (where.negated and len(where.children) != 1):
        return facts
    for child in where.children:
        if not isinstance(child, WhereNode):
            _add(facts, *_fact_of_lookup(child, where.negated))
        elif not where.negated:
            for name, value in facts_of_where(child).items():
                _add(facts, name, value)
    return facts


def _add(facts: Facts, name: str, value: Any) -> None:
    """A value says more than NOT_NULL."""
    if name and (value is not NOT_NULL or name not in facts):
        facts[name] = value


def _fact_of_lookup(lookup: Any, negated: bool) -> tuple[str, Any]:
    column = getattr(lookup, "lhs", None)
    if isinstance(column, Col):
        if isinstance(lookup, IsNull):
            return column.target.attname, None if lookup.rhs != negated else NOT_NULL
        if isinstance(lookup, Exact) and not negated:
            expression = hasattr(lookup.rhs, "resolve_expression")
            return column.target.attname, lookup.rhs if not expression and _is_identity(column.target) else NOT_NULL
    return "", None


def _is_identity(field: Any) -> bool:
    """Are values that the database calls equal the same? Whether texts are depends on their collation."""
    while field.remote_field:
        field = field.target_field
    return isinstance(field, BooleanField | IntegerField | UUIDField)


# -------------------------------------------------------------------------- SET
def facts_after(facts: Facts, values: Iterable[tuple[Any, Any, Any]]) -> Facts:
    """What is known of the rows once an UPDATE has set these (field, model, value)."""
    after = dict(facts)
    for field, _, value in values:
        known = _fact_of_value(field, value)
        if known is UNKNOWN:
            after.pop(field.attname, None)
        else:
            after[field.attname] = known
    return after


def _fact_of_value(field: Any, value: Any) -> Any:
    # The null of JSON is not NULL. Other values of a Value are not made to fit: the database rounds 1.5.
    if type(value) is Value and not isinstance(field, JSONField) and isinstance(value.value, int | UUID | None):
        value = value.value
    if isinstance(value, Now):
        return NOT_NULL
    if hasattr(value, "resolve_expression"):
        return UNKNOWN
    if isinstance(value, Model):
        return value.prepare_database_save(field) if field.remote_field else UNKNOWN
    return value


# ----------------------------------------------------------------------- INSERT
class Inserted:
    """The values that an INSERT will write, as far as its instances show them."""

    def __init__(self, model: type[Model], fields: Iterable[Field], written: Collection[Field], raw: bool):
        """Of these ``fields``, given the fields that are ``written``, ``raw`` if as they are."""
        names = {field.attname for field in written}
        meddled = any(type(field).pre_save not in PRE_SAVES for field in written)  # and may set other attributes
        self._known: list[str] = []
        self._made: Facts = {}
        self._hidden = False
        for field in fields:
            how = _how_written(model, field.attname) if field.attname in names and not meddled else "hidden"
            if how == "as it is" or (how == "now" and raw):
                self._known.append(field.attname)
            elif how == "now":
                self._made[field.attname] = NOT_NULL
            else:
                self._hidden = True

    def facts(self, instance: Model) -> Mapping[str, Any]:
        """Of one row."""
        values = instance.__dict__
        if not self._made and not self._hidden:
            return values
        return {name: values[name] for name in self._known if name in values} | self._made


@lru_cache(maxsize=1000)
def _how_written(model: type[Model], attname: str) -> str:
    """Is what an instance holds in its ``__dict__`` what an INSERT writes? Not if a descriptor or ``pre_save()`` of
    somebody else stands in between."""
    field: Any = model._meta.get_field(attname)
    descriptor = getattr(model, attname, None)
    plain = isinstance(descriptor, DeferredAttribute) and type(descriptor).__get__ is DeferredAttribute.__get__
    if not plain or type(field).pre_save not in PRE_SAVES:
        return "hidden"
    return "now" if getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False) else "as it is"
