"""UPDATE. If WHERE and SET say what the rows were and what they become, the number of rows is all that we need.
Otherwise the rows are counted: on PostgreSQL by the same statement, on other databases before and after it."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from operator import neg
from typing import Any, NamedTuple

from django.core.exceptions import EmptyResultSet, FullResultSet

from ..declaration import Declaration
from ..internals import AND, CURSOR, ROW_COUNT, ExtraWhere, UpdateQuery
from .facts import UNKNOWN, Fate, facts_after, facts_of_where, fate
from .returning import returning
from .rows import (
    Change,
    RowState,
    add_up,
    difference,
    in_doubt,
    is_plain,
    locked_by_key,
    locked_for_now,
    named_keys,
    rows_of,
    selects_alike,
    with_states,
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
            self.was.counts is not None
            and self.was.counts is self.becomes.counts
            and not (self.moves and self.was.counts)
        )

    @property
    def names_owners(self) -> bool:
        """Whether we know whose counts may change."""
        return self.was.names_owner and self.becomes.names_owner

    @property
    def members(self) -> list[str]:
        """The owners whose counts may change, if we know them."""
        return list(dict.fromkeys(self.was.members + self.becomes.members))

    def deltas(self, rows: int) -> dict[str, int]:
        """Return what it changes, given the number of updated rows."""
        deltas: dict[str, int] = defaultdict(int)
        for number, state in ((-rows, self.was), (rows, self.becomes)):
            if state.counts and state.owner is not None:
                deltas[state.owner] += number
        return deltas

    @property
    def tells_after(self) -> bool:
        """Whether we know what a row becomes, given what it was."""
        return self.becomes.is_known or (self.becomes.counts is not None and not self.moves)

    def after(self, member: str | None) -> tuple[Declaration, str | None, bool]:
        """Return what a row of this owner becomes."""
        known = self.moves and self.becomes.owner is not UNKNOWN
        return self.counter, self.becomes.owner if known else member, bool(self.becomes.counts)


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
        self.turns = [turn for counter in self.counters if not (turn := self._turn(counter, names)).is_none]
        if not self.turns:
            return self._call(self.compiler)
        self.counters = tuple(turn.counter for turn in self.turns)
        named = self.known and all(turn.names_owners for turn in self.turns)
        owners = {turn.counter: turn.members for turn in self.turns} if named else None
        if self.known and all(turn.was.is_known and turn.becomes.is_known for turn in self.turns):
            return self.ledger.write(owners, self._shift)
        self.changes_key = any(field.attname in names for field in self.model._meta.pk_fields)
        own = self.query.get_initial_alias() == self.model._meta.db_table and not self.query.related_updates
        if self.known and self.connection.vendor == "postgresql" and own and not self.returns:
            return self.ledger.write(owners, self._at_once)
        return self.ledger.write(None, self._look_twice)

    def _call(self, compiler: Any) -> Any:
        if self.returns:
            return self.execute(compiler, self.how)
        return self.execute(compiler, ROW_COUNT) or 0

    def _turn(self, counter: Declaration, names: set[str]) -> Turn:
        # With related updates, Django selects the rows, and updates them by their primary keys a moment later.
        is_one = self.known and is_plain(self.query) and not self.query.related_updates
        before = facts_of_where(self.query.where) if is_one else {}
        after = facts_after(before, self.query.values)
        was, becomes = (fate(counter, facts, self.using) for facts in (before, after))
        return Turn(counter, was, becomes, counter.moves(names))

    def _shift(self) -> tuple[Any, Change]:
        result = self._call(self.compiler)
        number = _number(result)
        return result, Change({turn.counter: turn.deltas(number) for turn in self.turns})

    # ------------------------------------------------------------ PostgreSQL
    def _at_once(self) -> tuple[int, Change]:
        """Count the rows, update them and count again in one statement, which returns owners instead of rows."""
        compiler, with_old = self.compiler, self._returning_old
        self.is_one = named_keys(self.query) <= 1
        if self.connection.pg_version < 18_00_00:
            compiler, with_old = self._after_a_look().get_compiler(self.using), self._locking_old
        update = compiler.as_sql
        compiler.as_sql = lambda: with_old(*update())
        try:
            cursor = self.execute(compiler, CURSOR)
        finally:
            del compiler.as_sql
        if not cursor:  # the WHERE clause matches nothing
            return 0, Change({})
        with cursor:
            found = cursor.fetchall()
        if self.is_one:
            found = [(*row, True, True, 1) for row in found]
        updated = sum(row[-1] for row in found if row[-2])
        only_before, only_after = (sum(row[-1] for row in found if not row[side]) for side in (-2, -3))
        if only_before and not only_after and not self.changes_key:  # a trigger has skipped these
            found = [row for row in found if row[-2]]
        elif only_before != only_after:
            return updated, self._doubt({}, False)
        numbers, columns = [row[-1] for row in found], len(self.returning.columns)
        was = self.returning.states(compiler, [row[:columns] for row in found])
        became = self.returning.states(compiler, [row[columns : 2 * columns] for row in found])
        return updated, Change(add_up([*zip(was, map(neg, numbers), strict=True), *zip(became, numbers, strict=True)]))

    def _returning_old(self, update: str, params: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """PostgreSQL 18 and newer return the old row as well as the new one."""
        old, new = (returning(self.counters, self.using, self.model, alias) for alias in ("row_before", "row_after"))
        states, params = ", ".join([*old.names("w"), *new.names("b")]), (*params, *old.params, *new.params)
        update += f" RETURNING WITH (OLD AS row_before, NEW AS row_after) {old.as_columns('w')}, {new.as_columns('b')}"
        if self.is_one:
            return update, params
        update = f"WITH changed AS ({update}) SELECT {states}, true, true, COUNT(*) FROM changed GROUP BY {states}"
        return update, params

    def _after_a_look(self) -> UpdateQuery:
        """Return the UPDATE that ``_locking_old`` puts after ``rows_before``: the statement as it is, which therefore
        changes the same rows in the same order. If it could select others a moment later, it changes those that were
        locked."""
        query: Any = self.query.clone()
        condition = "(SELECT COUNT(*) FROM rows_before) >= 0"
        if self.is_one or not selects_alike(self.query):
            query = UpdateQuery(self.model)
            query.values = self.query.values
            condition = f"({', '.join(self._keys)}) IN (SELECT {', '.join(self._keys.values())} FROM rows_before)"
        if not self.is_one:
            query.where.add(ExtraWhere([condition], ()), AND)
        return query

    def _locking_old(self, update: str, params: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """On older versions, ``rows_before`` locks and counts the rows, and ``rows_after`` updates and counts them. The
        last columns say which of the two has the rows, and how many there are."""
        ours, keys = self.returning, self._keys
        select, selected_params = self._select_old(", ".join(keys))
        was, key = ", ".join(ours.names("w")), ", ".join(keys.values())
        if self.is_one:  # SQL that begins as without counters
            same = " AND ".join([f"{column} = rows_before.{name}" for column, name in keys.items()])
            return (
                f"{update} FROM ({select} FOR NO KEY UPDATE) AS rows_before ({key}, {was}) WHERE {same}"
                f" RETURNING {', '.join([f'rows_before.{name}' for name in ours.names('w')])}, {ours.as_columns('b')}",
                (*params, *selected_params, *ours.params),
            )
        new = ", ".join(f"{column} AS {name}" for column, name in keys.items())
        states = f"{was}, {', '.join(ours.names('b'))}, rows_before.k0 IS NOT NULL, rows_after.k0 IS NOT NULL"
        return (
            f"WITH rows_before ({key}, {was}) AS ({select} FOR NO KEY UPDATE),"
            f" rows_after AS ({update} RETURNING {new}, {ours.as_columns('b')})"
            f" SELECT {states}, COUNT(*) FROM rows_before FULL JOIN rows_after USING ({key}) GROUP BY {states}",
            (*selected_params, *params, *ours.params),
        )

    def _select_old(self, key: str) -> tuple[str, tuple[Any, ...]]:
        """Return the SELECT of the rows as they are: the primary key, and what they count for. Without joins, it needs
        no QuerySet, which takes three times as long as everything else."""
        ours, names = self.returning, [field.attname for field in self.model._meta.pk_fields]
        if not is_plain(self.query) or self.query.is_sliced:
            rows = rows_of(self.query, self.using).order_by("pk")
            return with_states(rows, self.counters, names).query.get_compiler(self.using).as_sql()
        try:
            where, params = self.compiler.compile(self.query.where)
        except FullResultSet:
            where, params = "true", ()
        table = self.connection.ops.quote_name(self.model._meta.db_table)
        select = f"SELECT {key}, {', '.join(ours.sql)} FROM {table} WHERE {where} ORDER BY {key}"
        return select, (*ours.params, *params)

    @cached_property
    def _keys(self) -> dict[str, str]:
        """Return the columns of the primary key, with their names in ``rows_before`` and ``rows_after``."""
        quote, fields = self.connection.ops.quote_name, self.model._meta.pk_fields
        table = quote(self.model._meta.db_table)
        return {f"{table}.{quote(field.column)}": f"k{i}" for i, field in enumerate(fields)}

    # -------------------------------------------------------------- elsewhere
    def _look_twice(self) -> tuple[Any, Change]:
        """Lock and count the rows, execute the statement, and count them again if necessary."""
        query = self.query
        of_many = query.count_active_tables() > 1 and not self.connection.features.update_can_self_select
        if not self.known or not (query.related_updates or of_many):
            return self._look_around(self.known and selects_alike(query))
        self.compiler.pre_sql_setup()  # Django selects the rows first, and then updates them by their keys
        self.compiler.pre_sql_setup = lambda: None
        try:
            return self._look_around(True)
        finally:
            del self.compiler.pre_sql_setup

    def _look_around(self, is_stable: bool) -> tuple[Any, Change]:
        """``is_stable``: the statement changes the rows that a SELECT before it has found, if their number is the
        same."""
        found = locked_for_now(self.query, self.using, self.counters)
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
            after: dict[Any, RowState] = {
                pk: [turn.after(member) for turn, (_, member, _) in zip(self.turns, state, strict=True)]
                for pk, state in found.items()
            }
        elif self.changes_key:
            return result, self._doubt(found, are_found)
        else:
            after = locked_by_key(self.model, self.using, list(found), self.counters)
            # Nobody else changes rows that are locked. So if as many have changed, they are all.
            if not are_found and number != sum(after.get(pk) != state for pk, state in found.items()):
                return result, self._doubt(found, False)
        return result, Change(difference(found.values(), after.values()))

    def _doubt(self, found: dict[Any, RowState], are_found: bool) -> Change:
        """Recount the owners before and after. ``are_found``: the rows that were found are those that have changed.
        Otherwise, the statement names the owners, or everyone is recounted."""
        owners, doubted = in_doubt(found.values()), []
        for turn in self.turns:
            owners[turn.counter] |= dict.fromkeys(turn.members)
            if not (turn.names_owners if not are_found else turn.becomes.names_owner or not turn.moves):
                doubted.append(turn.counter)
        return Change(owners, doubted)
