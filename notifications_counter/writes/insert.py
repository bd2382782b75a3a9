"""INSERT. Often, Python can tell whether the new rows count; otherwise RETURNING or a SELECT does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from ..buffer.types import Delta
from ..declaration import Declaration
from ..internals import OnConflict
from .change import Change, difference, unknown_deltas
from .columns import Row, convert
from .execution import write
from .facts import UNKNOWN, contribution, inserted
from .rows import lock_by_key
from .statement import Statement

ATTNAME = attrgetter("attname")


class Insert(Statement):
    """An INSERT of one or more rows.

    ``deltas``        by counter and owner key; None if only the database can tell
    ``names_owners``  whether no owner is missing there
    ``names_deltas``  whether no delta is None
    """

    def run(self, returning_fields: Sequence[Any] | None = None) -> Any:
        """Execute it, and return its result."""
        self.fields = returning_fields
        self._add_up_instances()
        on_conflict = self.query.on_conflict if self.is_stock else OnConflict.UPDATE  # another class may do anything
        if on_conflict is OnConflict.UPDATE:
            return write(self.connection, None, self._upsert)
        owners = self.deltas if self.names_owners else None
        if on_conflict is None and self.names_owners and self.names_deltas:
            return write(self.connection, owners, self._insert)
        if self.can_return:
            return write(self.connection, owners, self._insert_returning)
        if on_conflict is None:
            return write(self.connection, None, self._insert_and_look)
        return write(self.connection, owners, self._insert_and_recount)

    def _add_up_instances(self) -> None:
        self.deltas: dict[Declaration, dict[str, Delta]] = {}
        self.names_owners = self.names_deltas = True
        query, connection = self.query, self.connection
        names = tuple(map(ATTNAME, query.fields))
        for counter in self.counters:
            facts = inserted(query.model, counter, names, query.raw).facts
            deltas: dict[str, Delta] = {}
            for instance in query.objs:
                owner, value = contribution(counter, facts(instance), connection)
                if value == 0 or owner is None:
                    continue
                if owner is UNKNOWN:
                    self.names_owners = False
                elif value is None:
                    self.names_deltas = False
                    deltas[owner] = None
                elif (delta := deltas.get(owner, 0)) is not None:
                    deltas[owner] = delta + value
            self.deltas[counter] = deltas

    def _insert(self) -> tuple[Any, Change]:
        return self.execute(self.compiler, self.fields), Change(self.deltas)

    def _insert_returning(self) -> tuple[Any, Change]:
        result, rows = self._execute_returning()
        return result, Change(difference(self.counters, after=rows))

    def _insert_and_look(self) -> tuple[Any, Change]:
        result = self.execute(self.compiler, self.fields)
        pks, change = self._primary_keys(result), self._unknown(self.names_owners)
        if None not in pks:
            found = lock_by_key(self.model, self.connection, pks, self.counters)
            if len(found) == len(pks):  # otherwise, a key is an expression, or stored in another form
                change = Change(difference(self.counters, after=found.values()))
        return result, change

    def _insert_and_recount(self) -> tuple[Any, Change]:
        return self.execute(self.compiler, self.fields), self._unknown(self.names_owners)

    def _upsert(self) -> tuple[Any, Change]:
        """Insert or update. Nothing says which rows existed, or what they counted for, so recount the owners that the
        database returns or, if the statement may change owners, everyone."""
        features = self.connection.features
        returns = features.can_return_columns_from_insert and features.can_return_rows_from_bulk_insert
        updated = {field.attname for field in self.query.update_fields} if self.is_stock else set()
        if self.is_stock and returns and not any(counter.moves(updated) for counter in self.counters):
            result, rows = self._execute_returning()
            return result, Change(unknown_deltas(self.counters, rows))
        return self.execute(self.compiler, self.fields), self._unknown(self.names_owners and not self.is_stock)

    def _unknown(self, names_owners: bool) -> Change:
        if names_owners:
            return Change({counter: dict.fromkeys(deltas) for counter, deltas in self.deltas.items()})
        return Change({}, everyone_of=self.counters)

    def _primary_keys(self, result: Any) -> list[Any]:
        """Return the primary keys of the new rows; None for each unknown one."""
        key: Any = self.model._meta.pk
        names = [field.attname for field in self.fields or ()]
        if key.attname in names and len(result or ()) == len(self.query.objs):
            return [row[names.index(key.attname)] for row in result]
        keys = [getattr(instance, key.attname, None) for instance in self.query.objs]
        return [None if isinstance(pk, tuple) and None in pk else pk for pk in keys]

    def _execute_returning(self) -> tuple[list[Any], Iterable[Row]]:
        """Execute it with our columns after Django's, and return the two separately."""
        compiler, ours = self.compiler, self.columns
        asked = list(self.fields or [self.query.get_meta().pk_fields[0]])
        as_sql, apply = compiler.as_sql, compiler.apply_converters

        def as_sql_with_ours() -> list[tuple[str, tuple[Any, ...]]]:
            return [(f"{sql}, {', '.join(ours.sql)}", (*params, *ours.params)) for sql, params in as_sql()]

        def convert_rows(rows: Any, converters: Any) -> Any:
            return apply([row for row in rows if row], converters)

        compiler.as_sql = as_sql_with_ours
        compiler.apply_converters = convert_rows  # before Django 6.0, an ignored row is None
        try:
            rows = [row for row in self.execute(compiler, asked) if row]
        finally:
            del compiler.as_sql, compiler.apply_converters
        states = convert(compiler, ours.fields, [row[len(asked) :] for row in rows])
        return [row[: len(asked)] for row in rows] if self.fields else [], states
