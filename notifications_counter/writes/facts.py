"""What a statement says about its rows, without asking the database.

Facts are values by attribute name. A missing attribute is unknown. ``NOT_NULL`` means that the value is not NULL, and
otherwise unknown. A fact holds for every row of the statement, even if another session changed the row while the
statement waited for its lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import models
from django.db.models.functions import Now
from django.db.models.lookups import Exact, IsNull

from ..declaration import Declaration
from ..declaration.condition import NOT_NULL, is_lookup_of_django
from ..internals import AND, BaseDatabaseWrapper, DeferredAttribute, WhereNode
from ..models.fields import ExactCharField, field_of, is_converted_by_django, target_of

Facts = dict[str, object]
UNKNOWN = object()

PRE_SAVES = {models.Field.pre_save, models.DateField.pre_save, models.DateTimeField.pre_save, models.TimeField.pre_save}
"""Methods that write the value of the instance, or the current time."""


class Contribution(NamedTuple):
    """What each row of a statement contributes to a counter, as far as the statement says.

    ``owner``  an owner key; None if the rows have no owner; or UNKNOWN
    ``value``  what a row adds to the count, 0 if it does not count; None if only the database can tell
    """

    owner: Any
    value: int | None

    @property
    def names_owner(self) -> bool:
        """Whether it says whose count the rows are part of, if they count at all."""
        return self.value == 0 or self.owner is not UNKNOWN


def contribution(counter: Declaration, facts: Mapping[str, object], connection: BaseDatabaseWrapper) -> Contribution:
    """Return what rows contribute according to these facts."""
    names = counter.owner_attnames
    owner = facts.get(names[0], UNKNOWN)
    if type(owner) is int and len(names) == 1:
        owner = str(owner)
    else:
        values = [facts.get(name, UNKNOWN) for name in names]
        if None in values:
            owner = None
        elif any(map(_is_uncertain, counter.key_fields, values)):
            owner = UNKNOWN
        else:
            (owner,) = counter.encode([[value] for value in values])
    return Contribution(owner, counter.condition.value_of(facts, connection))


def _is_uncertain(field: models.Field, value: object) -> bool:
    """Return whether the column may hold another value. A database may cut spaces off a text that is too long."""
    if isinstance(value, str):
        return isinstance(field, models.CharField) and field.max_length is not None and len(value) > field.max_length
    return value is UNKNOWN or value is NOT_NULL or hasattr(value, "resolve_expression")


# ------------------------------------------------------------------------ WHERE
def facts_of_where(where: WhereNode) -> Facts:
    """Return the facts about every row that a WHERE clause selects. The query must not have joins.

    Only conditions that AND combines at the top apply to every row. A condition on other rows, such as a subquery, says
    nothing, because the database does not check it again after waiting for a lock.
    """
    facts: Facts = {}
    if where.connector != AND or (where.negated and len(where.children) != 1):
        return facts
    for child in where.children:
        if isinstance(child, WhereNode):
            found = {} if where.negated else facts_of_where(child)
        else:
            found = _facts_of_lookup(child, where.negated)
        for name, value in found.items():
            if value is not NOT_NULL or name not in facts:  # a value says more
                facts[name] = value
    return facts


def _facts_of_lookup(lookup: Any, negated: bool) -> Facts:
    if is_lookup_of_django(lookup):
        field: models.Field = lookup.lhs.target
        if isinstance(lookup, IsNull):
            return {field.attname: None if lookup.rhs != negated else NOT_NULL}
        if isinstance(lookup, Exact) and not negated:
            # Equal texts may differ, depending on their collation.
            exact = models.BooleanField | ExactCharField | models.IntegerField | models.UUIDField
            is_identity = isinstance(target_of(field), exact) and is_converted_by_django(field)
            is_value = is_identity and not hasattr(lookup.rhs, "resolve_expression")
            return {field.attname: lookup.rhs if is_value else NOT_NULL}
    return {}


# -------------------------------------------------------------------------- SET
def facts_after(facts: Facts, values: Iterable[tuple[models.Field, object, object]]) -> Facts:
    """Return the facts after an UPDATE has set these (field, model, value)."""
    after = dict(facts)
    for field, _, value in values:
        if not is_converted_by_django(field):
            value = UNKNOWN
        elif isinstance(value, Now):
            value = NOT_NULL
        elif hasattr(value, "resolve_expression") or (isinstance(value, models.Model) and not field.remote_field):
            value = UNKNOWN
        elif isinstance(value, models.Model):
            value = value.prepare_database_save(field)
        after[field.attname] = value
    return {name: value for name, value in after.items() if value is not UNKNOWN}


# ----------------------------------------------------------------------- INSERT
class Inserted:
    """What the instances of an INSERT of these fields say about a counter. ``raw``: ``pre_save()`` is skipped."""

    def __init__(self, model: type[models.Model], counter: Declaration, written: Iterable[str], raw: bool):
        fields = {name: field_of(model, name) for name in written}
        self._in_instance: list[str] = []  # whose values are in the instance's __dict__
        self._by_clock: Facts = {}
        names = {field.attname for field in counter.columns}
        for name in names & fields.keys() if not any(map(sets_others, fields.values())) else ():
            field, descriptor = fields[name], getattr(model, name, None)
            plain = isinstance(descriptor, DeferredAttribute) and type(descriptor).__get__ is DeferredAttribute.__get__
            if not plain or type(field).pre_save not in PRE_SAVES or not is_converted_by_django(field):
                continue
            if not raw and (getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)):
                self._by_clock[name] = NOT_NULL
            else:
                self._in_instance.append(name)

    def facts(self, instance: models.Model) -> Facts:
        """Return the facts about the row of an instance."""
        values = instance.__dict__
        return {name: values[name] for name in self._in_instance if name in values} | self._by_clock


inserted = lru_cache(maxsize=100)(Inserted)


def sets_others(field: models.Field) -> bool:
    """Return whether ``pre_save()`` may set attributes of other fields."""
    if getattr(field, "width_field", None) or getattr(field, "height_field", None):  # an ImageField
        return True
    return type(field).pre_save not in {*PRE_SAVES, models.FileField.pre_save}
