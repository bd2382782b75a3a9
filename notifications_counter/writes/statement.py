"""The base of INSERT, UPDATE and DELETE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import Model

from ..declaration import Declaration
from ..internals import CURSOR
from .columns import Columns, Row, columns_of


class Statement:
    """A statement of the ORM on its way to the database.

    ``execute``   executes a compiler by the original method
    ``is_stock``  whether query and compiler have Django's own classes, so that their SQL can be extended
    """

    def __init__(self, counters: tuple[Declaration, ...], compiler: Any, execute: Callable[..., Any], is_stock: bool):
        self.counters = counters
        self.compiler = compiler
        self.execute = execute
        self.is_stock = is_stock
        self.query = compiler.query
        self.connection = compiler.connection
        self.using: str = compiler.connection.alias

    @property
    def model(self) -> type[Model]:
        """The written model, which may be another one of the counted table: at the time of a migration, the primary key
        may have had another name."""
        return self.query.model

    @property
    def columns(self) -> Columns:
        """Owner and value for each counter, as columns for RETURNING."""
        return columns_of(self.counters, self.using, self.model)

    @property
    def can_return(self) -> bool:
        """Whether RETURNING exists and is reliable. MySQL does not have it. SQLite 3.40, which is widely used, returns
        a wrong ``column IS NULL`` if the first column of the table is NOT NULL."""
        features = self.connection.features
        return self.is_stock and self.connection.vendor != "sqlite" and features.can_return_columns_from_insert

    def fetch(self, as_sql: Callable[[], tuple[str, tuple[Any, ...]]]) -> Sequence[Row]:
        """Execute the statement by other SQL, and return the rows that this returns."""
        self.compiler.as_sql = as_sql
        try:
            cursor = self.execute(self.compiler, CURSOR)
        finally:
            del self.compiler.as_sql
        if not cursor:  # the WHERE clause matches nothing
            return []
        with cursor:
            return cursor.fetchall()
