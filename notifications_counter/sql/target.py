"""The table of totals, to which a flush writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from django.db.models import IntegerField
from django.utils import timezone

from ..buffer.types import OWNERS_PER_CALL
from ..declaration import Declaration
from ..declaration.primary_keys import Pk
from ..exceptions import ConfigurationError
from ..internals import BaseDatabaseWrapper, Param
from ..models.fields import field_of
from ..redis.calls import chunked
from .owners import arrays, is_one_of


class Target:
    """The totals table of a counter, quoted for a connection."""

    def __init__(self, counter: Declaration, connection: BaseDatabaseWrapper):
        self.counter = counter
        self.model = counter.totals
        self.connection = connection
        self.table = connection.ops.quote_name(self.model._meta.db_table)
        self.owner_columns = [self._column(field.name) for field in counter.total_fields]
        self.count = self._column(counter.field)
        self.updated = self._column("updated_at")

    def _column(self, name: str) -> str:
        return self.connection.ops.quote_name(str(field_of(self.model, name).column))

    def store(self, counts: Mapping[Pk, int]) -> None:
        """Store the counts of these owners, in one statement: the chunk is a table in it."""
        names = [*(f"owner{i}" for i in range(len(self.owner_columns))), "total"]
        pks = self.counter.db_columns(list(counts), self.connection)
        chunk, of_chunk = self._chunk(names, [*pks, [*counts.values()]])
        columns = ", ".join([*self.owner_columns, self.count, self.updated])  # the database fills the others
        updated_at = field_of(self.model, "updated_at").get_db_prep_save(timezone.now(), self.connection)
        on_conflict, of_conflict = self._on_conflict(updated_at)
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {self.table} ({columns})"
                f" SELECT {', '.join(names)}, %s FROM {chunk} WHERE true {on_conflict}",
                (updated_at, *of_chunk, *of_conflict),
            )

    def _chunk(self, names: list[str], columns: list[list[Param]]) -> tuple[str, list[Param]]:
        """Return a table with columns of these names: from arrays, or else from JSON."""
        vendor = self.connection.vendor
        if vendor == "postgresql":  # drivers bind a text faster than a list of integers
            values = [f"{{{','.join(map(str, each))}}}" if isinstance(each[0], int) else each for each in columns]
            kinds = arrays(self.counter, self.connection)
            return f"unnest({kinds}, %s::bigint[]) AS chunk ({', '.join(names)})", values
        rows = json.dumps(list(zip(*columns, strict=True)), ensure_ascii=False, default=str)
        if vendor == "sqlite":
            parts = [f"json_extract(value, '$[{i}]') AS {name}" for i, name in enumerate(names)]
            return f"(SELECT {', '.join(parts)} FROM json_each(%s)) AS chunk", [rows]
        if vendor == "mysql":  # BIGINT is faster; by default, a text has the character set of the database
            are_integers = [*(isinstance(field, IntegerField) for field in self.counter.pk_fields), True]
            parts = [
                f"{name} {'BIGINT' if is_integer else 'TEXT CHARACTER SET utf8mb4'} PATH '$[{i}]'"
                for i, (name, is_integer) in enumerate(zip(names, are_integers, strict=True))
            ]
            return f"JSON_TABLE(%s, '$[*]' COLUMNS ({', '.join(parts)})) AS chunk", [rows]
        raise ConfigurationError(f"Counters need PostgreSQL, MySQL, MariaDB or SQLite, not a database of {vendor!r}.")

    def _on_conflict(self, updated_at: Param) -> tuple[str, list[Param]]:
        """Return what becomes of a stored total, and parameters: a new one replaces it, at a new time if it differs."""
        count, updated, stored = self.count, self.updated, f"{self.table}.{self.count}"
        owner = ", ".join(self.owner_columns)
        if self.connection.vendor != "mysql":
            return (
                f"ON CONFLICT ({owner}) DO UPDATE SET {count} = excluded.{count}, {updated} = excluded.{updated}"
                f" WHERE {stored} <> excluded.{count}"
            ), []
        # Assignments run from left to right. Django would ask for the version: MySQL deprecates VALUES(), and MariaDB
        # knows no other name for the new row. Both know the chunk.
        return (
            f"ON DUPLICATE KEY UPDATE {updated} = IF({stored} <> chunk.total, %s, {self.table}.{updated}),"
            f" {count} = chunk.total"
        ), [updated_at]

    def stored(self, pks: Sequence[Pk]) -> dict[Pk, int]:
        """Return the stored totals of these owners, where they exist."""
        found: dict[Pk, int] = {}
        owner = ", ".join(self.owner_columns)
        for chunk in chunked(pks, OWNERS_PER_CALL):
            where, params = is_one_of(self.counter, self.owner_columns, chunk, self.connection)
            with self.connection.cursor() as cursor:  # the ORM is slower
                cursor.execute(f"SELECT {owner}, {self.count} FROM {self.table} WHERE {where}", params)
                found.update((self.counter.pk_of_row(pk), total) for *pk, total in cursor.fetchall())
        return found
