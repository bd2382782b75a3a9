"""What a flush writes to, and what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.utils import timezone

from ..declaration import Declaration


@dataclass(frozen=True)
class Chunk:
    """Users and deltas of one statement, as two lists; for integer keys also as two comma-joined texts."""

    keys: list[Any]
    deltas: list[int]
    joined: tuple[str, str] | None = None


class Target:
    """The totals table of a counter, quoted for a connection."""

    def __init__(self, counter: Declaration, connection: Any):
        self.counter = counter
        self.model = counter.totals
        self.connection = connection
        self.table = connection.ops.quote_name(self.model._meta.db_table)

    def _column(self, name: str) -> str:
        field: Any = self.model._meta.get_field(name)
        return self.connection.ops.quote_name(field.column)

    @cached_property
    def owner(self) -> str:
        return self._column(self.model._meta.pk.name)

    @cached_property
    def count(self) -> str:
        return self._column(self.counter.field)

    @cached_property
    def batch(self) -> str:
        return self._column("flushed_batch")

    @cached_property
    def updated(self) -> str:
        return self._column("updated_at")

    @property
    def columns(self) -> str:
        return f"{self.owner}, {self.count}, {self.batch}, {self.updated}"

    def now(self) -> Any:
        return self.connection.ops.adapt_datetimefield_value(timezone.now())

    def db_keys(self, chunk: Chunk) -> list[Any]:
        """The keys as the driver wants them."""
        if chunk.joined:  # integers are as they are
            return chunk.keys
        return self.counter.db_keys(chunk.keys, self.connection)
