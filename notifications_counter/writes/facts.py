"""What a statement says about its rows, without asking the database.

Facts are values by attribute name. A missing attribute is unknown. ``NOT_NULL`` means that the value is not NULL, and
otherwise unknown. A fact holds for every row of the statement, even if another session changed the row while the
statement waited for its lock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import (
    BooleanField,
    CharField,
    DateField,
    DateTimeField,
    Field,
    FileField,
    IntegerField,
    JSONField,
    Model,
    TimeField,
    UUIDField,
    Value,
)
from django.db.models.functions import Now
from django.db.models.lookups import Exact, IsNull

from ..declaration import Declaration
from ..declaration.condition import NOT_NULL, is_lookup_of_django
from ..declaration.owners import target_of
from ..internals import AND, DeferredAttribute, WhereNode
from ..models.fields import ExactCharField, is_converted_by_django

Facts = dict[str, Any]
UNKNOWN = object()

PRE_SAVES = {Field.pre_save, DateField.pre_save, DateTimeField.pre_save, TimeField.pre_save}
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

    @property
    def is_known(self) -> bool:
        """Whether it says everything."""
        return self.value is not None and self.names_owner

    @property
    def owner_keys(self) -> list[str]:
        """The owner whose count the rows may be part of, as a list; empty if none is named."""
        return [] if self.value == 0 or self.owner in (UNKNOWN, None) else [self.owner]


def contribution(counter: Declaration, facts: Mapping[str, Any], connection: Any) -> Contribution:
    """Return what rows contribute according to these facts."""
    owner = facts.get(counter.owner_attnames[0], UNKNOWN)
    if counter.has_several_columns:
        values = [facts.get(name, UNKNOWN) for name in counter.owner_attnames]
        if None in values:
            owner = None
        else:
            uncertain = any(map(_is_uncertain, counter.key_fields, values))
            owner = UNKNOWN if uncertain else counter.encode(values)
    elif type(owner) is int:
        owner = str(owner)
    elif owner is not UNKNOWN and owner is not None:
        owner = UNKNOWN if _is_uncertain(counter.key_fields[0], owner) else counter.encode(owner)
    return Contribution(owner, counter.condition.value_of(facts, connection))


def _is_uncertain(field: Any, value: Any) -> bool:
    """Return whether the column may hold another value. A database may cut spaces off a text that is too long."""
    if isinstance(value, str):
        return isinstance(field, CharField) and field.max_length is not None and len(value) > field.max_length
    return value is UNKNOWN or value is NOT_NULL or hasattr(value, "resolve_expression")


def _is_converted_by_django(field: Any) -> bool:
    return is_converted_by_django(field) and is_converted_by_django(target_of(field))


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
        if not isinstance(child, WhereNode):
            _add(facts, *_fact_of_lookup(child, where.negated))
        elif not where.negated:
            for name, value in facts_of_where(child).items():
                _add(facts, name, value)
    return facts


def _add(facts: Facts, name: str, value: Any) -> None:
    """Add a fact. A value says more than NOT_NULL."""
    if name and (value is not NOT_NULL or name not in facts):
        facts[name] = value


def _fact_of_lookup(lookup: Any, negated: bool) -> tuple[str, Any]:
    if is_lookup_of_django(lookup):
        column = lookup.lhs
        if isinstance(lookup, IsNull):
            return column.target.attname, None if lookup.rhs != negated else NOT_NULL
        if isinstance(lookup, Exact) and not negated:
            expression = hasattr(lookup.rhs, "resolve_expression")
            return column.target.attname, lookup.rhs if not expression and _is_identity(column.target) else NOT_NULL
    return "", None


def _is_identity(field: Any) -> bool:
    """Return whether equal values are identical. Equal texts may differ, depending on their collation."""
    exact = BooleanField | ExactCharField | IntegerField | UUIDField
    return isinstance(target_of(field), exact) and _is_converted_by_django(field)


# -------------------------------------------------------------------------- SET
def facts_after(facts: Facts, values: Iterable[tuple[Any, Any, Any]]) -> Facts:
    """Return the facts after an UPDATE has set these (field, model, value)."""
    after = dict(facts)
    for field, _, value in values:
        known = _fact_of_value(field, value)
        if known is UNKNOWN:
            after.pop(field.attname, None)
        else:
            after[field.attname] = known
    return after


def _fact_of_value(field: Any, value: Any) -> Any:
    if not _is_converted_by_django(field):
        return UNKNOWN
    # JSON null is not NULL. The database converts other types; it rounds 1.5, for example.
    if type(value) is Value and _is_of(field, value.value):
        value = value.value
    if isinstance(value, Now):
        return NOT_NULL
    if hasattr(value, "resolve_expression"):
        return UNKNOWN
    if isinstance(value, Model):
        return value.prepare_database_save(field) if field.remote_field else UNKNOWN
    return value


def _is_of(field: Any, value: Any) -> bool:
    """Return whether the database stores this value as it is, although an expression doesn't name its column."""
    if value is None:
        return not isinstance(field, JSONField)
    target = target_of(field)
    if isinstance(value, UUID):
        return isinstance(target, UUIDField)
    return isinstance(value, int) and isinstance(target, BooleanField | IntegerField)


# ----------------------------------------------------------------------- INSERT
class Inserted:
    """What the instances of an INSERT say about its rows."""

    def __init__(self, model: type[Model], fields: Iterable[Field], written: Collection[Field], raw: bool):
        """``fields``: the facts to find. ``written``: those in the INSERT. ``raw``: ``pre_save()`` is skipped."""
        names = {field.attname for field in written}
        if any(map(_sets_others, written)):
            names = set()
        sources = {field.attname: _source(model, field.attname) for field in fields if field.attname in names}
        self._in_instance = [name for name, source in sources.items() if source == "instance" or (source and raw)]
        self._by_clock = {name: NOT_NULL for name, source in sources.items() if source == "clock" and not raw}
        self._is_complete = len(self._in_instance) == len({field.attname for field in fields})

    def facts(self, instance: Model) -> Mapping[str, Any]:
        """Return the facts about one row."""
        values = instance.__dict__
        if self._is_complete:
            return values
        return {name: values[name] for name in self._in_instance if name in values} | self._by_clock


@lru_cache(maxsize=100)
def inserted(model: type[Model], counter: Declaration, written: tuple[str, ...], raw: bool) -> Inserted:
    """Return what INSERTs of the fields with these attribute names say."""
    fields: list[Any] = [model._meta.get_field(name) for name in written]
    return Inserted(model, counter.columns, fields, raw)


def _sets_others(field: Any) -> bool:
    """Return whether ``pre_save()`` may set attributes of other fields."""
    if getattr(field, "width_field", None) or getattr(field, "height_field", None):  # an ImageField
        return True
    return type(field).pre_save not in {*PRE_SAVES, FileField.pre_save}


def _source(model: type[Model], attname: str) -> str:
    """Return where an INSERT takes the value of a field from: the ``__dict__`` of the "instance" or the "clock"; empty
    for a descriptor or a ``pre_save()`` of another package."""
    field: Any = model._meta.get_field(attname)
    descriptor = getattr(model, attname, None)
    plain = isinstance(descriptor, DeferredAttribute) and type(descriptor).__get__ is DeferredAttribute.__get__
    if not plain or type(field).pre_save not in PRE_SAVES or not _is_converted_by_django(field):
        return ""
    return "clock" if getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False) else "instance"
