"""UPDATE. If WHERE and SET say what the rows were and what they become, the number of rows is enough. Otherwise the
rows are counted: on PostgreSQL by the same statement, on other databases before and after it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import compress
from typing import Any, NamedTuple

from django.core.exceptions import EmptyResultSet

from ..declaration import Declaration
from ..internals import ROW_COUNT
from .change import Change, Sums, difference, per_counter, unknown_deltas
from .columns import Row, convert
from .execution import write
from .facts import UNKNOWN, Contribution, contribution, facts_after, facts_of_where
from .queries import is_plain, keeps_to
from .rows import Rows, lock_by_key, lock_rows
from .statement import Statement
from .update_returning import UpdateReturning


class Effect(NamedTuple):
    """What an UPDATE says about its rows, for one counter.

    ``before``, ``after``  what each row contributes
    ``moves``              whether the owner may change
    """

    counter: Declaration
    before: Contribution
    after: Contribution
    moves: bool

    @property
    def is_none(self) -> bool:
        """Whether all counts stay as they are."""
        value = self.before.value
        return value is not None and value == self.after.value and not (self.moves and value)

    @property
    def names_owners(self) -> bool:
        """Whether it says whose counts may change."""
        return self.before.names_owner and self.after.names_owner

    @property
    def owner_keys(self) -> list[str]:
        """The owners whose counts may change, as far as it says."""
        return list(dict.fromkeys(self.before.owner_keys + self.after.owner_keys))

    def deltas(self, rows: int) -> dict[str, int]:
        """Return the deltas for a number of updated rows."""
        deltas: dict[str, int] = defaultdict(int)
        for number, (owner, value) in ((-rows, self.before), (rows, self.after)):
            if value and owner is not None:
                deltas[owner] += number * value
        return deltas

    @property
    def is_predictable(self) -> bool:
        """Whether it says what a row contributes afterwards, given what it did before."""
        return self.after.is_known or (self.after.value is not None and not self.moves)

    def owners_after(self, owner_keys: Sequence[str | None]) -> Sequence[str | None]:
        """Return the owners of rows that belonged to these before."""
        is_set = self.moves and self.after.owner is not UNKNOWN
        return [self.after.owner] * len(owner_keys) if is_set else owner_keys


def _number(result: Any) -> int:
    """Return the number of updated rows."""
    return result if isinstance(result, int) else len(result)


class Update(Statement):
    """An UPDATE of the rows that a query selects."""

    def run(self, result_type: Any = None) -> Any:
        """Execute it, and return the number of rows. If ``result_type`` is a list of fields, return these: since Django
        6.0, ``save()`` may use UPDATE … RETURNING."""
        self.fields = result_type if isinstance(result_type, list | tuple) else None
        names = {field.attname for field, *_ in self.query.values}
        self.effects = self._effects(names)
        if not self.effects:
            return self._execute()
        self.counters = tuple([effect.counter for effect in self.effects])
        names_owners = self.is_stock and all(effect.names_owners for effect in self.effects)
        owners = {effect.counter: effect.owner_keys for effect in self.effects} if names_owners else None
        if names_owners and all(effect.before.is_known and effect.after.is_known for effect in self.effects):
            return write(self.connection, owners, self._update)
        self.changes_key = any(field.attname in names for field in self.model._meta.pk_fields)
        own = self.query.get_initial_alias() == self.model._meta.db_table and not self.query.related_updates
        if self.is_stock and self.connection.vendor == "postgresql" and own and not self.fields:
            return write(self.connection, owners, self._update_returning)
        return write(self.connection, None, self._look_and_update)

    def _execute(self) -> Any:
        if self.fields:
            return self.execute(self.compiler, self.fields)
        return self.execute(self.compiler, ROW_COUNT) or 0

    def _effects(self, names: set[str]) -> list[Effect]:
        """Return what the statement says for each counter whose counts it may change."""
        # With related updates, Django selects the rows, and updates them by their primary keys a moment later.
        is_one = self.is_stock and is_plain(self.query) and not self.query.related_updates
        before = facts_of_where(self.query.where) if is_one else {}
        after = facts_after(before, self.query.values)
        connection = self.connection
        effects = [
            Effect(c, contribution(c, before, connection), contribution(c, after, connection), c.moves(names))
            for c in self.counters
        ]
        return [effect for effect in effects if not effect.is_none]

    def _update(self) -> tuple[Any, Change]:
        result = self._execute()
        number = _number(result)
        return result, Change({effect.counter: effect.deltas(number) for effect in self.effects})

    def _update_returning(self) -> tuple[int, Change]:
        """Count the rows, update them and count again by one statement of PostgreSQL."""
        sql = UpdateReturning(self.compiler, self.counters)
        found = self.fetch(sql.as_sql)
        if not found:
            return 0, Change({})
        found = list(convert(self.compiler, [*sql.old.fields, *sql.new.fields], found))
        if sql.is_one:
            found = [(*row, 1, 1) for row in found]
        *columns, before, after = zip(*found, strict=True)
        updated, same = sum(after), sum(compress(after, before))
        only_before, only_after = sum(before) - same, updated - same
        are_old = [-1] * len(found)
        if only_before and not only_after and not self.changes_key:  # a trigger has skipped these
            are_old = [-bool(number) for number in after]
        elif only_before != only_after:
            return updated, self._unknown({}, False)
        sums = Sums(self.counters)
        sums.add_columns(columns[: len(sql.old.names)], are_old)
        sums.add_columns(columns[len(sql.old.names) :], [1] * len(found))
        return updated, Change(sums)

    def _look_and_update(self) -> tuple[Any, Change]:
        """Lock and count the rows, execute the statement, and count them again if necessary."""
        query = self.query
        of_many = query.count_active_tables() > 1 and not self.connection.features.update_can_self_select
        if not self.is_stock or not (query.related_updates or of_many):
            return self._compare()
        self.compiler.pre_sql_setup()  # Django selects the rows first, and then updates them by their keys
        self.compiler.pre_sql_setup = lambda: None
        try:
            return self._compare(names_rows=True)
        finally:
            del self.compiler.pre_sql_setup

    def _compare(self, names_rows: bool = False) -> tuple[Any, Change]:
        """Execute it, and compare its rows before and after. ``names_rows``: it lists their primary keys."""
        found = lock_rows(self.query, self.connection, self.counters)
        is_stable = names_rows or (self.is_stock and keeps_to(found, self.query, self.connection))
        if is_stable and not found:  # at that moment, it would have changed nothing; but wrong values raise
            with suppress(EmptyResultSet):
                self.compiler.as_sql()
            return [] if self.fields else 0, Change({})
        result = self._execute()
        number = _number(result)
        are_found = is_stable and number == len(found)
        if self.is_stock and not number:
            return result, Change({})
        if are_found and all(effect.is_predictable for effect in self.effects):
            return result, Change(self._predicted(found.values()))
        if self.changes_key:
            return result, self._unknown(found, are_found)
        after = lock_by_key(self.model, self.connection, list(found), self.counters)
        # Nobody else changes locked rows. So if the numbers are equal, these are the rows that have changed.
        if not are_found and number != sum(after.get(pk) != row for pk, row in found.items()):
            return result, self._unknown(found, False)
        return result, Change(difference(self.counters, found.values(), after.values()))

    def _predicted(self, rows: Iterable[Row]) -> Sums:
        """Return the deltas, given the rows before."""
        sums, found = Sums(self.counters), Counter(rows)
        numbers = list(found.values())
        columns = per_counter(sums, zip(*found, strict=True))
        for effect, (counter, keys, values) in zip(self.effects, columns, strict=True):
            owner_keys = counter.encode_all(keys)
            gone = [-int(value) * number for value, number in zip(values, numbers, strict=True) if value]
            sums.add(counter, list(compress(owner_keys, values)), gone)
            if added := effect.after.value:
                sums.add(counter, effect.owners_after(owner_keys), [added * number for number in numbers])
        return sums

    def _unknown(self, found: Rows, are_found: bool) -> Change:
        """Return a change that has the owners before and after recounted. If ``are_found``, the rows that were found
        have changed. Otherwise, recount the owners that the statement names, or everyone."""
        deltas, everyone_of = unknown_deltas(self.counters, found.values()), []
        for effect in self.effects:
            deltas[effect.counter] |= dict.fromkeys(effect.owner_keys)
            if not (effect.names_owners if not are_found else effect.after.names_owner or not effect.moves):
                everyone_of.append(effect.counter)
        return Change(deltas, everyone_of)
