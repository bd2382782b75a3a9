"""The ids of databases, to which keys in Redis belong.

Each database, and each tenant's schema, has its own id, which is part of every key. So a test database, another tenant
or another site on the same Redis can neither read nor change its counts. The id depends on a random ``uid`` in a row,
because a database that was emptied or replaced is another one, and on its location, because a copy has the same
``uid``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from hashlib import sha256
from pathlib import Path
from socket import gethostname
from typing import Any
from uuid import uuid4

from django.apps import apps
from django.core import mail
from django.core.signals import setting_changed
from django.db import DatabaseError, connections, transaction
from django.db.models import QuerySet
from django.dispatch import receiver

from ..buffer import Buffer
from ..buffer.client import keys_left
from ..buffer.shard import left_databases
from ..conf import SETTING
from ..exceptions import BufferUnavailable
from ..internals import BaseDatabaseWrapper, as_manual_transaction
from .routing import alias_for, own_rows, schema_of
from .transactions import in_transaction

OF_TESTS = "test"
"""The prefix of the ``uid`` of a test database."""

DAY = 86400
"""Seconds."""

LEFT = (
    "Database %r gets a new id, and everyone is recounted, because another database at the same address has used Redis "
    "in between. If this happens again and again, two sites share a Redis: give each a KEY_PREFIX of its own."
)

logger = logging.getLogger("notifications_counter")


class Database:
    """A database, or a schema.

    ``id``          changes with the ``uid`` and the location
    ``lasting_id``  does not depend on the server, which may be replaced: event log and time-sliced counters are stored
                    only in Redis, and must survive that
    ``address``     a hash of the location; the next database there leaves the keys of this one
    ``uid``         the random part of the id
    ``mark``        how the ``uid`` of a tenant's schema must end, by its name; '' for others. A clone starts with the
                    ``uid`` of its original, and so did an earlier clone of the same name
    ``in_memory``   whether it is a SQLite database in memory
    ``epochs``      of each shard, by counter, shard and number of shards; empty for test databases, because their Redis
                    may be emptied between two tests
    ``buffers``     of each counter that has been used
    """

    __slots__ = ("id", "lasting_id", "address", "uid", "mark", "in_memory", "epochs", "buffers")

    def __init__(
        self,
        uid: str,
        where: Sequence[Any],
        host: Sequence[Any] = (),
        system: Sequence[Any] = (),
        in_memory: bool = False,
        mark: str = "",
    ):
        # ``where``: on the server. ``system`` names the server, or else ``host`` does, of which a cluster has several.
        self.uid = uid
        self.mark = mark
        self.id = _hash(uid, *where, *system)
        self.lasting_id = _hash(uid, *where)
        self.address = _hash(*host, *where, *system)
        self.in_memory = in_memory
        self.epochs: dict[tuple[str, int, int], int] = {}
        self.buffers: dict[Any, list[Buffer]] = {}

    @property
    def ttl(self) -> int | str:
        """Seconds after which the lasting keys of a test database expire; '' for other databases."""
        return DAY if self.uid.startswith(OF_TESTS) else ""

    def epoch_of(self, counter: str, shard: int, shards: int) -> int:
        """Return the epoch of a shard. If another number of shards is in use, it is behind all (rule: highest)."""
        others = (epoch for (name, *_), epoch in self.epochs.items() if name == counter)
        return self.epochs.get((counter, shard, shards)) or max(others, default=0)


_known: dict[tuple[str, Any, str | None], Database] = {}


def current() -> Database:
    """Return the database in which this thread or task works, for data without a model. BufferUnavailable if it has no
    id yet."""
    return identify(connections[alias_for(apps.get_model("notifications_counter", "DatabaseId"))])


def identify(connection: BaseDatabaseWrapper) -> Database:
    """Return the database of a connection, or its schema. Each process asks for its id once. BufferUnavailable if it
    has none yet."""
    # As in _key(): each read comes here.
    key = connection.alias, connection.settings_dict["NAME"], getattr(connection, "schema_name", None)
    return _known.get(key) or look_up(connection)


def look_up_changed(connection: BaseDatabaseWrapper) -> Database:
    """Return the database. Look it up again if its ``uid`` has changed."""
    known = _known.get(_key(connection))
    with suppress(DatabaseError):
        if known and _rows(connection).filter(uid=known.uid).exists():
            return known
    return look_up(connection)


def look_up(connection: BaseDatabaseWrapper) -> Database:
    """Ask the database for its id. If it has none, or its keys were left (rule: renew), make a new one, except in a
    transaction, which may be rolled back. BufferUnavailable if there is no id."""
    inside = in_transaction(connection)
    try:
        with as_manual_transaction(connection), transaction.atomic(connection.alias) if inside else nullcontext():
            if (found := _read(connection)) is None and not inside:
                _rows(connection).get_or_create(pk=1, defaults={"uid": _new_uid()})
                found = _read(connection)
            if found and not found.uid.endswith(found.mark):  # it is new, a clone, or renamed
                if not inside:
                    _rows(connection).filter(uid=found.uid).update(uid=_new_uid(found.mark))
                found = None if inside else _read(connection)
            if found and found.id in left_databases and not inside:
                if _rows(connection).filter(uid=found.uid).update(uid=_new_uid(found.mark)):
                    about = {"event": "database_left", "database": connection.alias}
                    logger.warning(LEFT, connection.alias, extra=about)
                found = _read(connection)
            if found and not found.ttl:
                found.epochs = _read_epochs(connection)
    except DatabaseError as error:
        raise BufferUnavailable(
            f"The id of database {connection.alias!r} cannot be read: {error}. If its table is missing, run `manage.py "
            "migrate`. Reads count rows meanwhile."
        ) from error
    if found is None:
        raise BufferUnavailable(f"Database {connection.alias!r} has no id yet. Reads count rows meanwhile.")
    known = _known.get(_key(connection))
    if known is None or known.id != found.id:
        known = _known[_key(connection)] = found
    return known


def renew(connection: BaseDatabaseWrapper) -> None:
    """Give a restored database a new id, because its old keys count other rows. The caller must look it up."""
    _rows(connection).update(uid=_new_uid())


@receiver(keys_left)
def _forget(**_: Any) -> None:
    _known.clear()


@receiver(setting_changed)
def forget_buffers(setting: str = SETTING, **_: Any) -> None:
    """Drop the buffers of every counter after a change of settings."""
    if setting in ("CACHES", SETTING):
        for database in _known.values():
            database.buffers = {}


def _key(connection: BaseDatabaseWrapper) -> tuple[str, Any, str | None]:
    return connection.alias, connection.settings_dict["NAME"], schema_of(connection)


def _rows(connection: BaseDatabaseWrapper) -> QuerySet[Any]:
    return own_rows("DatabaseId", connection.alias)


def _read(connection: Any) -> Database | None:
    """Return the database by its ``uid`` and its own account of its location: settings may differ between processes."""
    table = connection.ops.quote_name(_rows(connection).model._meta.db_table)
    about = {
        "postgresql": ", current_database(), "
        f"(SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = {table}.tableoid), "
        "has_function_privilege(to_regprocedure('pg_control_system()')::oid, 'EXECUTE')",
        "mysql": ", DATABASE(), @@hostname, @@port",
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
        mark = "" if schema_of(connection) is None else _hash(address[1])[:8]
        return Database(uid, address[:2], system=address[2:], mark=mark)
    if connection.vendor == "mysql":  # a cluster has several hosts, and is one database
        return Database(uid, address[:1], address[1:])
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        return _in_memory(uid, name) if connection.is_in_memory_db() else Database(uid, [Path(address[0]).resolve()])
    return Database(uid, [name])


def _read_epochs(connection: BaseDatabaseWrapper) -> dict[tuple[str, int, int], int]:
    shards = own_rows("CounterShard", connection.alias)
    return {tuple(about): epoch for *about, epoch in shards.values_list("counter", "shard", "shards", "epoch")}


def _new_uid(mark: str = "") -> str:
    """Make a random ``uid`` that ends with ``mark``. ``mail.outbox`` exists only in processes of Django's test runner
    or pytest-django."""
    return ((OF_TESTS if hasattr(mail, "outbox") else "") + uuid4().hex)[: 32 - len(mark)] + mark


def _in_memory(uid: str, name: Any) -> Database:
    """Return a database in memory. Each process has its own; a fork has a copy of its parent's, with the same
    ``uid``."""
    return Database(uid, [name, gethostname(), os.getpid()], in_memory=True)


def _forked() -> None:
    for key, database in _known.items():
        if database.in_memory:
            _known[key] = _in_memory(database.uid, key[1])


if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(after_in_child=_forked)


def _hash(*parts: Any) -> str:
    return sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]
