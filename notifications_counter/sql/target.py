"""The table of totals, to which a flush writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from django.db.models import Field, GeneratedField, Model
from django.utils import timezone

from ..buffer.calls import OWNERS_PER_CALL
from ..chunks import chunked
from ..declaration import Declaration
from ..declaration.primary_keys import Key
from ..internals import BaseDatabaseWrapper, Param
from ..models.fields import field_of
from .owners import is_one_of


@dataclass(frozen=True)
class Chunk:
    """The keys of some owners, column by column, and their counts."""

    columns: Sequence[Sequence[Key]]
    counts: Sequence[int]


def own_columns(model: type[Model]) -> list[Field]:
    """Return the fields that are columns of the model's own table."""
    return [f for f in model._meta.get_fields(include_parents=False) if isinstance(f, Field) and f.concrete]


def other_fields(counter: Declaration) -> list[Field]:
    """Return the fields of the totals model that a flush of this counter sets to their default in a new row, except
    those with a database default."""
    model = counter.totals
    own = {field.name for field in (model._meta.pk, *counter.total_fields)}
    own |= {counter.field, "updated_at"}
    others = [field for field in own_columns(model) if field.name not in own and not field.has_db_default()]
    return [field for field in others if not isinstance(field, GeneratedField)]


class Target:
    """The totals table of a counter, quoted for a connection."""

    def __init__(self, counter: Declaration, connection: BaseDatabaseWrapper):
        self.counter = counter
        self.model = counter.totals
        self.connection = connection
        self.table = connection.ops.quote_name(self.model._meta.db_table)
        self.owners = [self._column(field.name) for field in counter.total_fields]
        self.owner = ", ".join(self.owners)
        self.count = self._column(counter.field)

    def _column(self, name: str) -> str:
        return self.connection.ops.quote_name(str(field_of(self.model, name).column))

    @cached_property
    def updated(self) -> str:
        return self._column("updated_at")

    @cached_property
    def others(self) -> list[Field]:
        return other_fields(self.counter)

    @cached_property
    def columns(self) -> str:
        names = (self._column(field.name) for field in self.others)
        return ", ".join((self.owner, self.count, self.updated, *names))

    @cached_property
    def placeholders(self) -> str:
        return ", ".join(["%s"] * (1 + len(self.others)))

    @cached_property
    def on_conflict(self) -> str:
        """What PostgreSQL and SQLite do with an existing row of the table, which the statement calls ``stored``."""
        return (
            f" ON CONFLICT ({self.owner}) DO UPDATE SET {self.count} = excluded.{self.count},"
            f" {self.updated} = excluded.{self.updated} WHERE stored.{self.count} <> excluded.{self.count}"
        )

    def values(self) -> tuple[Param, ...]:
        """Return the values that all new rows have: the time, and the defaults of the other fields."""
        row = self.model()
        updated_at = field_of(self.model, "updated_at")
        defaults = (field.get_db_prep_save(field.pre_save(row, add=True), self.connection) for field in self.others)
        return (updated_at.get_db_prep_save(timezone.now(), self.connection), *defaults)

    def stored(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the stored totals of these owners, where they exist."""
        found: dict[Key, int] = {}
        for chunk in chunked(keys, OWNERS_PER_CALL):
            where, params = is_one_of(self.counter, self.owners, chunk, self.connection)
            with self.connection.cursor() as cursor:  # the ORM is slower
                cursor.execute(f"SELECT {self.owner}, {self.count} FROM {self.table} WHERE {where}", params)
                found.update((self.counter.key_of_columns(key), total) for *key, total in cursor.fetchall())
        return found

    def db_columns(self, chunk: Chunk) -> list[list[Param]]:
        """Return the keys in the driver's types, column by column, and the counts."""
        return [*self.counter.db_columns(chunk.columns, self.connection), list(chunk.counts)]

    def as_json(self, chunk: Chunk) -> str:
        """Return the values as JSON, row by row."""
        return json.dumps(list(zip(*self.db_columns(chunk), strict=True)), ensure_ascii=False, default=str)
