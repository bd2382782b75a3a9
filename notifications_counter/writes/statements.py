"""INSERT and DELETE, and what they have in common with UPDATE: how a statement changes counts.

There are two ways. Either the statement says it, or the rows that it locks do: then its deltas are known. Otherwise the
owners of its rows are in doubt, so their next reads count rows. If not even the owners can be known, everyone is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from operator import attrgetter, mul
from typing import Any

from django.db.models import Model

from ..buffer.types import Delta
from ..declaration import Declaration
from ..internals import ROW_COUNT, OnConflict
from .facts import UNKNOWN, contribution, facts_of_where, inserted
from .rows import Row, columns_of, convert, is_plain, keeps_to, lock_rows, max_rows, rows_by_key
from .transaction import Change

Deltas = dict[Declaration, dict[str, Delta]]
ATTNAME = attrgetter("attname")


def owners_of(
    counters: Iterable[Declaration], rows: Sequence[Row]
) -> Iterator[tuple[Declaration, Sequence[str | None], Sequence[Any]]]:
    """Yield each counter, with the owner keys of the rows, and the values that they add."""
    columns = iter(list(zip(*rows, strict=True)))
    for counter in counters:
        keys = [next(columns, ()) for _ in counter.owner_attnames]
        values = next(columns, ())
        yield counter, counter.encode_all(list(zip(*keys, strict=True)) if len(keys) > 1 else keys[0]), values


def sums_of(owner_keys: Iterable[str | None], numbers: Iterable[int]) -> dict[str, Delta]:
    """Add up numbers by owner."""
    sums: dict[str, Any] = {}
    for owner_key, number in zip(owner_keys, numbers, strict=True):
        if number and owner_key is not None:
            sums[owner_key] = sums.get(owner_key, 0) + int(number)  # a sum of PostgreSQL may be a Decimal
    return sums


def difference(counters: Iterable[Declaration], before: Iterable[Row] = (), after: Iterable[Row] = ()) -> Deltas:
    """Return the deltas of a statement, given its rows before and after."""
    gone, come = Counter(before), Counter(after)
    numbers = [*(-number for number in gone.values()), *come.values()]
    return {
        counter: sums_of(owner_keys, map(mul, values, numbers))
        for counter, owner_keys, values in owners_of(counters, [*gone, *come])
    }


def doubts_of(owner_keys: Iterable[str | None]) -> dict[str, Delta]:
    """Put owners in doubt."""
    return dict.fromkeys(owner_key for owner_key in owner_keys if owner_key is not None)


class Statement:
    """A statement of the ORM on its way to the database.

    ``execute``   executes a compiler by the original method
    ``is_stock``  whether query and compiler have Django's own classes. Others may do anything
    """

    def __init__(self, counters: tuple[Declaration, ...], compiler: Any, execute: Callable[..., Any], is_stock: bool):
        self.counters = counters
        self.compiler = compiler
        self.execute = execute
        self.is_stock = is_stock
        self.query = compiler.query
        self.connection = compiler.connection
        self.write = vars(self.connection)["counter_ledger"].write

    @property
    def model(self) -> type[Model]:
        """The written model, which may be another one of the counted table: at the time of a migration, the primary key
        may have had another name."""
        return self.query.model

    def execute_returning(self, kind: str, grouped: bool) -> tuple[int, list[tuple[Any, ...]] | None]:
        """Append RETURNING to the "UPDATE" or "DELETE FROM" on its way to the database. Returns the number of rows, and
        the rows: primary keys and columns or, ``grouped``, the columns and number of rows of each owner. None if other
        code has changed the statement, too."""
        ours, found = columns_of(self.counters, self.connection.alias, self.model), list[Row]()
        fields = ours.fields if grouped else [*ours.key_fields, *ours.fields]

        def execute(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
            if f"{kind} {ours.table}" not in sql:  # a statement for the table of a parent
                return execute(sql, params, many, context)
            if grouped:
                sql = f"WITH changed AS ({sql}\nRETURNING {ours.aliased})"
                sql += f" SELECT {ours.sums}, COUNT(*) FROM changed GROUP BY {ours.owners}"
            else:
                sql += f"\nRETURNING {', '.join(ours.keys)}, {ours.aliased}"
            result = execute(sql, (*(params or ()), *ours.params), many, context)
            found.extend(context["cursor"].fetchall())
            return result

        with self.connection.execute_wrapper(execute):
            number = self.execute(self.compiler, ROW_COUNT) or 0
        if len(found) != number:
            return number, None
        rows = list(map(tuple, convert(found, fields, self.compiler)))
        return sum(row[-1] for row in rows) if grouped else number, rows


# ------------------------------------------------------------------------- INSERT
class Insert(Statement):
    """An INSERT of one or more rows."""

    def run(self, returning_fields: Sequence[Any] | None = None) -> Any:
        """Execute it, and return its result."""
        self.fields = returning_fields
        query, connection = self.query, self.connection
        self.deltas: Deltas = {}
        names_owners = True
        names = tuple(map(ATTNAME, query.fields))
        for counter in self.counters:
            facts = inserted(query.model, counter, names, query.raw).facts
            deltas = self.deltas[counter] = {}
            for instance in query.objs:
                owner, value = contribution(counter, facts(instance), connection)
                if value == 0 or owner is None:
                    continue
                if owner is UNKNOWN:
                    names_owners = False
                else:
                    before = deltas.get(owner, 0)
                    deltas[owner] = None if value is None or before is None else before + value
        is_upsert = self.is_stock and query.on_conflict is OnConflict.UPDATE
        if names_owners and not is_upsert:
            return self.write(self.deltas, self._insert)
        return self.write(None, self._insert_and_look)

    def _insert(self) -> tuple[Any, Change]:
        """The database may skip rows, because of a conflict, a trigger or a rule."""
        inserted = 0

        def count(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
            nonlocal inserted
            result = execute(sql, params, many, context)
            inserted += context["cursor"].rowcount
            return result

        if self.fields and self.connection.features.can_return_columns_from_insert:
            result = self.execute(self.compiler, self.fields)
            inserted = len(result or ())
        else:
            with self.connection.execute_wrapper(count):
                result = self.execute(self.compiler, self.fields)
        if inserted != len(self.query.objs) or self.query.on_conflict is not None or not self.is_stock:
            return result, Change({counter: doubts_of(deltas) for counter, deltas in self.deltas.items()})
        return result, Change(self.deltas)

    def _insert_and_look(self) -> tuple[Any, Change]:
        """Nothing says whose the rows are, so look afterwards, unless an upsert has taken them over from others."""
        result = self.execute(self.compiler, self.fields)
        query, key = self.query, self.model._meta.pk
        updated = {field.attname for field in query.update_fields}
        moves = query.on_conflict is not None and any(counter.moves(updated) for counter in self.counters)
        names = [field.attname for field in self.fields or ()]
        if key.attname in names and len(result or ()) == len(query.objs):
            pks = [row[names.index(key.attname)] for row in result]
        else:
            pks = [getattr(instance, key.attname, None) for instance in query.objs]
        if self.is_stock and not moves and not any(pk is None or (isinstance(pk, tuple) and None in pk) for pk in pks):
            found = rows_by_key(self.model, self.connection, pks, self.counters)
            if len(found) == len(pks):  # otherwise, a key is an expression, or stored in another form
                deltas = difference(self.counters, after=found.values())
                if query.on_conflict is not None:  # some rows were there before
                    its = owners_of(self.counters, list(found.values()))
                    deltas = {counter: doubts_of(owner_keys) for counter, owner_keys, _ in its}
                return result, Change(deltas)
        return result, Change({}, everyone_of=self.counters)


# ------------------------------------------------------------------------- DELETE
class Delete(Statement):
    """A DELETE of the rows that a query selects."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Execute it, and return the number of rows."""
        query, connection = self.query, self.connection
        facts = facts_of_where(query.where) if self.is_stock and is_plain(query) else {}
        self.said = {counter: contribution(counter, facts, connection) for counter in self.counters}
        names_owners = all(said.names_owner for said in self.said.values())
        owners = {counter: said.owner_keys for counter, said in self.said.items()} if names_owners else None
        if all(said.is_known for said in self.said.values()):
            return self.write(owners, self._delete)
        # SQLite 3.40, which is widely used, returns a wrong ``column IS NULL`` if the first column is NOT NULL.
        can_return = (
            self.is_stock and connection.vendor != "sqlite" and connection.features.can_return_columns_from_insert
        )
        if can_return and (connection.vendor == "postgresql" or self.compiler.single_alias):
            return self.write(owners, self._delete_returning)
        return self.write(None, self._look_and_delete)

    def _delete(self) -> tuple[int, Change]:
        """WHERE says whose rows they are."""
        number = self.execute(self.compiler, ROW_COUNT) or 0
        return number, Change(
            {c: sums_of([said.owner], [-number * (said.value or 0)]) for c, said in self.said.items()}
        )

    def _delete_returning(self) -> tuple[int, Change]:
        """RETURNING says what each row, or on PostgreSQL each owner, has added to the counts."""
        grouped = self.connection.vendor == "postgresql" and max_rows(self.query) == inf
        number, rows = self.execute_returning("DELETE FROM", grouped)
        if rows is None:
            return number, Change({}, self.counters)
        first = 0 if grouped else len(self.model._meta.pk_fields)
        return number, Change(difference(self.counters, [row[first:] for row in rows]))

    def _look_and_delete(self) -> tuple[int, Change]:
        """Lock the rows, and see whose they are and whether they count."""
        found = lock_rows(self.query, self.connection, self.counters)
        keeps = keeps_to(found, self.query, self.connection, self.is_stock)
        number = self.execute(self.compiler, ROW_COUNT) or 0
        if keeps and number == len(found) and self.is_stock:
            return number, Change(difference(self.counters, found.values()))
        deltas: Deltas = {
            c: doubts_of(owner_keys) for c, owner_keys, _ in owners_of(self.counters, list(found.values()))
        }
        for counter, said in self.said.items():
            deltas[counter] |= doubts_of(said.owner_keys)
        are_found = keeps and number <= len(found)
        return number, Change(deltas, [] if are_found else [c for c, said in self.said.items() if not said.names_owner])
