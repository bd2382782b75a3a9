"""UPDATE. If WHERE and SET say what the rows were and what they become, the number of rows is all that we need.
Otherwise the rows are counted: on PostgreSQL by the same statement, on other databases before and after it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from typing import Any, NamedTuple

from django.core.exceptions import EmptyResultSet

from ..declaration import Declaration
from ..internals import ROW_COUNT, WhereNode
from .columns import Columns, Row, columns_of, convert
from .execution import write
from .facts import UNKNOWN, Fate, facts_after, facts_of_where, fate
from .rows import (
    Change,
    Sums,
    difference,
    is_plain,
    keeps_to,
    keys_of,
    locked_by_key,
    locked_for_now,
    named_keys,
    selecting,
    selects_alike,
    unknown,
    where_of,
)
from .statement import Statement


class Turn(NamedTuple):
    """What an UPDATE says about its rows, for one counter.

    ``was``      before it
    ``becomes``  after it
    ``moves``    whether it may set the owner
    """

    counter: Declaration
    was: Fate
    becomes: Fate
    moves: bool

    @property
    def is_none(self) -> bool:
        """Whether it leaves every count as it is."""
        return (
            self.was.value is not None and self.was.value == self.becomes.value and not (self.moves and self.was.value)
        )

    @property
    def names_owners(self) -> bool:
        """Whether we know whose counts may change."""
        return self.was.names_owner and self.becomes.names_owner

    @property
    def owner_keys(self) -> list[str]:
        """The owners whose counts may change, if we know them."""
        return list(dict.fromkeys(self.was.owner_keys + self.becomes.owner_keys))

    def deltas(self, rows: int) -> dict[str, int]:
        """Return what it changes, given the number of updated rows."""
        deltas: dict[str, int] = defaultdict(int)
        for number, state in ((-rows, self.was), (rows, self.becomes)):
            if state.value and state.owner is not None:
                deltas[state.owner] += number * state.value
        return deltas

    @property
    def tells_after(self) -> bool:
        """Whether we know what a row becomes, given what it was."""
        return self.becomes.is_known or (self.becomes.value is not None and not self.moves)

    def after(self, owner_keys: Sequence[str | None]) -> Sequence[str | None]:
        """Return the owners of rows that had these before it."""
        known = self.moves and self.becomes.owner is not UNKNOWN
        return [self.becomes.owner] * len(owner_keys) if known else owner_keys


def _number(result: Any) -> int:
    """Return the number of updated rows."""
    return result if isinstance(result, int) else len(result)


class Update(Statement):
    """An UPDATE of the rows that a query selects."""

    def run(self, how: Any = None) -> Any:
        """Execute it, have the ledger collect what it changes, and return the number of rows. If ``how`` is a list of
        fields, return the rows: since Django 6.0, ``save()`` may use UPDATE … RETURNING."""
        self.how, self.returns = how, isinstance(how, list | tuple)
        names = {field.attname for field, *_ in self.query.values}
        self.turns = self._turns(names)
        if not self.turns:
            return self._call(self.compiler)
        self.counters = tuple([turn.counter for turn in self.turns])
        named = self.known and all(turn.names_owners for turn in self.turns)
        owners = {turn.counter: turn.owner_keys for turn in self.turns} if named else None
        if named and all(turn.was.is_known and turn.becomes.is_known for turn in self.turns):
            return write(self.connection, owners, self._shift)
        self.changes_key = any(field.attname in names for field in self.model._meta.pk_fields)
        own = self.query.get_initial_alias() == self.model._meta.db_table and not self.query.related_updates
        if self.known and self.connection.vendor == "postgresql" and own and not self.returns:
            return write(self.connection, owners, self._at_once)
        return write(self.connection, None, self._look_twice)

    def _call(self, compiler: Any) -> Any:
        if self.returns:
            return self.execute(compiler, self.how)
        return self.execute(compiler, ROW_COUNT) or 0

    def _turns(self, names: set[str]) -> list[Turn]:
        """Return what the statement says for each counter whose counts it may change."""
        # With related updates, Django selects the rows, and updates them by their primary keys a moment later.
        is_one = self.known and is_plain(self.query) and not self.query.related_updates
        before = facts_of_where(self.query.where) if is_one else {}
        after = facts_after(before, self.query.values)
        turns = [
            Turn(c, fate(c, before, self.connection), fate(c, after, self.connection), c.moves(names))
            for c in self.counters
        ]
        return [turn for turn in turns if not turn.is_none]

    def _shift(self) -> tuple[Any, Change]:
        result = self._call(self.compiler)
        number = _number(result)
        return result, Change({turn.counter: turn.deltas(number) for turn in self.turns})

    # ------------------------------------------------------------ PostgreSQL
    def _at_once(self) -> tuple[int, Change]:
        """Count the rows, update them and count again in one statement, which returns owners instead of rows."""
        old, new, self.is_one = self._columns("w"), self._columns("b"), named_keys(self.query) <= 1
        found = self.fetch(partial(self._returning_old if self._returns_old else self._locking_old, old, new))
        if not found:
            return 0, Change({})
        found = list(convert(self.compiler, [*old.fields, *new.fields], found))
        if self.is_one:
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
        sums.add_columns(columns[: len(old.names)], are_old)
        sums.add_columns(columns[len(old.names) :], [1] * len(found))
        return updated, Change(sums)

    @property
    def _returns_old(self) -> bool:
        """Whether RETURNING has the old row as well as the new one."""
        return self.connection.pg_version >= 18_00_00

    def _columns(self, prefix: str) -> Columns:
        alias = {"w": "row_before", "b": "row_after"}[prefix] if self._returns_old else ""
        return columns_of(self.counters, self.using, self.model, prefix, alias)

    def _returning_old(self, old: Columns, new: Columns) -> tuple[str, tuple[Any, ...]]:
        update, params = type(self.compiler).as_sql(self.compiler)
        update += f" RETURNING WITH (OLD AS row_before, NEW AS row_after) {old.named}, {new.named}"
        params = (*params, *old.params, *new.params)
        if self.is_one:
            return update, params
        return (
            f"WITH changed AS ({update}) SELECT {old.sums}, {new.sums}, COUNT(*), COUNT(*) FROM changed"
            f" GROUP BY {old.owners}, {new.owners}",
            params,
        )

    def _locking_old(self, old: Columns, new: Columns) -> tuple[str, tuple[Any, ...]]:
        """Before version 18, ``rows_before`` locks and counts the rows, and ``rows_after`` updates and counts them. The
        last columns say how many rows each of the two has.

        The statement changes the same rows in the same order as without counters. If it could select others a moment
        later, it changes those that were locked."""
        update, params = self._without_where()
        where, where_params = where_of(selecting(self.query, self.connection))
        select, select_params = old.select(where, where_params)
        keys = {column: f"k{i}" for i, column in enumerate(old.keys)}
        key, was = ", ".join(keys.values()), ", ".join(old.names)
        if self.is_one:  # SQL that begins as without counters
            same = " AND ".join([f"{column} = rows_before.{name}" for column, name in keys.items()])
            return (
                f"{update} FROM ({select} FOR NO KEY UPDATE) AS rows_before ({key}, {was}) WHERE {same}"
                f" RETURNING {', '.join([f'rows_before.{name}' for name in old.names])}, {new.named}",
                (*params, *select_params, *new.params),
            )
        if selects_alike(self.query):
            condition, params = f"({where}) AND (SELECT COUNT(*) FROM rows_before) >= 0", (*params, *where_params)
        else:
            condition = f"({', '.join(keys)}) IN (SELECT {key} FROM rows_before)"
        named = ", ".join([f"{column} AS {name}" for column, name in keys.items()])
        return (
            f"WITH rows_before ({key}, {was}) AS ({select} FOR NO KEY UPDATE),"
            f" rows_after AS ({update} WHERE {condition} RETURNING {named}, {new.named})"
            f" SELECT {old.sums}, {new.sums}, COUNT(rows_before.k0), COUNT(rows_after.k0)"
            f" FROM rows_before FULL JOIN rows_after USING ({key})"
            f" GROUP BY {old.owners}, {new.owners}, rows_before.k0 IS NULL, rows_after.k0 IS NULL",
            (*select_params, *params, *new.params),
        )

    def _without_where(self) -> tuple[str, tuple[Any, ...]]:
        """Return the statement without its WHERE clause."""
        compiler, query = self.compiler, self.query
        where, query.where = query.where, WhereNode()
        compiler.pre_sql_setup = lambda: None  # it would move joins from the clause into a subquery
        try:
            return type(compiler).as_sql(compiler)
        finally:
            query.where = where
            del compiler.pre_sql_setup

    # -------------------------------------------------------------- elsewhere
    def _look_twice(self) -> tuple[Any, Change]:
        """Lock and count the rows, execute the statement, and count them again if necessary."""
        query = self.query
        of_many = query.count_active_tables() > 1 and not self.connection.features.update_can_self_select
        if not self.known or not (query.related_updates or of_many):
            return self._look_around()
        self.compiler.pre_sql_setup()  # Django selects the rows first, and then updates them by their keys
        self.compiler.pre_sql_setup = lambda: None
        try:
            return self._look_around()
        finally:
            del self.compiler.pre_sql_setup

    def _look_around(self) -> tuple[Any, Change]:
        found = locked_for_now(self.query, self.connection, self.counters)
        is_stable = self.known and keeps_to(found, self.query, self.connection)
        if is_stable and not found:  # at that moment, it would have changed nothing; but wrong values raise
            with suppress(EmptyResultSet):
                self.compiler.as_sql()
            return [] if self.returns else 0, Change({})
        result = self._call(self.compiler)
        number = _number(result)
        are_found = is_stable and number == len(found)
        if self.known and not number:
            return result, Change({})
        if are_found and all(turn.tells_after for turn in self.turns):
            return result, Change(self._told_after(found.values()))
        if self.changes_key:
            return result, self._unknown(found, are_found)
        after = locked_by_key(self.model, self.connection, list(found), self.counters)
        # Nobody else changes rows that are locked. So if as many have changed, they are all.
        if not are_found and number != sum(after.get(pk) != row for pk, row in found.items()):
            return result, self._unknown(found, False)
        return result, Change(difference(self.counters, found.values(), after.values()))

    def _told_after(self, rows: Iterable[Row]) -> Sums:
        """Return what these rows, and what the statement says about them, add up to."""
        sums, found = Sums(self.counters), Counter(rows)
        numbers = list(found.values())
        for turn, (counter, keys, values) in zip(self.turns, keys_of(sums, zip(*found, strict=True)), strict=True):
            owner_keys = counter.encode_all(keys)
            gone = [-int(value) * number for value, number in zip(values, numbers, strict=True) if value]
            sums.add(counter, list(compress(owner_keys, values)), gone)
            if turn.becomes.value:
                sums.add(counter, turn.after(owner_keys), [turn.becomes.value * number for number in numbers])
        return sums

    def _unknown(self, found: dict[Any, Row], are_found: bool) -> Change:
        """Recount the owners before and after. ``are_found``: the rows that were found are those that have changed.
        Otherwise, the statement names the owners, or everyone is recounted."""
        owners, everyone = unknown(self.counters, found.values()), []
        for turn in self.turns:
            owners[turn.counter] |= dict.fromkeys(turn.owner_keys)
            if not (turn.names_owners if not are_found else turn.becomes.names_owner or not turn.moves):
                everyone.append(turn.counter)
        return Change(owners, everyone)
