"""Which database a counter's keys in Redis belong to.

Each database, and each schema of a tenant, has an id of its own, which is part of every key. So a test database,
another tenant, or another site on the same Redis can neither read nor change its counts. The id follows from a random
row, because a database that was emptied or replaced is another one, and from where the row is, because a copy has the
same row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.apps import apps
from django.db import DatabaseError, connections, transaction
from django.db.models import QuerySet
from django.dispatch import receiver

from .buffer import Buffer
from .buffer.client import keys_left
from .exceptions import BufferUnavailable, DatabaseChanged


class Database:
    """A database, or a schema.

    ``id``       of the database as it is now
    ``place``    where it is: the next database there leaves the keys of this one
    ``row``      the random part of the id
    ``buffers``  of each counter that has been used
    """

    __slots__ = ("id", "place", "row", "buffers")

    def __init__(self, row: str, where: Sequence[Any], host: Sequence[Any] = ()):
        self.row = row
        self.id = _hash(row, *where)
        self.place = _hash(*host, *where)
        self.buffers: dict[Any, list[Buffer]] = {}


_known: dict[tuple[str, Any, str | None], Database] = {}


def identify(using: str) -> Database:
    """The database that this thread's connection works on. BufferUnavailable if it has no id yet.

    Each process asks a database, or a schema, once.
    """
    connection = connections[using]
    return _known.get(_key(connection)) or look_up(connection)


def look_up(connection: Any) -> Database:
    """Ask the database for its id, which is made if it is missing; but not in a transaction, which may be rolled back.

    BufferUnavailable if there is none.
    """
    in_transaction = _in_transaction(connection)
    try:
        with transaction.atomic(using=connection.alias) if in_transaction else nullcontext():
            if (found := _read(connection)) is None and not in_transaction:
                _rows(connection).get_or_create(pk=1, defaults={"uid": uuid4().hex})
                found = _read(connection)
    except DatabaseError as error:
        raise BufferUnavailable(
            f"Database {connection.alias!r} has no id: {error}. Run `manage.py migrate`. Counts are read from the rows "
            "meanwhile."
        ) from error
    if found is None:
        raise BufferUnavailable(
            f"Database {connection.alias!r} has no id yet. Counts are read from the rows meanwhile."
        )
    known = _known.get(_key(connection))
    if known is None or known.id != found.id:
        known = _known[_key(connection)] = found
    return known


def look_up_again(using: str, left: Database) -> Database:
    """Ask a database for its id after its keys were left. If it is still the same, it gets a new one."""
    connection = connections[using]
    if _in_transaction(connection):
        raise DatabaseChanged("The id of a database cannot be changed inside a transaction.")
    found = look_up(connection)
    if found.id == left.id:
        _rows(connection).filter(uid=left.row).update(uid=uuid4().hex)
        found = look_up(connection)
    return found


@receiver(keys_left)
def _forget(**_: Any) -> None:
    _known.clear()


def forget_buffers() -> None:
    """Drop the buffers of every counter, after a change of settings. The databases are the same."""
    for database in _known.values():
        database.buffers = {}


def _key(connection: Any) -> tuple[str, Any, str | None]:
    return connection.alias, connection.settings_dict["NAME"], getattr(connection, "schema_name", None)


def _in_transaction(connection: Any) -> bool:
    return connection.in_atomic_block or not connection.get_autocommit()


def _rows(connection: Any) -> QuerySet[Any]:
    return QuerySet(apps.get_model("notifications_counter", "DatabaseId"), using=connection.alias)


def _read(connection: Any) -> Database | None:
    """The row, and where it is, as the database says: processes may have other settings for the same database."""
    table = connection.ops.quote_name(apps.get_model("notifications_counter", "DatabaseId")._meta.db_table)
    about = {
        "postgresql": ", current_database(), "
        f"(SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = {table}.tableoid), "
        "has_function_privilege(to_regprocedure('pg_control_system()')::oid, 'EXECUTE')",
        "mysql": ", DATABASE(), @@hostname, @@port",
    }.get(connection.vendor, "")
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT uid{about} FROM {table}")
        if (found := cursor.fetchone()) is None:
            return None
        row, *place = found
        if connection.vendor == "postgresql" and place.pop():
            cursor.execute("SELECT system_identifier FROM pg_control_system()")
            place += cursor.fetchone()
    if connection.vendor == "postgresql":
        return Database(row, place)
    if connection.vendor == "mysql":  # a cluster has several hosts, and is one database
        return Database(row, place[:1], place[1:])
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite" and connection.is_in_memory_db():
        return Database(row, [name], [row])  # each process has one of this name
    return Database(row, [Path(name).resolve() if connection.vendor == "sqlite" else name])


def _hash(*parts: Any) -> str:
    return sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
