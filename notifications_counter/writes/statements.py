"""How a statement changes counts.

There are two ways. Either the statement says it, or its rows do, which are locked before it or returned by it: then its
deltas are known. Otherwise the owners of its rows are in doubt, so their next reads count rows. If not even the owners
can be known, everyone is.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from django.db.models import Field

from ..buffer.types import Delta
from ..declaration import Declaration
from ..internals import ROW_COUNT, Execute, OnConflict, SQLCompiler, SQLDeleteCompiler, WrapperContext
from .doubts import ALL_IN_DOUBT, Deltas, OwnerKey, OwnerKeys
from .facts import UNKNOWN, Contribution, contribution, facts_after, facts_of_where, inserted
from .rows import (
    Row,
    Rows,
    columns_of,
    convert,
    is_plain,
    is_repeatable,
    lists_keys,
    lock_rows,
    rows_by_key,
    selects_first,
)

Counters = tuple[Declaration, ...]
Fields = Sequence[Field]
Sums = dict[str | None, tuple[int, int]]
"""What rows add to a count, and their number, by owner key."""

ATTNAME = attrgetter("attname")
SAYS_NOTHING = Contribution(UNKNOWN, None)


def sums_of(counters: Iterable[Declaration], rows: Iterable[Row]) -> Iterator[tuple[Declaration, Sums]]:
    """Yield each counter, with what the rows add to it."""
    numbers = Tally(rows)
    columns = iter(list(zip(*numbers, strict=True)))
    for counter in counters:
        owner_keys = counter.encode([next(columns, ()) for _ in counter.owner_attnames])
        sums: Sums = {}
        for owner_key, value, number in zip(owner_keys, next(columns, ()), numbers.values(), strict=True):
            total, so_far = sums.get(owner_key, (0, 0))
            sums[owner_key] = total + number * value, so_far + number
        yield counter, sums


def doubts_of(owner_keys: Iterable[OwnerKey | None]) -> dict[OwnerKey, Delta]:
    """Put owners in doubt."""
    return dict.fromkeys(owner_key for owner_key in owner_keys if owner_key is not None)


@dataclass
class Statement:
    """A statement on a table with these ``counters``, which ``execute_by`` executes, and which returns these
    ``fields``. ``is_stock``: query and compiler have Django's own classes. Others may do anything.

    ``owners``  whose counts it may change; None if only the database can tell
    """

    counters: Counters
    compiler: SQLCompiler
    execute_by: Execute
    is_stock: bool
    fields: Fields | None
    owners: OwnerKeys | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.query: Any = self.compiler.query
        self.connection = self.compiler.connection


# ------------------------------------------------------------------------- INSERT
class Insert(Statement):
    """An INSERT."""

    def __post_init__(self) -> None:
        super().__post_init__()
        query = self.query
        self.deltas: Deltas = {}
        names, names_owners = tuple(map(ATTNAME, query.fields)), query.on_conflict is not OnConflict.UPDATE
        for counter in self.counters:
            said = inserted(query.model, counter, names, query.raw)
            sums = self.deltas.setdefault(counter, {})
            for instance in query.objs:
                owner, value = contribution(counter, said.facts(instance), self.connection)
                if owner is UNKNOWN and value != 0:
                    names_owners = False
                elif owner is not None and value != 0:
                    before = sums.get(owner, 0)
                    sums[owner] = None if value is None or before is None else before + value
        self.owners = self.deltas if names_owners else None

    def execute(self) -> tuple[object, Deltas]:
        """Execute it, and return its result and its change."""
        return self._read_back() if self.owners is None else self._as_they_say()

    def _as_they_say(self) -> tuple[object, Deltas]:
        """The instances say whose the rows are. The database may skip some, because of a conflict, a trigger or a
        rule."""
        number = 0

        def count(execute: Execute, sql: str, params: Sequence[object], many: bool, context: WrapperContext) -> object:
            nonlocal number
            result = execute(sql, params, many, context)
            number += context["cursor"].rowcount
            return result

        if self.fields and self.connection.features.can_return_columns_from_insert:
            result = self.execute_by(self.compiler, self.fields)
            number = sum(row is not None for row in result or ())  # None: Django fetched a row that was skipped
        else:
            with self.connection.execute_wrapper(count):
                result = self.execute_by(self.compiler, self.fields)
        if number != len(self.query.objs) or self.query.on_conflict is not None or not self.is_stock:
            return result, {counter: doubts_of(sums) for counter, sums in self.deltas.items()}
        return result, self.deltas

    def _read_back(self) -> tuple[object, Deltas]:
        """Nothing says whose the rows are. Read them back, unless an upsert has taken them over from others."""
        query, result = self.query, self.execute_by(self.compiler, self.fields)
        everyone = dict.fromkeys(self.counters, ALL_IN_DOUBT)
        updated = {field.attname for field in query.update_fields}
        moves = query.on_conflict is not None and any(counter.moves(updated) for counter in self.counters)
        if moves or not self.is_stock:
            return result, everyone
        key, returned = query.model._meta.pk, [field.attname for field in self.fields or ()]
        if key.attname in returned:
            pks = [row[returned.index(key.attname)] for row in result or () if row is not None]
        elif query.unique_fields and {*query.unique_fields} != {*query.model._meta.pk_fields}:
            pks = [None]  # a row that was in conflict has a key of its own
        else:
            pks = [getattr(instance, key.attname, None) for instance in query.objs]
        found = rows_by_key(query.model, self.connection, pks, self.counters)
        if len(found) != len(pks):  # a key is unknown, an expression, or stored in another form
            return result, everyone
        deltas: Deltas = {}
        for counter, sums in sums_of(self.counters, found.values()):
            deltas[counter] = doubts_of(sums)
            if query.on_conflict is None:  # otherwise, some were there before
                deltas[counter] = {o: total for o, (total, _) in sums.items() if o is not None}
        return result, deltas


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
    def is_none(self) -> bool:
        """Whether all counts stay as they are."""
        value = self.before.value
        return value is not None and value == self.after.value and not (self.moves and value)

    @property
    def names_owner_after(self) -> bool:
        """Whether it says whose the rows become, given whose they were."""
        return self.after.names_owner or not self.moves

    @property
    def owner_keys(self) -> set[str]:
        """The owners whose counts may change, as far as it says."""
        return {said.owner for said in (self.before, self.after) if said.value != 0} - {UNKNOWN, None}

    def deltas(self, before: Sums) -> dict[OwnerKey, Delta]:
        """Return the deltas, given the rows before, if it says what becomes of a row."""
        deltas: dict[str | None, int] = dict.fromkeys(before, 0)
        for owner_key, (total, number) in before.items():
            owner_after = self.after.owner if self.moves else owner_key
            deltas[owner_key] -= total
            deltas[owner_after] = deltas.get(owner_after, 0) + number * (self.after.value or 0)
        return {owner_key: delta for owner_key, delta in deltas.items() if owner_key is not None and delta}


class UpdateOrDelete(Statement):
    """An UPDATE or DELETE of the rows that a query selects."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.model = self.query.get_meta().model  # perhaps a migration's, of the counted table
        self.is_delete = isinstance(self.compiler, SQLDeleteCompiler)
        self.names = {field.attname for field, *_ in getattr(self.query, "values", ())}
        self.effects = {c: effect for c in self.counters if not (effect := self._effect(c)).is_none}
        self.counters, effects = tuple(self.effects), self.effects.values()
        if all(effect.before.names_owner and effect.after.names_owner for effect in effects):
            self.owners = {counter: effect.owner_keys for counter, effect in self.effects.items()}

    def _effect(self, counter: Declaration) -> Effect:
        query, moves = self.query, counter.moves(self.names)
        if not self.is_stock:
            return Effect(SAYS_NOTHING, SAYS_NOTHING, moves)
        facts = facts_of_where(query.where) if is_plain(query) and not selects_first(query) else {}
        before, after = contribution(counter, facts, self.connection), Contribution(None, 0)
        if not self.is_delete:
            after = contribution(counter, facts_after(facts, query.values), self.connection)
        return Effect(before, after, moves)

    def execute(self) -> tuple[object, Deltas]:
        """Execute it, and return the number of rows, or the fields that are asked for, and its change."""
        if self.owners is not None:
            return self._as_it_says()
        return self._return() if self._can_return() else self._lock()

    def _can_return(self) -> bool:
        """Return whether PostgreSQL can return whose rows have changed. An UPDATE returns rows as they are after it,
        without their owners before. Of the few rows of some keys, locking them says more."""
        if not self.is_stock or self.connection.vendor != "postgresql":
            return False
        if self.is_delete:
            return True
        effects = self.effects.values()
        says_more = lists_keys(self.query) and any(effect.before.value is None for effect in effects)
        return not (self.fields or says_more or any(effect.moves for effect in effects))

    def _execute(self) -> tuple[object, int]:
        """Execute it, and return its result, and the number of rows."""
        if self.fields:
            result = self.execute_by(self.compiler, self.fields)
            return result, len(result or ())
        number = self.execute_by(self.compiler, ROW_COUNT) or 0
        return number, number

    def _as_it_says(self) -> tuple[object, Deltas]:
        """WHERE and SET say whose rows they are."""
        result, number = self._execute()
        deltas: Deltas = {}
        for counter, effect in self.effects.items() if number else ():
            before, after, _ = effect
            deltas[counter] = doubts_of(effect.owner_keys)
            if before.value is not None and after.value is not None:
                deltas[counter] = effect.deltas({before.owner: (number * before.value, number)})
        return result, deltas

    def _return(self) -> tuple[object, Deltas]:
        """PostgreSQL returns whose rows they are."""
        ours, rows = columns_of(self.counters, self.connection.alias, self.model), list[Row]()

        def append_returning(
            execute: Execute, sql: str, params: Sequence[object], many: bool, context: WrapperContext
        ) -> object:
            if f"{'DELETE FROM' if self.is_delete else 'UPDATE'} {ours.table}" not in sql:  # of the table of a parent
                return execute(sql, params, many, context)
            sql, params = f"{sql}\nRETURNING {ours.sql}", (*(params or ()), *ours.params)
            result = execute(sql, params, many, context)
            rows.extend(context["cursor"].fetchall())
            return result

        with self.connection.execute_wrapper(append_returning):
            result, number = self._execute()
        if len(rows) != number:  # other code has changed the statement, too
            return result, dict.fromkeys(self.counters, ALL_IN_DOUBT)
        deltas: Deltas = {}
        for counter, sums in sums_of(self.counters, convert(rows, ours.fields[ours.number_of_keys :], self.compiler)):
            value = self.effects[counter].before.value
            if self.is_delete:
                deltas[counter] = {o: -total for o, (total, _) in sums.items() if o is not None}
            elif value is not None:
                deltas[counter] = {o: total - number * value for o, (total, number) in sums.items() if o is not None}
            else:
                deltas[counter] = doubts_of(sums)
        return result, deltas

    def _lock(self) -> tuple[object, Deltas]:
        """Lock the rows, and see whose they are and whether they count. If the statement doesn't say whose they become,
        read them back, too. Rows that are locked stay those that it selects."""
        found = lock_rows(self.query, self.connection, self.counters) if is_repeatable(self.query) else {}
        result, number = self._execute()
        if not number:
            return result, {}
        if number > len(found):  # it has changed others, too
            return result, dict.fromkeys(self.counters, ALL_IN_DOUBT)
        after: Rows = {}
        if not all(effect.names_owner_after for effect in self.effects.values()):
            after = rows_by_key(self.model, self.connection, list(found), self.counters)
        owners_after = dict(sums_of(self.counters, after.values()))
        deltas: Deltas = {}
        for counter, sums in sums_of(self.counters, found.values()):
            effect = self.effects[counter]
            if not effect.names_owner_after and len(after) < len(found):  # rows have other keys now
                deltas[counter] = ALL_IN_DOUBT
            elif effect.names_owner_after and effect.after.value is not None and number == len(found):
                deltas[counter] = effect.deltas(sums)  # nobody else changes locked rows
            else:
                deltas[counter] = doubts_of([*sums, *owners_after[counter], *effect.owner_keys])
        return result, deltas
