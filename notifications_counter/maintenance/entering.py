"""Gives a database its id, and tells Redis of its counters."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from django.db import connections, transaction

from ..databases.identity import look_up, renew
from ..declaration import declarations
from ..exceptions import BufferUnavailable


def enter_after_migrate(using: str, **_: Any) -> None:
    """Look up the id of a database after ``migrate`` or ``flush``. If it is new, all processes learn of it."""
    connection = connections[using]
    with suppress(BufferUnavailable):
        look_up(connection)
        for counter in declarations():
            if counter.db == using:
                for buffer in counter.buffers_in(connection):
                    buffer.enter()


def enter_restored(using: str, raw: bool, **_: Any) -> None:
    """Renew the id of a database that is loaded from a fixture. A test with ``serialized_rollback`` restores the id
    that the tests before it had, and Django sends no ``post_migrate``."""
    if raw:
        transaction.on_commit(partial(_renew, using), using)


def _renew(using: str) -> None:
    renew(connections[using])
    enter_after_migrate(using)
