"""UPDATE: if WHERE and SET don't say how it changes counts, it locks its rows, or PostgreSQL returns whose they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from django.core.exceptions import EmptyResultSet

from ..buffer.types import Delta
from ..internals import ROW_COUNT
from .facts import Contribution, contribution, facts_after, facts_of_where
from .rows import Rows, by_key, is_plain, keeps_to, lock_rows, max_rows, rows_by_key
from .statements import Deltas, Statement, difference, doubts_of, owners_of, sums_of
from .transaction import Change


class Effect(NamedTuple):
    """What an UPDATE says about its rows, for one counter.

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
    def names_owners(self) -> bool:
        """Whether it says whose counts may change."""
        return self.before.names_owner and self.after.names_owner

    @property
    def names_owners_after(self) -> bool:
        """Whether it says whose the rows become, given whose they were."""
        return self.after.names_owner or not self.moves

    @property
    def is_predictable(self) -> bool:
        """Whether it says what a row contributes afterwards, given what it did before."""
        return self.after.is_known or (self.after.value is not None and not self.moves)

    @property
    def owner_keys(self) -> list[str]:
        """The owners whose counts may change, as far as it says."""
        return list(dict.fromkeys(self.before.owner_keys + self.after.owner_keys))

    def deltas(
        self, owner_keys: Sequence[str | None], values: Iterable[int], numbers: Sequence[int]
    ) -> dict[str, Delta]:
        """Return the deltas, if it is predictable, given the owners and values before of so many rows."""
        owners = [self.after.owner] * len(owner_keys) if self.moves else owner_keys
        gone = [-number * value for number, value in zip(numbers, values, strict=True)]
        come = [number * (self.after.value or 0) for number in numbers]
        return sums_of([*owner_keys, *owners], [*gone, *come])


class Update(Statement):
    """An UPDATE of the rows that a query selects."""

    def run(self, result_type: Any = None) -> Any:
        """Execute it, and return the number of rows. If ``result_type`` is a list of fields, return these: since Django
        6.0, ``save()`` may use UPDATE … RETURNING."""
        self.fields = result_type if isinstance(result_type, list | tuple) else None
        query, connection = self.query, self.connection
        names = {field.attname for field, *_ in query.values}
        # With related updates, Django selects the rows, and updates them by their primary keys a moment later.
        before = facts_of_where(query.where) if self.is_stock and is_plain(query) and not query.related_updates else {}
        after = facts_after(before, query.values)
        effects = {
            c: Effect(contribution(c, before, connection), contribution(c, after, connection), c.moves(names))
            for c in self.counters
        }
        self.effects = {counter: effect for counter, effect in effects.items() if not effect.is_none}
        self.counters = tuple(self.effects)
        if not self.effects:
            return self._execute()[0]
        if self.is_stock and all(effect.names_owners for effect in self.effects.values()):
            return self.write({c: effect.owner_keys for c, effect in self.effects.items()}, self._update)
        self.returns = self.is_stock and connection.vendor == "postgresql" and not self.fields
        self.sets_key = any(field.attname in names for field in self.model._meta.pk_fields)
        moves = any(effect.moves for effect in self.effects.values())
        if self.returns and not moves and max_rows(query) == inf and not query.related_updates:
            return self.write(None, self._update_returning)
        return self.write(None, self._look_and_update)

    def _execute(self) -> tuple[Any, int]:
        """Execute it, and return its result, and the number of updated rows."""
        if self.fields:
            result = self.execute(self.compiler, self.fields)
            return result, len(result)
        number = self.execute(self.compiler, ROW_COUNT) or 0
        return number, number

    def _update(self) -> tuple[Any, Change]:
        """WHERE and SET say whose rows they are."""
        result, number = self._execute()
        deltas: Deltas = {}
        for counter, effect in self.effects.items() if number else ():
            deltas[counter] = dict.fromkeys(effect.owner_keys)
            before, after, _ = effect
            if before.is_known and after.is_known:
                numbers = -number * (before.value or 0), number * (after.value or 0)
                deltas[counter] = sums_of((before.owner, after.owner), numbers)
        return result, Change(deltas)

    def _update_returning(self) -> tuple[int, Change]:
        """PostgreSQL returns whose rows they are, and how many."""
        number, rows = self.execute_returning("UPDATE", grouped=True)
        if rows is None:
            return number, Change({}, self.counters)
        deltas: Deltas = {}
        for counter, owner_keys, _ in owners_of(self.counters, rows):
            before, after, _ = self.effects[counter]
            if before.value is None or after.value is None:
                deltas[counter] = doubts_of(owner_keys)
            else:
                deltas[counter] = sums_of(owner_keys, [row[-1] * (after.value - before.value) for row in rows])
        return number, Change(deltas)

    def _look_and_update(self) -> tuple[Any, Change]:
        """Lock the rows, and see whose they are and whether they count. PostgreSQL returns what they are afterwards."""
        found = lock_rows(self.query, self.connection, self.counters, no_key=not self.sets_key)
        keeps = keeps_to(found, self.query, self.connection, self.is_stock)
        if keeps and not found:  # at that moment, it would have changed nothing; but wrong values raise
            with suppress(EmptyResultSet):
                self.compiler.as_sql()
            return [] if self.fields else 0, Change()
        if self.returns and not self.sets_key:
            result, rows = self.execute_returning("UPDATE", grouped=False)
            after = by_key(rows or (), len(self.model._meta.pk_fields))
            if rows is not None and after.keys() <= found.keys():
                return result, Change(difference(self.counters, [found[pk] for pk in after], after.values()))
            return result, self._doubts(found, after, False, {})
        result, number = self._execute()
        if not number:
            return result, Change()
        are_found = keeps and number <= len(found)  # nobody else changes locked rows
        is_exact = are_found and number == len(found) and self.is_stock
        numbers = Counter(found.values())
        known: Deltas = {}
        for counter, owner_keys, values in owners_of(self.counters, list(numbers)) if is_exact else ():
            if self.effects[counter].is_predictable:
                known[counter] = self.effects[counter].deltas(owner_keys, values, list(numbers.values()))
        names_owners = self.is_stock and all(e.names_owners_after for c, e in self.effects.items() if c not in known)
        after = {}
        if are_found and not names_owners and not self.sets_key:
            after = rows_by_key(self.model, self.connection, list(found), self.counters)
        return result, self._doubts(found, after, are_found, known)

    def _doubts(self, found: Rows, after: Rows, are_found: bool, known: Deltas) -> Change:
        """Put the owners of rows in doubt, but those of counters whose deltas are known. ``are_found``: the statement
        has changed no other rows."""
        deltas, everyone_of = dict(known), []
        for counter, owner_keys, _ in owners_of(self.counters, [*found.values(), *after.values()]):
            if counter not in known:
                effect = self.effects[counter]
                deltas[counter] = doubts_of([*owner_keys, *effect.owner_keys])
                if not (are_found or effect.names_owners) or not (after or effect.names_owners_after):
                    everyone_of.append(counter)
        return Change(deltas, everyone_of)
