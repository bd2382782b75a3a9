"""What a statement says about its rows, and so about counts, without asking the database.

A fact holds for every row of the statement, even if another session changed the row while the statement waited for its
lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from django.db import models
from django.db.models.functions import Now

from ..buffer.types import Delta
from ..declaration import Declaration
from ..declaration.condition import NOT_NULL, Facts, facts_of_where, is_kept
from ..internals import BaseDatabaseWrapper, DeferredAttribute, OnConflict, Query
from ..models.fields import ExactCharField, field_of, is_converted_by_django, target_of
from .change import Change, add
from .rows import Sums, is_of_one_table
from .statements import Statement

PRE_SAVES = {
    kind.pre_save for kind in (models.Field, models.DateField, models.DateTimeField, models.FileField, models.TimeField)
}
"""Methods that return the value of the instance, if they don't set it to the current time. They leave others alone,
except that an ImageField may set its dimensions."""


class Unnamed(Enum):
    """Stands for owners whom the statement does not name, in place of an owner key."""

    UNNAMED = "unnamed"


UNNAMED = Unnamed.UNNAMED


class Contribution(NamedTuple):
    """What each row of a statement contributes to a counter, as far as the statement says.

    ``owner_key``  None if the rows have no owner; UNNAMED if they may be anyone's
    ``value``      what a row adds to the count, 0 if it does not count; None if only the database can tell
    """

    owner_key: str | Unnamed | None = UNNAMED
    value: int | None = None

    @property
    def names_owner(self) -> bool:
        """Whether it says whose count the rows are part of, if they count at all."""
        return self.value == 0 or self.owner_key is not UNNAMED


def contribution(counter: Declaration, facts: Mapping[str, object], connection: BaseDatabaseWrapper) -> Contribution:
    """Return what rows contribute according to these facts."""
    values = [facts.get(name, NOT_NULL) for name in counter.owner_attnames]
    owner_key: str | Unnamed | None = UNNAMED
    kept = [
        value
        for field, column, value in zip(counter.pk_fields, counter.owner_fields, values, strict=True)
        if is_kept(field, column.null, value, connection)
    ]
    if None in kept:
        owner_key = None
    elif len(kept) == len(values):
        (owner_key,) = counter.owner_keys(list(zip(values, strict=True)))
    return Contribution(owner_key, counter.condition.value_of(facts, connection))


# -------------------------------------------------------------- UPDATE and DELETE
class Effect(NamedTuple):
    """What an UPDATE or DELETE says about its rows, for one counter. A deleted row is one that no longer counts.

    ``before``, ``after``  what each row contributes
    ``moves``              whether the owner may change
    """

    before: Contribution
    after: Contribution
    moves: bool

    @property
    def owner_keys(self) -> set[str]:
        """The owners whose counts may change, as far as it says."""
        said = [each.owner_key for each in (self.before, self.after) if each.value != 0]
        return {owner_key for owner_key in said if isinstance(owner_key, str)}

    def deltas(self, sums: Sums) -> dict[str, Delta]:
        """Return the deltas, given what the rows add before it, if it says what becomes of a row."""
        deltas: dict[str | Unnamed | None, int] = dict.fromkeys(sums, 0)
        for owner_key, (total, number) in sums.items():
            owner_after = self.after.owner_key if self.moves else owner_key
            deltas[owner_key] -= total
            deltas[owner_after] = deltas.get(owner_after, 0) + number * (self.after.value or 0)
        return {owner_key: delta for owner_key, delta in deltas.items() if isinstance(owner_key, str) and delta}


def effects_of(statement: Statement) -> dict[Declaration, Effect]:
    """Return the effect of an UPDATE or DELETE on each counter whose counts it may change."""
    query, connection = statement.query, statement.connection
    values = getattr(query, "values", ())  # of an UPDATE
    written = {field.attname for field, *_ in values}
    facts = facts_before(query)
    facts_then = facts_after(facts, values)
    effects: dict[Declaration, Effect] = {}
    for counter in statement.counters:
        before, after, moves = Contribution(), Contribution(), counter.moves(written)
        if statement.is_stock:
            before = contribution(counter, facts, connection)
            after = Contribution(None, 0) if statement.is_delete else contribution(counter, facts_then, connection)
        if before.value is None or before.value != after.value or (moves and before.value):
            effects[counter] = Effect(before, after, moves)
    return effects


def facts_before(query: Query) -> Facts:
    """Return the facts about every row that a query selects. Equal texts may differ, depending on their collation."""
    # An UPDATE of a parent's columns: Django selects the rows, and updates them by primary keys a moment later.
    if not is_of_one_table(query) or getattr(query, "related_updates", None):
        return {}
    facts, _ = facts_of_where(query.where)
    model = query.get_meta().model
    for name, value in facts.items():
        if isinstance(value, str) and not isinstance(target_of(field_of(model, name)), ExactCharField):
            facts[name] = NOT_NULL
    return facts


def facts_after(facts: Facts, values: Iterable[tuple[models.Field, object, object]]) -> Facts:
    """Return the facts after an UPDATE has set these (field, model, value)."""
    after = dict(facts)
    for field, _, value in values:
        if isinstance(value, models.Model) and field.remote_field:
            value = value.prepare_database_save(field)
        if isinstance(value, Now):
            value = NOT_NULL
        after.pop(field.attname, None)
        if is_converted_by_django(field) and not isinstance(value, models.Model):
            after[field.attname] = value
    return after


# ----------------------------------------------------------------------- INSERT
def added_by(statement: Statement) -> Change | None:
    """Return what an INSERT adds to the count of each owner, as its instances say; None if any row's owner is unknown.
    Rows of an upsert may have been there before."""
    query = statement.query
    if not statement.is_stock or query.on_conflict is OnConflict.UPDATE:
        return None
    added: Change = {}
    names = tuple(map(attrgetter("attname"), query.fields))
    for counter in statement.counters:
        sums = added.setdefault(counter, {})
        said = inserted_names(query.model, counter, names)
        for instance in query.objs:
            values = vars(instance)
            facts = {name: values[name] for name in said if name in values}
            owner_key, value = contribution(counter, facts, statement.connection)
            if owner_key is None or value == 0:
                continue
            if owner_key is UNNAMED:
                return None
            add(sums, owner_key, value)
    return added


@lru_cache(maxsize=100)
def inserted_names(model: type[models.Model], counter: Declaration, written: tuple[str, ...]) -> list[str]:
    """Return the names of those of a counter's columns that an INSERT of these fields takes from the ``__dict__`` of
    each instance. If ``pre_save()`` of any field may set other fields, there are none."""
    names: list[str] = []
    read = {field.attname for field in counter.columns}
    for field in (field_of(model, name) for name in written):
        has_dimensions = getattr(field, "width_field", None) or getattr(field, "height_field", None)
        if has_dimensions or type(field).pre_save not in PRE_SAVES:
            return []
        is_by_clock = getattr(field, "auto_now", False) or getattr(field, "auto_now_add", False)
        descriptor = getattr(model, field.attname, None)
        is_in_dict = getattr(type(descriptor), "__get__", None) is DeferredAttribute.__get__
        if field.attname in read and is_in_dict and not is_by_clock and is_converted_by_django(field):
            names.append(field.attname)
    return names
