"""Every private or undocumented name of other packages that this app uses, each with the reason.

Modules are imported from here, and calls are small functions. Attributes that are read too often for a call, or have to
be set, are in ``ATTRIBUTES``. ``tests/test_internals.py`` checks what we take for granted against the installed
versions, and fails if the app uses a name that is not here. This module imports nothing of ours.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable
from typing import Any

from asgiref.sync import SyncToAsync
from django.apps.registry import Apps
from django.db import Error
from django.db.migrations.writer import MigrationWriter
from django.db.models import QuerySet
from django.db.models.constants import OnConflict
from django.db.models.expressions import Col
from django.db.models.functions.datetime import TimezoneMixin
from django.db.models.query_utils import DeferredAttribute
from django.db.models.sql import DeleteQuery, InsertQuery, Query, UpdateQuery
from django.db.models.sql.compiler import SQLDeleteCompiler, SQLInsertCompiler, SQLUpdateCompiler
from django.db.models.sql.constants import CURSOR, ROW_COUNT
from django.db.models.sql.where import AND, OR, ExtraWhere, WhereNode
from django.utils import numberformat
from django.utils.cache import get_conditional_response
from django.utils.crypto import salted_hmac
from django.utils.formats import date_format, get_format, number_format
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.module_loading import autodiscover_modules
from django.utils.text import Truncator
from redis.connection import AbstractConnection

__all__ = [
    # Every write of the ORM ends in a method of these, which the door wraps.
    "SQLDeleteCompiler",
    "SQLInsertCompiler",
    "SQLUpdateCompiler",
    # What they compile. A query of another class may mean anything, so it is doubt.
    "DeleteQuery",
    "InsertQuery",
    "Query",
    "UpdateQuery",
    # What their execute_sql() is asked for, and the ON CONFLICT of an INSERT.
    "CURSOR",
    "ROW_COUNT",
    "OnConflict",
    # The nodes of a condition: a filter() is decided in Python, or in an index, only if we can read it.
    "AND",
    "OR",
    "Col",
    "ExtraWhere",
    "WhereNode",
    # Expressions on a datetime that use the active time zone, unless they are given one.
    "TimezoneMixin",
    # Writes the condition of a counter as code that is the same in every process.
    "MigrationWriter",
    # The descriptor of a field that reads the instance's __dict__. Another one may return anything.
    "DeferredAttribute",
    # A registry for a model that stands for a table of another package, and is in no app.
    "Apps",
    # Helpers that Django's own apps use, too.
    "Promise",
    "Truncator",
    "autodiscover_modules",
    "date_format",
    "get_conditional_response",
    "get_format",
    "number_format",
    "numberformat",
    "salted_hmac",
    "url_has_allowed_host_and_scheme",
]


# ------------------------------------------------------------ redis-py: connections
def new_connection(pool: Any) -> Any:
    """A connection as the pool makes it, outside of the pool.

    A plain ``ConnectionPool`` only adds bookkeeping to its class and arguments, which takes a quarter of the time of a
    command.
    """
    return pool.connection_class(**pool.connection_kwargs)


def is_inherited(connection: Any) -> bool:
    """Was the connection made by the process that this one was forked from? Both would read from one socket."""
    return connection.pid != os.getpid()


def is_exhausted(error: Exception) -> bool:
    """Are all connections that the site allows in use? Before version 7, redis-py has no exception for that."""
    return str(error) == "Too many connections"


def has_input(connection: Any) -> bool:
    """Is there something to read? On an idle connection that is its end, or the rest of an unread reply."""
    return connection.can_read()


def send_packed(connection: Any, command: bytes) -> None:
    """Send a command that is already packed; ``send_command`` would pack it again, more slowly."""
    connection.send_packed_command([command])


def default_socket_timeout() -> float | None:
    """Seconds that a connection waits for a reply if nobody says otherwise. It differs between versions of redis-py."""
    return inspect.signature(AbstractConnection.__init__).parameters["socket_timeout"].default


# ---------------------------------------------------------------- redis-py: clusters
def node_pool(cluster: Any, key: str) -> Any:
    """The connection pool of the node that holds a key; ``execute_command`` would retry, and count a delta twice."""
    return cluster.get_redis_connection(cluster.get_node_from_key(key)).connection_pool


def reload_nodes(cluster: Any) -> None:
    """Ask the cluster which node holds what. redis-py does so by itself only in ``execute_command``.

    Before version 8, it then closes all connections to the node that it asked, even those in use. So it asks over a new
    one.
    """
    nodes = cluster.nodes_manager
    nodes.startup_nodes = {node.name: type(node)(node.host, node.port) for node in list(nodes.startup_nodes.values())}
    nodes.initialize()


def disconnect_nodes(cluster: Any) -> None:
    """Close the connections to all nodes, and keep the client usable, as after ``close`` it may not be."""
    cluster.disconnect_connection_pools()


# --------------------------------------------------------------------- django-redis
def connection_factory(cache: Any) -> Any:
    """The CONNECTION_FACTORY of a cache, None if it is not a cache of django-redis."""
    return getattr(getattr(cache, "client", None), "connection_factory", None)


def pool_options(factory: Any) -> dict[str, Any]:
    """CONNECTION_POOL_KWARGS, as a connection factory of django-redis keeps them."""
    return factory.pool_cls_kwargs


# --------------------------------------------------------------------------- Django
ATTRIBUTES = {
    "connection": {
        "autocommit": "False if it was switched off by hand. get_autocommit() would connect first.",
        "close_if_unusable_or_obsolete": "What Django does between two requests; a command does it between two runs.",
        "commit_on_exit": "False in an atomic block inside such a transaction, which does not commit it.",
        "connection": "The driver's connection, None until it is needed.",
        "display_name": "What Django calls the database, for a message.",
        "execute_wrappers": "A list, to whose front we add ours for good; execute_wrapper() pops the last one.",
        "features": "What the database can do: see features.",
        "is_usable": "Asks the server whether it still answers, past all wrappers.",
        "in_atomic_block": "Is a transaction of atomic() under way? False already when it commits.",
        "introspection": "The tables that exist: another app's migration may write before ours are made.",
        "is_in_memory_db": "SQLite in memory has one process, so it needs no IMMEDIATE transactions.",
        "isolation_level": "MySQL: what Django has set, as OPTIONS may say. PostgreSQL is asked instead.",
        "mysql_is_mariadb": "The two have no exact collation of the same name.",
        "pg_version": "PostgreSQL: 180000 or more tells the old row in RETURNING.",
        "run_on_commit": "A list of (savepoint ids, function, robust). It is emptied by a rollback, and the first is "
        "called first.",
        "settings_dict": "The database's entry of DATABASES, with defaults.",
    },
    "connections": {
        "all": "With initialized_only, the connections of this thread, without making the others.",
        "close_all": "Closes those of this thread.",
    },
    "features": {
        "can_return_columns_from_insert": "INSERT … RETURNING.",
        "can_return_rows_from_bulk_insert": "The same for several rows.",
        "can_return_rows_from_update": "UPDATE … RETURNING, from Django 6.0 on.",
        "max_query_params": "Parameters that one statement can have, None if there is no limit.",
    },
    "ops": {
        "adapt_datetimefield_value": "A datetime as the driver takes it in a statement of our own.",
        "compiler": "The class for a name such as SQLInsertCompiler. Another class is somebody else's.",
        "limit_offset_sql": "LIMIT, as the database spells it.",
    },
    "query": {
        "add_fields": "The columns of a SELECT.",
        "add_filter": "Narrows a DELETE or UPDATE to some primary keys.",
        "alias_refcount": "The tables that it uses, and how often: 0 if a join was dropped.",
        "annotations": "Any makes a query more than its table's rows.",
        "chain": "A copy as a query of another class: the SELECT of the rows that a statement is about to change.",
        "clear_ordering": "ORDER BY has no place in a subquery or an UPDATE by primary keys.",
        "clear_select_clause": "Drops columns, select_related() and only().",
        "clone": "A copy.",
        "combinator": "UNION and its kin make a query more than its table's rows.",
        "compiler": "The name of its compiler's class.",
        "distinct": "As for annotations.",
        "extra": "As for annotations.",
        "fields": "INSERT: the fields that are written.",
        "get_compiler": "Compiles it for a database.",
        "get_initial_alias": "The table's own alias, which is made if it is missing.",
        "get_meta": "The options of its model, whose table is written to.",
        "group_by": "As for annotations.",
        "model": "Its model; a proxy, a parent or one of a migration as well.",
        "objs": "INSERT: the instances.",
        "on_conflict": "INSERT: an OnConflict, or None.",
        "raw": "INSERT: loaddata, which does not call pre_save().",
        "related_updates": "UPDATE: values of a parent's table, which are another statement.",
        "select_related": "Joins that FOR UPDATE would lock.",
        "update_fields": "INSERT: what ON CONFLICT DO UPDATE sets.",
        "values": "UPDATE: triples (field, model, value).",
        "where": "The conditions, a WhereNode.",
    },
    "where": {
        "children": "Conditions, and WhereNodes in their turn.",
        "connector": "AND, OR or XOR.",
        "negated": "NOT around all of them.",
        "output_field": "The field that an expression has the type of.",
        "relabeled_clone": "The expression with another alias for its table.",
    },
    "compiler": {
        "apply_converters": "Converts what the driver returns to what fields return. Rows have to be lists.",
        "as_sql": "SQL and parameters; of an INSERT, a list of these. Ours, on an instance, adds RETURNING.",
        "compile": "The SQL and parameters of an expression.",
        "connection": "Where the statement goes.",
        "execute_returning_sql": "UPDATE … RETURNING, from Django 6.0 on; a door as execute_sql() is.",
        "execute_sql": "Sends the statement. An UPDATE or DELETE returns a number of rows, or the cursor, for CURSOR.",
        "get_converters": "What apply_converters() takes.",
        "query": "What it compiles.",
        "single_alias": "DELETE: False if a subquery selects the rows, after which MariaDB has no RETURNING.",
    },
    "field": {
        "generated": "Is it a GeneratedField, whose value the database knows?",
        "target_field": "The field that a foreign key refers to.",
        "prepare_database_save": "Of an instance: what is stored when a foreign key is set to it.",
    },
    "options": {
        "local_concrete_fields": "The columns of the model's own table.",
    },
    "apps": {
        "models_ready": "Models can be looked up, before ready() of every app has run.",
    },
    "signal": {
        "receivers": "Empty if nobody listens: then we need not find out what to send.",
    },
}
"""Attributes of Django's objects that its documentation does not have."""


def watch_transactions(connection: Any, before_commit: Callable[[], None], before_rollback: Callable[[], None]) -> None:
    """Call these right before each COMMIT and ROLLBACK of a connection, because Django has no hook there.

    A ``_commit`` or ``_rollback`` that somebody else has put on this connection is called in its turn.
    """
    commit = _preceded(connection, "_commit", before_commit)
    itself = weakref.ref(connection)  # a closed thread's connection is freed at once, and not by the garbage collector

    def commit_unless_interrupted() -> None:
        try:
            commit()
        except Error:  # Django rolls back
            raise
        except BaseException:  # Django goes back to autocommit, with which MySQL and SQLite commit
            if (connection := itself()) is not None:
                connection.in_atomic_block = False
                connection.rollback()
            raise

    connection._commit = commit_unless_interrupted
    connection._rollback = _preceded(connection, "_rollback", before_rollback)


def _preceded(connection: Any, name: str, before: Callable[[], None]) -> Callable[[], None]:
    theirs = connection.__dict__.get(name)
    itself = weakref.ref(connection)

    def call() -> None:
        before()
        if theirs is not None:
            theirs()
        elif (connection := itself()) is not None:
            getattr(type(connection), name)(connection)

    return call


def has_failed(connection: Any) -> bool:
    """Whether PostgreSQL will turn COMMIT into ROLLBACK, without an error, because a statement has failed.

    Django's ``errors_occurred`` is not set after a DataError or an IntegrityError. The driver knows, and need not ask
    the server.
    """
    in_error = 3  # TransactionStatus.INERROR of psycopg, TRANSACTION_STATUS_INERROR of psycopg2
    driver = connection.connection  # None if the connection was closed in between
    return connection.vendor == "postgresql" and bool(driver) and driver.info.transaction_status == in_error


def raw_delete(queryset: QuerySet[Any], using: str) -> int:
    """DELETE without signals and cascades, and without a SELECT before it. Returns the number of rows."""
    return queryset._raw_delete(using)


def mark_as_logged(response: Any) -> None:
    """Keep Django from logging a response with a status of 500 or more, which it mails to the admins."""
    response._has_been_logged = True


def end_request_thread() -> None:
    """End the thread in which the synchronous code of an async request has run. It would live as long as the request,
    which for a stream is minutes."""
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = SyncToAsync.context_to_thread_executor.pop(context, None) if context else None
    if executor:
        executor.shutdown(wait=False)
