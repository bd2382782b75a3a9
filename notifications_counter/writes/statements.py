"""How a statement changes counts.

Its deltas are known if the statement says them, or its rows do, which are locked before it or returned by it. Otherwise
the owners of its rows are in doubt, so their next reads count rows. If not even the owners are known, everyone is.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

from django.db.models import Field

from ..buffer.types import Delta
from ..declaration import Declaration
from ..internals import ROW_COUNT, Execute, OnConflict, SQLCompiler, SQLDeleteCompiler, WrapperContext
from .change import EVERYONE, Change, OwnerKey, OwnerKeys, add, everyone
from .facts import Contribution, contribution, facts_after, facts_before, inserted_names
from .rows import (
    Columns,
    Row,
    Sums,
    columns_of,
    is_repeatable,
    lists_pks,
    lock_pks,
    lock_rows,
    name_rows,
    sums_of,
    tally,
)

Counters = tuple[Declaration, ...]
Fields = Sequence[Field]

ATTNAME = attrgetter("attname")
SAYS_NOTHING = Contribution(EVERYONE, None)


def doubts_of(owner_keys: Iterable[OwnerKey | None]) -> dict[OwnerKey, Delta]:
    """Put owners in doubt."""
    return dict.fromkeys(owner_key for owner_key in owner_keys if owner_key is not None)


class Statement:
    """A statement on a table with these ``counters``, which ``run`` executes, and which returns these ``fields``.
    ``is_stock``: query and compiler have Django's own classes. Others may do anything."""

    def __init__(self, counters: Counters, compiler: SQLCompiler, run: Execute, is_stock: bool, fields: Fields | None):
        self.counters = counters
        self.compiler = compiler
        self.run = run
        self.is_stock = is_stock
        self.fields = fields
        self.query: Any = compiler.query
        self.connection = compiler.connection

    def _execute(self, asked: object, columns: Columns | None = None) -> tuple[Any, Any, Tally[Row]]:
        """Execute it. Return its result, the number of rows, infinite if unknown, and their values in these columns.

        Wrappers of other packages may execute other statements, or put one before it and step to the last result. So
        the cursor is read outside of them, where Django reads it, and only if the compiler has made its SQL.
        """
        if self.fields and self.connection.features.can_return_columns_from_insert:
            result: Any = self.run(self.fields)
            # None: Django fetched a row that was skipped.
            return result, sum(row is not None for row in result or ()), Tally()
        compiler: Any = self.compiler
        wrappers: Any = self.connection.execute_wrappers
        as_sql, ours, numbers, found = compiler.as_sql, list[str](), list[float](), Tally[Row]()

        def make() -> Any:
            made: Any = as_sql()
            if columns:
                made = f"{made[0]} RETURNING {columns.sql}", (*made[1], *columns.params)
            ours.extend(sql for sql, _ in (made if isinstance(made, list) else [made]))
            return made

        def read(execute: Execute, sql: str, params: object, many: bool, context: WrapperContext) -> object:
            result, cursor = execute(sql, params, many, context), context["cursor"]
            if sql in ours:
                found.update(tally(cursor, columns, compiler) if columns else ())
                is_other = cursor.rowcount < 0 or (cursor.description and not columns)
                numbers.append(math.inf if is_other else cursor.rowcount)
            elif "ANALYZE" in str(sql) and any(each in str(sql) for each in ours):  # which executes it once more
                numbers.append(math.inf)
            return result

        with ExitStack() as stack:
            stack.callback(vars(compiler).pop, "as_sql", None)
            compiler.as_sql = make
            stack.callback(wrappers.remove, wrappers.insert(0, read) or read)  # at once: a signal may strike anywhere
            result = self.run(asked)
        is_known = not isinstance(result, int) or result == sum(numbers)
        return result, sum(numbers) if is_known else math.inf, found


# ------------------------------------------------------------------------- INSERT
class Insert(Statement):
    """An INSERT."""

    @property
    def owners(self) -> OwnerKeys | None:
        """Whose counts it may change; None if only the database can tell."""
        return self.added

    @cached_property
    def added(self) -> Change | None:
        """What it adds to the count of each owner, as its instances say; None if any row's owner is unknown."""
        query = self.query
        if not self.is_stock or query.on_conflict is OnConflict.UPDATE:
            return None
        added: Change = {}
        names = tuple(map(ATTNAME, query.fields))
        for counter in self.counters:
            sums = added.setdefault(counter, {})
            said = inserted_names(query.model, counter, names)
            for instance in query.objs:
                values = vars(instance)
                facts = {name: values[name] for name in said if name in values}
                owner_key, value = contribution(counter, facts, self.connection)
                if owner_key is None or value == 0:
                    continue
                if owner_key is EVERYONE:
                    return None
                add(sums, owner_key, value)
        return added

    def execute(self) -> tuple[object, Change]:
        """Execute it, and return its result and its change. The database may skip rows, because of a conflict, a
        trigger or a rule."""
        added = self.added
        if added is None:
            return self._read_back()
        result, number, _ = self._execute(self.fields)
        if number != len(self.query.objs) or self.query.on_conflict is not None:
            return result, {counter: doubts_of(sums) for counter, sums in added.items()}
        return result, added

    def _read_back(self) -> tuple[object, Change]:
        """Nothing says whose the rows are. Read them back, unless an upsert has taken them over from others."""
        query, result = self.query, self.run(self.fields)
        updated = {field.attname for field in query.update_fields}
        moves = query.on_conflict is not None and any(counter.moves(updated) for counter in self.counters)
        pk, returned = query.model._meta.pk.attname, [field.attname for field in self.fields or ()]
        # A row that was in conflict by other columns has a primary key of its own.
        is_told = pk in returned or not {*query.unique_fields} - {*query.model._meta.pk_fields}
        if moves or not self.is_stock or not is_told:
            return result, everyone(self.counters)
        if pk in returned:
            pks = [row[returned.index(pk)] for row in result or () if row is not None]
        else:
            pks = [getattr(instance, pk, None) for instance in query.objs]
        found = lock_pks(query.model, self.connection, pks, self.counters)
        if found.total() != len(pks):  # one is unknown, an expression, or stored in another form
            return result, everyone(self.counters)
        deltas: Change = {}
        for counter, sums in sums_of(self.counters, found).items():
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
    def owner_keys(self) -> set[OwnerKey]:
        """The owners whose counts may change, as far as it says."""
        owner_keys = {said.owner_key for said in (self.before, self.after) if said.value != 0}
        return {owner_key for owner_key in owner_keys if isinstance(owner_key, str)}

    def deltas(self, before: Sums) -> dict[OwnerKey, Delta]:
        """Return the deltas, given the rows before, if it says what becomes of a row."""
        deltas: dict[OwnerKey | None, int] = dict.fromkeys(before, 0)
        for owner_key, (total, number) in before.items():
            owner_after = self.after.owner_key if self.moves else owner_key
            deltas[owner_key] -= total
            deltas[owner_after] = deltas.get(owner_after, 0) + number * (self.after.value or 0)
        return {owner_key: delta for owner_key, delta in deltas.items() if owner_key is not None and delta}


class UpdateOrDelete(Statement):
    """An UPDATE or DELETE of the rows that a query selects."""

    def __init__(self, *about: Any):
        super().__init__(*about)
        self.model = self.query.get_meta().model  # perhaps a migration's, of the counted table
        self.is_delete = isinstance(self.compiler, SQLDeleteCompiler)
        self.effects = {c: effect for c in self.counters if not (effect := self._effect(c)).is_none}
        self.counters = tuple(self.effects)

    def _effect(self, counter: Declaration) -> Effect:
        query = self.query
        moves = counter.moves({field.attname for field, *_ in getattr(query, "values", ())})
        if not self.is_stock:
            return Effect(SAYS_NOTHING, SAYS_NOTHING, moves)
        facts = facts_before(query)
        before, after = contribution(counter, facts, self.connection), Contribution(None, 0)
        if not self.is_delete:
            after = contribution(counter, facts_after(facts, query.values), self.connection)
        return Effect(before, after, moves)

    @cached_property
    def owners(self) -> OwnerKeys | None:
        """Whose counts it may change; None if only the database can tell."""
        if all(effect.before.names_owner and effect.after.names_owner for effect in self.effects.values()):
            return {counter: effect.owner_keys for counter, effect in self.effects.items()}
        return None

    def execute(self) -> tuple[object, Change]:
        """Execute it, and return the number of rows, or the fields that are asked for, and its change."""
        if self.owners is not None:
            return self._as_it_says()
        return self._return() if self._can_return() else self._lock()

    def _as_it_says(self) -> tuple[object, Change]:
        """WHERE and SET say whose rows they are."""
        result, number, _ = self._execute(ROW_COUNT)
        deltas: Change = {}
        for counter, effect in self.effects.items() if number else ():
            before, after, _ = effect
            deltas[counter] = doubts_of(effect.owner_keys)
            if number < math.inf and before.value is not None and after.value is not None:
                deltas[counter] = effect.deltas({before.owner_key: (number * before.value, number)})
        return result, deltas

    def _can_return(self) -> bool:
        """Return whether PostgreSQL can return whose rows have changed. An UPDATE returns rows as they are after it,
        without their owners before. Of a few rows by primary keys, locking them says more."""
        if not self.is_stock or self.connection.vendor != "postgresql":
            return False
        if self.is_delete:
            return True
        effects = self.effects.values()
        says_more = lists_pks(self.query) and any(effect.before.value is None for effect in effects)
        return not (self.fields or says_more or any(effect.moves for effect in effects))

    def _return(self) -> tuple[object, Change]:
        """PostgreSQL returns whose rows they are."""
        columns = columns_of(self.counters, self.connection.alias, self.model)
        result, number, found = self._execute(ROW_COUNT, columns)
        if found.total() != number:  # other code has changed the statement, too
            return result, everyone(self.counters)
        deltas: Change = {}
        for counter, sums in sums_of(self.counters, found).items():
            effect = self.effects[counter]
            if self.is_delete:
                deltas[counter] = effect.deltas(sums)
            elif (value := effect.before.value) is not None:
                deltas[counter] = {o: total - number * value for o, (total, number) in sums.items() if o is not None}
            else:
                deltas[counter] = doubts_of(sums)
        return result, deltas

    def _lock(self) -> tuple[object, Change]:
        """Lock the rows first, and see whose they are and whether they count. They stay those that it selects, by
        their primary keys if necessary. If it doesn't say whose they become, as ``bulk_update()``, see that afterwards:
        by primary keys, it still selects them."""
        query, connection, counters = self.query, self.connection, self.counters
        says_whose = all(effect.after.names_owner or not effect.moves for effect in self.effects.values())
        is_fixed = is_repeatable(query) or (self.is_stock and name_rows(query, connection))
        if not is_fixed or not (says_whose or lists_pks(query)):
            result, number, _ = self._execute(ROW_COUNT)
            return result, everyone(counters) if number else {}
        before, after = lock_rows(query, connection, counters), Tally[Row]()
        result, number, _ = self._execute(ROW_COUNT)
        if not number:
            return result, {}
        if not says_whose:
            after = lock_rows(query, connection, counters)
        if number > before.total() or (not says_whose and after.total() < before.total()):
            return result, everyone(counters)  # it has changed others, too, or rows have other primary keys now
        deltas: Change = {}
        sums_before, sums_after = sums_of(counters, before), sums_of(counters, after)
        for counter, effect in self.effects.items():
            if says_whose and effect.after.value is not None and number == before.total():
                deltas[counter] = effect.deltas(sums_before[counter])  # nobody else changes locked rows
            else:
                deltas[counter] = doubts_of([*sums_before[counter], *sums_after[counter], *effect.owner_keys])
        return result, deltas
