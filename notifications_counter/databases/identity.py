"""The ids of databases, to which keys in Redis belong.

Each database, and each tenant's schema, has its own id, which is part of every key. So a test database, another tenant
or another site on the same Redis can neither read nor change its counts. The id depends on a random ``uid`` in a row,
and on the database's location, because a copy has the same ``uid``. Each process reads it once, and again after
``migrate`` and ``flush``. Whoever empties, swaps or restores a database restarts the processes that use it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from uuid import uuid4

from django.apps import apps
from django.core.signals import setting_changed
from django.db import DatabaseError, connections, transaction
from django.db.models import Model, QuerySet
from django.dispatch import receiver

from ..buffer import Buffer
from ..conf import SETTING
from ..exceptions import BufferUnavailable
from ..internals import BaseDatabaseWrapper, as_manual_transaction
from .routing import alias_for, schema_of
from .transactions import in_transaction


class Database:
    """A database, or a schema.

    ``id``          changes with the ``uid`` and the location
    ``lasting_id``  does not depend on the server, which may be replaced: event log and time-sliced counters are stored
                    only in Redis, and must survive that
    ``uid``         the random part of the id
    ``ending``      how the ``uid`` of a tenant's schema must end, by its name; '' for others. A clone starts with the
                    ``uid`` of its original, and so did an earlier clone of the same name
    ``begun``       the names of those for which a generation has begun, so that their Redis is not new
    ``buffers``     of each counter that has been used
    ``in_force``    the fingerprint of each counter, by name, that this process has found in force, or put in force
    """

    __slots__ = ("id", "lasting_id", "uid", "ending", "begun", "buffers", "in_force")

    def __init__(
        self,
        uid: str,
        where: Sequence[object],
        system: Sequence[object] = (),
        ending: str = "",
    ):
        # ``where``: on the server. ``system`` names the server.
        self.uid = uid
        self.ending = ending
        self.id = digest(uid, *where, *system)
        self.lasting_id = digest(uid, *where)
        self.begun: set[str] = set()
        self.buffers: dict[object, Buffer] = {}
        self.in_force: dict[str, str] = {}


Address = tuple[str, str, str | None]
"""The alias of a connection, the NAME of its database, and a tenant's schema."""

databases: dict[Address, Database] = {}
"""Those that this process has identified."""


def current() -> Database:
    """Return the database in which this thread or task works, for data without a model. BufferUnavailable if it has no
    id yet."""
    return identify(connections[alias_for(apps.get_model("notifications_counter", "DatabaseId"))])


def identify(connection: BaseDatabaseWrapper) -> Database:
    """Return the database of a connection, or its schema. Each process asks for its id once. BufferUnavailable if it
    has none yet."""
    # As in _key(): each read comes here.
    key = connection.alias, connection.settings_dict["NAME"], getattr(connection, "schema_name", None)
    return databases.get(key) or look_up(connection)


def look_up(connection: BaseDatabaseWrapper) -> Database:
    """Ask the database for its id. If it has none, make one, except in a transaction, which may be rolled back.
    BufferUnavailable if there is no id."""
    inside = in_transaction(connection)
    try:
        with as_manual_transaction(connection), transaction.atomic(connection.alias) if inside else nullcontext():
            if (found := _read(connection)) is None and not inside:
                _rows(connection).get_or_create(pk=1, defaults={"uid": _new_uid()})
                found = _read(connection)
            if found and not found.uid.endswith(found.ending):  # it is new, a clone, or renamed
                if not inside:
                    _rows(connection).filter(uid=found.uid).update(uid=_new_uid(found.ending))
                found = None if inside else _read(connection)
            if found:
                begun = _rows(connection, "CounterState").exclude(mark="")
                found.begun = set(begun.values_list("counter", flat=True))
    except DatabaseError as error:
        raise BufferUnavailable(
            f"The id of database {connection.alias!r} cannot be read: {error}. If its table is missing, run `manage.py "
            "migrate`. Reads count rows meanwhile."
        ) from error
    if found is None:
        raise BufferUnavailable(f"Database {connection.alias!r} has no id yet. Reads count rows meanwhile.")
    known = databases.get(_key(connection))
    if known is None or known.id != found.id:
        known = databases[_key(connection)] = found
    return known


def look_up_after_migrate(using: str, **_: object) -> None:
    """Look up the id of a database after ``migrate`` or ``flush``."""
    with suppress(BufferUnavailable):
        look_up(connections[using])


def renew_restored(using: str, raw: bool, **_: object) -> None:
    """Renew the id of a database that is loaded from a fixture. A test with ``serialized_rollback`` restores the id
    that the tests before it had, and Django sends no ``post_migrate``."""
    if raw:
        transaction.on_commit(partial(_renew, using), using)


def _renew(using: str) -> None:
    _rows(connections[using]).update(uid=_new_uid())
    look_up_after_migrate(using)


@receiver(setting_changed)
def forget_buffers(setting: str = SETTING, **_: object) -> None:
    """Drop the buffers of every counter after a change of settings."""
    if setting in ("CACHES", SETTING):
        for database in databases.values():
            database.buffers = {}


def _key(connection: BaseDatabaseWrapper) -> Address:
    return connection.alias, connection.settings_dict["NAME"], schema_of(connection)


def _rows(connection: BaseDatabaseWrapper, model: str = "DatabaseId") -> QuerySet[Model]:
    """Return the rows of a model, given by name: time-sliced counters may be imported before models."""
    return QuerySet(apps.get_model("notifications_counter", model), using=connection.alias)


def _read(connection: BaseDatabaseWrapper) -> Database | None:
    """Return the database by its ``uid`` and its own account of its location: settings may differ between processes."""
    table = connection.ops.quote_name(_rows(connection).model._meta.db_table)
    about = {
        "postgresql": ", current_database(), "
        f"(SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = {table}.tableoid), "
        "has_function_privilege(to_regprocedure('pg_control_system()')::oid, 'EXECUTE')",
        "mysql": ", DATABASE()",
        "sqlite": ", (SELECT file FROM pragma_database_list WHERE name = 'main')",  # NAME may be a URI
    }.get(connection.vendor, "")
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT uid{about} FROM {table}")
        if (found := cursor.fetchone()) is None:
            return None
        uid, *address = found
        if connection.vendor == "postgresql" and address.pop():
            cursor.execute("SELECT system_identifier FROM pg_control_system()")
            address += cursor.fetchone()
    if connection.vendor == "postgresql":
        ending = "" if schema_of(connection) is None else digest(address[1])[:8]
        return Database(uid, address[:2], address[2:], ending=ending)
    if connection.vendor == "mysql":
        return Database(uid, address)
    name = connection.settings_dict["NAME"]
    if hasattr(connection, "is_in_memory_db"):  # SQLite
        is_in_memory = connection.is_in_memory_db()  # then each process has its own
        return Database(uid, [name, gethostname(), os.getpid()] if is_in_memory else [Path(address[0]).resolve()])
    return Database(uid, [name])


def _new_uid(ending: str = "") -> str:
    """Make a random ``uid`` with this ending."""
    return uuid4().hex[: 32 - len(ending)] + ending


if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(after_in_child=databases.clear)  # a database in memory is another one there


def digest(*parts: object) -> str:
    """Return a short digest of the texts of some objects."""
    return sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
