"""What the three kinds of statements have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.db.models import Model

from ..declaration import Declaration
from .ledger import Ledger
from .returning import Returning, returning
from .rows import RowState


class Statement:
    """A statement of the ORM on its way to the database. ``execute`` is what the compiler does without the door;
    ``known`` says whether query and compiler are Django's own, so that its text can be added to."""

    def __init__(self, counters: tuple[Declaration, ...], compiler: Any, execute: Callable[..., Any], known: bool):
        self.counters = counters
        self.compiler = compiler
        self.execute = execute
        self.known = known
        self.query = compiler.query
        self.connection = compiler.connection
        self.using: str = compiler.connection.alias
        self.ledger = Ledger.of(self.using)

    @property
    def source(self) -> type[Model]:
        """The model whose table is written to. ``query.model`` may be another one of the same table."""
        return self.counters[0].source

    @property
    def returning(self) -> Returning:
        """Whose a row is and whether it counts, as columns to ask for."""
        return returning(self.counters, self.using)

    @property
    def can_return(self) -> bool:
        """Has the database a RETURNING that can be trusted? PostgreSQL and MariaDB have. MySQL has none, and SQLite
        3.40, which is in wide use, returns a wrong ``column IS NULL`` if the first column of the table cannot be NULL.
        """
        features = self.connection.features
        return self.known and self.connection.vendor != "sqlite" and features.can_return_columns_from_insert

    def record_deltas(self, deltas: Mapping[Declaration, Mapping[str, int]]) -> None:
        """Note what the statement has changed."""
        for counter, of_counter in deltas.items():
            self.ledger.record_deltas(counter, {member: delta for member, delta in of_counter.items() if delta})

    def record_doubt(self, states: Iterable[RowState]) -> None:
        """Send the owners of these rows to a recount."""
        for state in states:
            for counter, member, _ in state:
                if member is not None:
                    self.ledger.record_deltas(counter, {member: None})

    def record_activity(self, what: str, number: int) -> None:
        """Note for the time-sliced counters that so many rows were ``created``, ``read`` or ``deleted``."""
        if number:
            self.ledger.record_activity({(counter, what): number for counter in self.counters})
