"""The ids of databases, to which keys in Redis belong.

Each database, and each tenant's schema, has its own id, which is part of every key. So a test database, another tenant
or another site on the same Redis can neither read nor change its counts. The id is a digest of a random ``uid`` in a
row and, because a copy has the same, of its name. Each process asks for it once, and again after ``migrate`` and
``flush``. Whoever empties, swaps or restores a database restarts the processes that use it.
"""

from __future__ import annotations

import os
from base64 import b32encode
from contextlib import nullcontext
from hashlib import sha256
from socket import gethostname
from typing import NamedTuple
from uuid import uuid4

from django.apps import apps
from django.db import DatabaseError, connections, transaction
from django.db.models import Model, QuerySet

from ..exceptions import BufferUnavailable
from ..internals import BaseDatabaseWrapper, Uncached, as_manual_transaction
from .errors import explain
from .isolation import in_transaction
from .routing import alias_for, schema_of


class Database(NamedTuple):
    """The ``id`` of a database, or a schema; and the names of the counters that flushers had ``served`` when it was
    looked up, so that their Redis is not new. Without an id, ``problem`` says why, and what to do."""

    id: str
    served: frozenset[str] = frozenset()
    problem: str = ""


Address = tuple[str, str, str | None]
"""The alias of a connection, the NAME of its database, and a tenant's schema."""

databases: dict[Address, Database] = {}
"""Those that this process has identified."""


def current() -> Database:
    """Return the database in which this thread or task works, for data without a model. BufferUnavailable if it has no
    id yet."""
    database = identify(connections[alias_for(apps.get_model("notifications_counter", "DatabaseId"))])
    if database.problem:
        raise BufferUnavailable(database.problem)
    return database


def identify(connection: BaseDatabaseWrapper) -> Database:
    """Return the database of a connection, or its schema. Each process asks for its id until it has one."""
    # As in _key(): each read comes here.
    key = connection.alias, connection.settings_dict["NAME"], getattr(connection, "schema_name", None)
    return databases.get(key) or look_up(connection)


def look_up(connection: BaseDatabaseWrapper) -> Database:
    """Ask the database for its id. If it has none, make one, except in a transaction, which may be rolled back."""
    ids = _rows(connection)
    inside = in_transaction(connection)
    table = connection.ops.quote_name(ids.model._meta.db_table)
    # Its own account of its name, because settings may differ between processes
    name = {
        "postgresql": "current_database(), "
        f"(SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = {table}.tableoid)",
        "mysql": "DATABASE()",
        "sqlite": "(SELECT file FROM pragma_database_list WHERE name = 'main')",
    }.get(connection.vendor, "NULL")
    try:
        with as_manual_transaction(connection), transaction.atomic(connection.alias) if inside else nullcontext():
            if not inside:
                ids.get_or_create(pk=1, defaults={"uid": uuid4().hex})
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT uid, {name} FROM {table}")
                row = cursor.fetchone()
            rows = _rows(connection, "CounterState").exclude(fingerprint="").exclude(declared_at=None)
            served = frozenset(rows.values_list("counter", flat=True))
    except DatabaseError as error:
        return Database("", problem=explain(error, f"The id of database {connection.alias!r} cannot be read"))
    if row is None:
        return Database("", problem=f"Database {connection.alias!r} has no id yet.")
    if row[1] == "":  # SQLite in memory: each process has its own
        row = (*row, connection.settings_dict["NAME"], gethostname(), os.getpid())
    found = databases[_key(connection)] = Database(digest(*row), served)
    return found


def look_up_after_migrate(using: str, **_: object) -> None:
    """Look up the id of a database after ``migrate`` or ``flush``."""
    look_up(connections[using])


def _key(connection: BaseDatabaseWrapper) -> Address:
    return connection.alias, connection.settings_dict["NAME"], schema_of(connection)


def _rows(connection: BaseDatabaseWrapper, model: str = "DatabaseId") -> QuerySet[Model]:
    """Return the rows of a model, given by name: time-sliced counters may be imported before models."""
    return Uncached(apps.get_model("notifications_counter", model), using=connection.alias)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(after_in_child=databases.clear)  # a database in memory is another one there


def digest(*parts: object) -> str:
    """Return a digest of the texts of some objects: 64 bits in 13 letters and digits, as it is in each key."""
    return b32encode(sha256("\0".join(map(str, parts)).encode()).digest()[:8]).decode().rstrip("=").lower()
