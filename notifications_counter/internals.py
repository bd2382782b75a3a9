"""Every private or undocumented name of other packages that this app uses, each with the reason.

Other modules import such names from here. Calls are small functions; attributes that are read too often for a call, or
are set, are in ``ATTRIBUTES``. ``tests/test_internals.py`` checks what we rely on against the installed versions, and
fails if the app uses a name that is not listed here. This module imports nothing of ours.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from asgiref.sync import SyncToAsync
from django.apps.registry import Apps
from django.core.handlers.exception import response_for_exception
from django.db import Error
from django.db.backends.utils import CursorWrapper
from django.db.migrations.writer import MigrationWriter
from django.db.models import QuerySet
from django.db.models.constants import OnConflict
from django.db.models.expressions import Col
from django.db.models.query_utils import DeferredAttribute
from django.db.models.sql import DeleteQuery, InsertQuery, Query, UpdateQuery
from django.db.models.sql.compiler import SQLDeleteCompiler, SQLInsertCompiler, SQLUpdateCompiler
from django.db.models.sql.constants import CURSOR, ROW_COUNT
from django.db.models.sql.where import AND, OR, ExtraWhere, WhereNode
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.module_loading import autodiscover_modules

__all__ = [
    # Every write of the ORM ends in a method of these, which the door wraps.
    "SQLDeleteCompiler",
    "SQLInsertCompiler",
    "SQLUpdateCompiler",
    # What they compile. A query of another class may do anything, so its rows are in doubt.
    "DeleteQuery",
    "InsertQuery",
    "Query",
    "UpdateQuery",
    # The result types of their execute_sql(), and the ON CONFLICT of an INSERT.
    "CURSOR",
    "ROW_COUNT",
    "OnConflict",
    # The nodes of a condition, which Python can evaluate only if it knows them.
    "AND",
    "OR",
    "Col",
    "ExtraWhere",
    "WhereNode",
    # Writes the condition of a counter as code that is the same in every process.
    "MigrationWriter",
    # The descriptor of a field that reads the instance's __dict__. Another one may return anything.
    "DeferredAttribute",
    # A registry for a model of another package's table, which belongs to no app.
    "Apps",
    # The page that Django shows for an exception, with the handler404 of the site.
    "response_for_exception",
    # Helpers that Django's own apps use as well.
    "autodiscover_modules",
    "url_has_allowed_host_and_scheme",
]


# ------------------------------------------------------------------- Django: errors
def statement_of(error: BaseException) -> str:
    """Return the SQL, without its parameters, of the statement that raised a database error; empty if it is unknown.
    Neither Django nor the drivers tell."""
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is CursorWrapper._execute.__code__:  # type: ignore[attr-defined]
            return str(traceback.tb_frame.f_locals.get("sql", ""))
        traceback = traceback.tb_next
    return ""


# ------------------------------------------------------------ redis-py: connections
def limit_setup(pool: Any, seconds: Callable[[], float | None]) -> None:
    """Have the connections of a pool wait for at most ``seconds()`` for each reply while they are set up. None: for as
    long as the site has set. A pool that limits their number sets them up itself, before it returns them."""
    pool.connection_class = _limited(pool.connection_class, seconds)


@cache
def _limited(kind: Any, seconds: Callable[[], float | None]) -> Any:
    if hasattr(kind, "setup_is_limited"):
        return kind

    class Limited(kind):  # type: ignore[misc]
        setup_is_limited = True

        def _connect(self: Any) -> Any:
            if (limit := seconds()) is None:
                return super()._connect()
            theirs = self.socket_timeout, self.socket_connect_timeout
            self.socket_timeout, self.socket_connect_timeout = (
                limit if timeout is None else min(limit, timeout) for timeout in theirs
            )
            try:  # the socket keeps the limit for what follows, such as AUTH
                return super()._connect()
            finally:
                self.socket_timeout, self.socket_connect_timeout = theirs

    return Limited


def limit_wait(connection: Any, limit: float | None) -> None:
    """Have a connection wait for at most ``limit`` seconds for each reply from now on. None: for as long as the site
    has set. It does nothing if the connection is still to be set up."""
    timeout, sock = connection.socket_timeout, connection._sock
    if limit is not None and (timeout is None or limit < timeout):
        timeout = limit
    if sock is not None and sock.gettimeout() != timeout:  # setting it is a system call
        sock.settimeout(timeout)


def socket_of(connection: Any) -> Any:
    """Return the socket of a connection; None if it is closed. redis-py may close it, and open another one later."""
    return connection._sock


def new_connection(pool: Any) -> Any:
    """Make a connection with the class and arguments of a pool. The bookkeeping of a plain ``ConnectionPool`` would
    take a quarter of the time of a command."""
    return pool.connection_class(**pool.connection_kwargs)


def is_exhausted(error: Exception) -> bool:
    """Return whether all connections that the site allows are in use. redis-py has an exception for that only from
    version 7 on."""
    return str(error) == "Too many connections"


def disconnect_idle(pool: Any) -> None:
    """Close the connections of a pool that nobody uses. Before redis-py 7, a BlockingConnectionPool would also close
    those in use, so it closes none."""
    if "inuse_connections" in inspect.signature(pool.disconnect).parameters:
        pool.disconnect(inuse_connections=False)


def has_input(connection: Any) -> bool:
    """Return whether there is something to read. On an idle connection, that is its end, or the rest of a reply."""
    return connection.can_read()


def send_packed(connection: Any, commands: Iterable[bytes]) -> None:
    """Send packed commands. ``send_command`` would pack them itself, more slowly."""
    connection.send_packed_command(commands)


def default_socket_timeout() -> float | None:
    """Return how many seconds a connection waits for a reply by default. Versions of redis-py differ."""
    from redis.connection import AbstractConnection

    return inspect.signature(AbstractConnection.__init__).parameters["socket_timeout"].default


# ---------------------------------------------------------------- redis-py: clusters
def new_cluster(url: str, seconds: Callable[[], float | None], **options: Any) -> Any:
    """Make the client of a cluster, whose connections are set up as those of ``limit_setup`` are; with TLS, only after
    it has found the nodes for the first time."""
    from redis.cluster import RedisCluster
    from redis.connection import Connection

    cluster = RedisCluster.from_url(url, **{"connection_class": _limited(Connection, seconds), **options})
    theirs = cluster.nodes_manager.connection_kwargs
    theirs["connection_class"] = _limited(theirs["connection_class"], seconds)
    return cluster


def node_pool(cluster: Any, key: str) -> Any:
    """Return the pool of the node that holds a key. ``execute_command`` would retry, and could count a delta twice."""
    return cluster.get_redis_connection(cluster.get_node_from_key(key)).connection_pool


def reload_nodes(cluster: Any) -> None:
    """Ask the cluster which node holds what. redis-py does so only in ``execute_command``.

    Before version 8, it closes all connections to the node that it asked, even those in use. So let it ask over a new
    one.
    """
    nodes = cluster.nodes_manager
    nodes.startup_nodes = {node.name: type(node)(node.host, node.port) for node in list(nodes.startup_nodes.values())}
    nodes.initialize()


def disconnect_nodes(cluster: Any) -> None:
    """Close the connections to all nodes. After ``close``, the client might not be usable anymore."""
    cluster.disconnect_connection_pools()


# --------------------------------------------------------------------- django-redis
def connection_factory(cache: Any) -> Any:
    """Return the CONNECTION_FACTORY of a cache, or None if it is not a django-redis cache."""
    return getattr(getattr(cache, "client", None), "connection_factory", None)


def pool_options(factory: Any) -> dict[str, Any]:
    """Return the CONNECTION_POOL_KWARGS of a django-redis connection factory."""
    return factory.pool_cls_kwargs


# --------------------------------------------------------------------------- Django
ATTRIBUTES = {
    "connection": {
        "autocommit": "False if it was switched off by hand. get_autocommit() would connect.",
        "close_if_unusable_or_obsolete": "Django calls it between requests; a command calls it between runs.",
        "commit_on_exit": "False in an atomic block inside such a transaction, which does not commit it.",
        "connection": "The driver's connection, None until it is needed.",
        "execute_wrappers": "A list. We insert ours at the front for a while; execute_wrapper() pops the last one.",
        "features": "What the database can do: see features.",
        "is_usable": "Asks the server whether it still answers, past all wrappers.",
        "in_atomic_block": "Whether atomic() has opened a transaction. Already False when it commits.",
        "introspection": "The tables that exist. Another app's migration may write before ours are created.",
        "is_in_memory_db": "SQLite in memory has one process, so it needs no IMMEDIATE transactions.",
        "isolation_level": "MySQL: the level that Django has set, from OPTIONS. PostgreSQL is asked instead.",
        "mysql_is_mariadb": "The exact collations of the two have different names.",
        "pg_version": "From 180000 on, PostgreSQL has the old row in RETURNING.",
        "run_on_commit": "A list of (savepoint ids, function, robust), called in this order. A rollback empties it.",
        "settings_dict": "The database's entry of DATABASES, with defaults.",
        "wrap_database_errors": "Makes the driver's errors Django's, also outside of a cursor.",
    },
    "connections": {
        "all": "With initialized_only, the connections of this thread, without making the others.",
    },
    "features": {
        "can_return_columns_from_insert": "INSERT … RETURNING.",
        "can_return_rows_from_bulk_insert": "The same for several rows.",
        "can_return_rows_from_update": "UPDATE … RETURNING, from Django 6.0 on.",
        "has_select_for_update": "FOR UPDATE.",
        "has_select_for_update_skip_locked": "FOR UPDATE SKIP LOCKED.",
        "update_can_self_select": "If not, Django selects the rows of an UPDATE of several tables first.",
        "max_query_params": "Parameters that one statement can have, None if there is no limit.",
    },
    "ops": {
        "compiler": "The class for a name such as SQLInsertCompiler. Another class is not Django's.",
        "for_update_sql": "FOR UPDATE in the database's syntax.",
    },
    "query": {
        "add_fields": "The columns of a SELECT.",
        "alias_refcount": "The tables that it uses, and how often: 0 if a join was dropped.",
        "annotations": "If there are any, the query is not just rows of its table.",
        "chain": "A copy as a query of another class: the SELECT of the rows that a statement will change.",
        "clear_ordering": "ORDER BY has no place in a subquery or an UPDATE by primary keys.",
        "clear_select_clause": "Drops columns, select_related() and only().",
        "combinator": "UNION and the like. As for annotations.",
        "compiler": "The name of its compiler's class.",
        "count_active_tables": "If it is 1, an UPDATE needs no subquery.",
        "distinct": "As for annotations.",
        "extra": "As for annotations.",
        "fields": "INSERT: the fields that are written.",
        "get_compiler": "Compiles it for a database.",
        "get_initial_alias": "The table's own alias, which is made if it is missing.",
        "get_meta": "The options of its model, whose table is written to.",
        "group_by": "As for annotations.",
        "is_sliced": "Whether it has LIMIT or OFFSET.",
        "model": "Its model, which may be a proxy, a parent or that of a migration.",
        "objs": "INSERT: the instances.",
        "on_conflict": "INSERT: an OnConflict, or None.",
        "raw": "INSERT: loaddata, which does not call pre_save().",
        "related_updates": "UPDATE: values of a parent's table, for another statement.",
        "select_related": "Joins that FOR UPDATE would lock.",
        "update_fields": "INSERT: what ON CONFLICT DO UPDATE sets.",
        "values": "UPDATE: triples (field, model, value).",
        "where": "The conditions, a WhereNode.",
    },
    "where": {
        "add": "Adds a condition to a copy of a statement, for what is below the ORM.",
        "children": "Conditions and WhereNodes.",
        "connector": "AND, OR or XOR.",
        "negated": "NOT around all of them.",
    },
    "compiler": {
        "apply_converters": "Converts the driver's values to those of fields. Rows must be lists.",
        "as_sql": "SQL and parameters; of an INSERT, a list of these. Ours, on an instance, adds RETURNING.",
        "connection": "Where the statement goes.",
        "execute_returning_sql": "UPDATE … RETURNING, from Django 6.0 on; wrapped like execute_sql().",
        "execute_sql": "Sends the statement. An UPDATE or DELETE returns a number of rows, or the cursor, for CURSOR.",
        "get_converters": "The converters for apply_converters().",
        "pre_sql_setup": "UPDATE: of several tables, may select the primary keys, and put them into the WHERE.",
        "query": "What it compiles.",
        "single_alias": "DELETE: False if a subquery selects the rows. Then MariaDB has no RETURNING.",
    },
    "field": {
        "generated": "Whether it is a GeneratedField, whose value only the database knows.",
        "target_field": "The field that a foreign key refers to.",
        "prepare_database_save": "Of an instance: what a foreign key to it stores.",
    },
    "apps": {
        "models_ready": "Models can be looked up, before ready() of every app has run.",
    },
    "signal": {
        "receivers": "Empty if nobody listens. Then we need not find out what to send.",
    },
}
"""Attributes of Django's objects that its documentation does not have."""


def watch_transactions(
    connection: Any,
    before_commit: Callable[[], None],
    before_rollback: Callable[[], None],
    is_open: Callable[[], bool],
    *,
    after_refusal: Callable[[], None] = lambda: None,
    after_rollback: Callable[[], None] = lambda: None,
) -> None:
    """Call these around each COMMIT and ROLLBACK of a connection, because Django has no hook there.

    ``after_refusal`` is called if the database has answered that it does not commit. A ``_commit`` or ``_rollback``
    that other code has set on this connection is called as well. If Django switches autocommit on while ``is_open``
    says that there is a transaction, because an exception has struck right before the COMMIT, the transaction is rolled
    back.
    """
    commit = _preceded(connection, "_commit", before_commit)
    rollback = _preceded(connection, "_rollback", before_rollback)
    itself = weakref.ref(connection)  # without a cycle, the connection of a thread that ended is freed at once

    def roll_back_what_is_open() -> None:  # MySQL and SQLite would commit, and PostgreSQL refuse
        if is_open() and (connection := itself()) is not None:
            connection.rollback()

    def commit_unless_interrupted() -> None:
        try:
            commit()
        except Error:  # Django rolls back
            if (connection := itself()) is not None and _is_not_committed(connection):
                after_refusal()
            raise
        except BaseException:  # Django would switch autocommit on, whereby MySQL and SQLite commit
            if (connection := itself()) is not None:
                connection.in_atomic_block = False
                connection.rollback()
            raise

    def roll_back_and_tell() -> None:
        rollback()
        after_rollback()

    connection._commit = commit_unless_interrupted
    connection._rollback = roll_back_and_tell
    connection._set_autocommit = _preceded(connection, "_set_autocommit", roll_back_what_is_open)


IDLE, IN_TRANSACTION, IN_ERROR = 0, 2, 3
"""States of a PostgreSQL connection, which psycopg and psycopg2 have from the C library."""


def _status(driver: Any) -> int:
    """Return the state of a PostgreSQL connection. In psycopg, ``info`` would make an Enum of it."""
    return (driver.pgconn if hasattr(driver, "pgconn") else driver.info).transaction_status


def _is_not_committed(connection: Any) -> bool:
    """Return whether the database is known not to have committed, after a COMMIT that has raised an error. PostgreSQL
    has rolled back if it has answered at all, and SQLite leaves the transaction open. MySQL has no such sign."""
    driver = connection.connection
    if not driver:
        return False
    if connection.vendor == "postgresql":
        return _status(driver) == IDLE
    return connection.vendor == "sqlite" and driver.in_transaction


def _preceded(connection: Any, name: str, before: Callable[[], None]) -> Callable[..., None]:
    theirs = connection.__dict__.get(name)
    itself = weakref.ref(connection)

    def call(*arguments: Any) -> None:
        before()
        if theirs is not None:
            theirs(*arguments)
        elif (connection := itself()) is not None:
            getattr(type(connection), name)(connection, *arguments)

    return call


def has_failed(connection: Any) -> bool:
    """Return whether PostgreSQL will turn COMMIT into ROLLBACK, without an error, because a statement has failed.

    Django does not set ``errors_occurred`` after a DataError or an IntegrityError. The driver knows without asking the
    server.
    """
    driver = connection.connection  # None if the connection was closed meanwhile
    return connection.vendor == "postgresql" and bool(driver) and _status(driver) == IN_ERROR


def has_lost_transaction(connection: Any) -> bool:
    """Return whether SQLite has rolled back the whole transaction, as with ``OR ROLLBACK``, or when the disk is full.
    What follows is no longer in a transaction."""
    driver = connection.connection
    return connection.vendor == "sqlite" and bool(driver) and not driver.in_transaction


def has_begun_by_sql(connection: Any) -> bool:
    """Return whether a transaction is open although Django is in autocommit mode, because raw SQL has begun it. The
    driver knows without asking the server; mysqlclient does not tell. PyMySQL has to ask after an error, which may have
    ended the transaction."""
    if connection.in_atomic_block or not connection.autocommit or not (driver := connection.connection):
        return False
    if connection.vendor == "postgresql":
        return not driver.autocommit or _status(driver) in (IN_TRANSACTION, IN_ERROR)
    if connection.vendor == "sqlite":
        return driver.in_transaction
    if connection.vendor == "mysql":
        idle, mask = 2, 3  # SERVER_STATUS_AUTOCOMMIT without SERVER_STATUS_IN_TRANS, in PyMySQL
        if (status := getattr(driver, "server_status", None)) is None or status & mask == idle:
            return False
        if connection.errors_occurred:
            with suppress(driver.Error):  # the next statement will raise it
                driver.ping(reconnect=False)
        return driver.server_status & mask != idle
    return False


@contextmanager
def as_manual_transaction(connection: Any) -> Iterator[None]:
    """Have Django know of a transaction that raw SQL has begun. Then ``atomic()`` sets a savepoint instead of beginning
    another one, which PostgreSQL and SQLite refuse, and ``select_for_update()`` is allowed."""
    if not has_begun_by_sql(connection):
        yield
        return
    driver, connection.autocommit = connection.connection, False
    try:
        yield
    finally:
        if connection.connection is driver:  # a new one has its own mode
            connection.autocommit = True


def raw_delete(queryset: QuerySet[Any], using: str) -> int:
    """Delete rows without signals, cascades or a SELECT. Returns their number."""
    return queryset._raw_delete(using)


def mark_as_logged(response: Any) -> None:
    """Keep Django from logging a response with a status of 500 or more, and mailing it to the admins."""
    response._has_been_logged = True


def end_request_thread() -> None:
    """End the thread that has run the synchronous code of an async request. Otherwise it lives as long as the request,
    which takes minutes for a stream."""
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = SyncToAsync.context_to_thread_executor.pop(context, None) if context else None
    if executor:
        executor.shutdown(wait=False)
