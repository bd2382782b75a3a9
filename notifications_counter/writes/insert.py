"""INSERT. Python can often tell whether the new rows count. Otherwise RETURNING or a SELECT does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from ..buffer.types import Delta
from ..declaration import Declaration
from ..internals import OnConflict
from .columns import Row, convert
from .execution import write
from .facts import UNKNOWN, fate, inserted
from .rows import Change, difference, locked_by_key, unknown
from .statement import Statement

ATTNAME = attrgetter("attname")


class Insert(Statement):
    """An INSERT of one or more rows.

    ``owners``  what it adds for each owner; None if only the database can tell
    ``named``   whether all owners are in ``owners``
    ``sure``    whether no number in ``owners`` is None
    """

    def run(self, returning_fields: Sequence[Any] | None = None) -> Any:
        """Execute it, and have the ledger collect what it changes."""
        self.fields = returning_fields
        self._judge()
        on_conflict = self.query.on_conflict if self.known else OnConflict.UPDATE  # another class may do anything
        if on_conflict is OnConflict.UPDATE:
            return write(self.connection, None, self._upsert)
        owners = self.owners if self.named else None
        if on_conflict is None and self.named and self.sure:
            return write(self.connection, owners, self._insert)
        if self.can_return:
            return write(self.connection, owners, self._insert_returning)
        if on_conflict is None:
            return write(self.connection, None, self._insert_and_look)
        return write(self.connection, owners, self._insert_and_recount)

    def _judge(self) -> None:
        self.owners: dict[Declaration, dict[str, Delta]] = {}
        self.named = self.sure = True
        query, connection = self.query, self.connection
        names = tuple(map(ATTNAME, query.fields))
        for counter in self.counters:
            facts = inserted(query.model, counter, names, query.raw).facts
            deltas: dict[str, Delta] = {}
            for instance in query.objs:
                owner, value = fate(counter, facts(instance), connection)
                if value == 0 or owner is None:
                    continue
                if owner is UNKNOWN:
                    self.named = False
                elif value is None:
                    self.sure = False
                    deltas[owner] = None
                elif (known := deltas.get(owner, 0)) is not None:
                    deltas[owner] = known + value
            self.owners[counter] = deltas

    def _insert(self) -> tuple[Any, Change]:
        return self.execute(self.compiler, self.fields), Change(self.owners)

    def _insert_returning(self) -> tuple[Any, Change]:
        result, rows = self._execute_returning()
        return result, Change(difference(self.counters, after=rows))

    def _insert_and_look(self) -> tuple[Any, Change]:
        result = self.execute(self.compiler, self.fields)
        pks, change = self._primary_keys(result), self._unknown(self.named)
        if None not in pks:
            found = locked_by_key(self.model, self.connection, pks, self.counters)
            if len(found) == len(pks):  # otherwise, a key is an expression, or stored in another form
                change = Change(difference(self.counters, after=found.values()))
        return result, change

    def _insert_and_recount(self) -> tuple[Any, Change]:
        return self.execute(self.compiler, self.fields), self._unknown(self.named)

    def _upsert(self) -> tuple[Any, Change]:
        """Insert or update. Nothing says which rows existed, or what they counted for, so their owners are recounted:
        those that the database returns, unless the statement changes owners."""
        features = self.connection.features
        returns = features.can_return_columns_from_insert and features.can_return_rows_from_bulk_insert
        taken = {field.attname for field in self.query.update_fields} if self.known else set()
        if self.known and returns and not any(counter.moves(taken) for counter in self.counters):
            result, rows = self._execute_returning()
            return result, Change(unknown(self.counters, rows))
        return self.execute(self.compiler, self.fields), self._unknown(self.named and not self.known)

    def _unknown(self, named: bool) -> Change:
        if named:
            return Change({counter: dict.fromkeys(deltas) for counter, deltas in self.owners.items()})
        return Change({}, everyone_of=self.counters)

    def _primary_keys(self, result: Any) -> list[Any]:
        """Return the primary keys of the new rows, None for each that is unknown."""
        key: Any = self.model._meta.pk
        names = [field.attname for field in self.fields or ()]
        if key.attname in names and len(result or ()) == len(self.query.objs):
            return [row[names.index(key.attname)] for row in result]
        keys = [getattr(instance, key.attname, None) for instance in self.query.objs]
        return [None if isinstance(pk, tuple) and None in pk else pk for pk in keys]

    def _execute_returning(self) -> tuple[list[Any], Iterable[Row]]:
        """Execute it with our columns after those that Django returns, and separate the two."""
        compiler, ours = self.compiler, self.columns
        asked = list(self.fields or [self.query.get_meta().pk_fields[0]])
        as_sql, apply = compiler.as_sql, compiler.apply_converters

        def as_sql_with_ours() -> list[tuple[str, tuple[Any, ...]]]:
            return [(f"{sql}, {', '.join(ours.sql)}", (*params, *ours.params)) for sql, params in as_sql()]

        def convert_what_came(rows: Any, converters: Any) -> Any:
            return apply([row for row in rows if row], converters)

        compiler.as_sql = as_sql_with_ours
        compiler.apply_converters = convert_what_came  # before Django 6.0, an ignored row is None
        try:
            rows = [row for row in self.execute(compiler, asked) if row]
        finally:
            del compiler.as_sql, compiler.apply_converters
        states = convert(compiler, ours.fields, [row[len(asked) :] for row in rows])
        return [row[: len(asked)] for row in rows] if self.fields else [], states
