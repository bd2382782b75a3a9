"""Names of Django and asgiref: classes, attributes, and small functions."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import django
from asgiref.sync import SyncToAsync
from django.contrib.auth import SESSION_KEY
from django.core.handlers.asgi import ASGIRequest
from django.db import DEFAULT_DB_ALIAS
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.migrations.writer import MigrationWriter
from django.db.models import QuerySet, expressions, functions
from django.db.models.constants import OnConflict
from django.db.models.expressions import Col, ColPairs, Combinable
from django.db.models.lookups import Exact, In, IsNull
from django.db.models.query_utils import DeferredAttribute
from django.db.models.sql import DeleteQuery, InsertQuery, Query, UpdateQuery
from django.db.models.sql.compiler import SQLCompiler, SQLDeleteCompiler, SQLInsertCompiler, SQLUpdateCompiler
from django.db.models.sql.constants import ROW_COUNT
from django.db.models.sql.where import AND, ExtraWhere, WhereNode
from django.http import HttpResponse
from django.utils.asyncio import async_unsafe
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.module_loading import autodiscover_modules

__all__ = [
    # Every write of the ORM ends in a method of these, which the hook wraps.
    "SQLCompiler",
    "SQLDeleteCompiler",
    "SQLInsertCompiler",
    "SQLUpdateCompiler",
    # The hook also wraps its callproc(), which execute_wrapper() doesn't.
    "CursorWrapper",
    # Their queries. A query of another class may do anything, so its rows are in doubt.
    "DeleteQuery",
    "InsertQuery",
    "Query",
    "UpdateQuery",
    # A result type of their execute_sql(), and the ON CONFLICT of an INSERT.
    "ROW_COUNT",
    "OnConflict",
    # The nodes of a condition, which Python can evaluate only if it knows them.
    "AND",
    "Col",
    "ColPairs",
    "Exact",
    "ExtraWhere",
    "In",
    "IsNull",
    "OPERATORS",
    "STABLE",
    "WhereNode",
    # The type of all expressions, F() included.
    "Combinable",
    # Writes the condition of a counter as code that is the same in every process.
    "MigrationWriter",
    # The descriptor of a field that reads the instance's __dict__. Another one may return anything.
    "DeferredAttribute",
    # "default": the alias that a site without routers works on.
    "DEFAULT_DB_ALIAS",
    # The type of a connection, and of a function that executes a statement on it.
    "BaseDatabaseWrapper",
    "WrapperContext",
    "Execute",
    "Param",
    # What says that a server can stream, and where a session has its user.
    "ASGIRequest",
    "SESSION_KEY",
    # Helpers that Django's own apps use as well.
    "async_unsafe",
    "autodiscover_modules",
    "url_has_allowed_host_and_scheme",
    # Ours, below.
    "ATTRIBUTES",
    "METHODS",
    "NEWEST_DJANGO",
    "Uncached",
    "end_request_thread",
    "mark_as_logged",
    "unknown_methods",
]

NEWEST_DJANGO = (6, 1)
"""The newest release of Django with which the counters were tested."""

METHODS: dict[type, dict[str, str]] = {
    BaseDatabaseWrapper: {
        "_commit": "self",
        "_rollback": "self",
        "_set_autocommit": "self, autocommit",
        "execute_wrapper": "self, wrapper",
    },
    CursorWrapper: {"callproc": "self, procname, params, kparams"},
    SQLDeleteCompiler: {"as_sql": "self", "execute_sql": "self, result_type, chunked_fetch, chunk_size"},
    SQLInsertCompiler: {"as_sql": "self", "execute_sql": "self, returning_fields"},
    SQLUpdateCompiler: {
        "as_sql": "self",
        "execute_sql": "self, result_type",
        "execute_returning_sql": "self, returning_fields",  # from Django 6.0 on
    },
}
"""The methods of Django that we wrap or call, with their parameters: all with which a compiler executes a statement,
and a connection ends a transaction."""

OPERATORS = {
    "django.contrib.postgres.fields.array",
    "django.contrib.postgres.fields.ranges",
    "django.db.models.fields.json",
    "django.db.models.fields.related_lookups",
    "django.db.models.fields.tuple_lookups",
    "django.db.models.lookups",
}
"""Modules whose lookups and transforms depend on nothing but their operands."""

EXPRESSIONS = """
    Case Col ColPairs CombinedExpression DurationExpression ExpressionList ExpressionWrapper TemporalSubtraction Value
    When
"""
FUNCTIONS = """
    ACos ASin ATan ATan2 Abs Cast Ceil Chr Coalesce Collate Concat ConcatPair Cos Cot Degrees Exp Extract ExtractDay
    ExtractHour ExtractIsoWeekDay ExtractIsoYear ExtractMinute ExtractMonth ExtractQuarter ExtractSecond ExtractWeek
    ExtractWeekDay ExtractYear Floor Greatest JSONArray JSONObject LPad LTrim Least Left Length Ln Log Lower MD5 Mod
    NullIf Ord Pi Power RPad RTrim Radians Repeat Replace Reverse Right Round SHA1 SHA224 SHA256 SHA384 SHA512 Sign Sin
    Sqrt StrIndex Substr Tan Trim Trunc TruncDate TruncDay TruncHour TruncMinute TruncMonth TruncQuarter TruncSecond
    TruncTime TruncWeek TruncYear Upper
"""
STABLE = {WhereNode, *(getattr(expressions, name) for name in EXPRESSIONS.split())}
STABLE |= {getattr(functions, name) for name in FUNCTIONS.split()}
"""Expressions that depend on nothing but their operands, and the settings of the session."""

WrapperContext = dict[str, Any]
"""What ``execute_wrapper()`` tells of a statement: ``cursor`` and ``connection``."""

Execute = Callable[..., Any]
"""A method of a compiler that executes it, or what ``execute_wrapper()`` wraps."""

Param = Any
"""A value as a database's driver takes and returns it."""

ATTRIBUTES = {
    "connection": {
        "close_if_unusable_or_obsolete": "Django calls it between requests; a command calls it between runs.",
        "commit_on_exit": "False in an atomic block inside such a transaction, which does not commit it.",
        "connection": "The driver's connection, None until it is needed.",
        "execute_wrappers": "A list, outermost first. We insert ours in front; execute_wrapper() pops the last one.",
        "features": "What the database can do: see features.",
        "is_usable": "Asks the server whether it still answers, past all wrappers.",
        "in_atomic_block": "Whether atomic() has opened a transaction. Already False when it commits.",
        "introspection": "See introspection.",
        "is_in_memory_db": "SQLite in memory has one process, so it needs no IMMEDIATE transactions.",
        "ops": "See ops.",
        "mysql_is_mariadb": "The exact collations of the two have different names.",
        "run_on_commit": "A list of (savepoint ids, function, robust), called in this order. A rollback empties it.",
        "settings_dict": "The database's entry of DATABASES, with defaults.",
    },
    "connections": {
        "all": "With initialized_only, the connections of this thread, without making the others.",
        "close_all": "Closes those of this thread.",
    },
    "introspection": {
        "table_names": "The tables that exist. Another app's migration may write before ours are created.",
    },
    "features": {
        "can_return_columns_from_insert": "INSERT … RETURNING.",
        "can_return_rows_from_update": "UPDATE … RETURNING, from Django 6.0 on.",
        "has_select_for_no_key_update": "FOR NO KEY UPDATE, which lets others refer to the rows.",
        "has_select_for_update": "FOR UPDATE.",
        "max_query_params": "Parameters that one statement can have, None if there is no limit.",
    },
    "ops": {
        "compiler": "The class for a name such as SQLInsertCompiler. Another class is not Django's.",
        "for_update_sql": "FOR UPDATE in the database's syntax.",
        "integer_field_range": "The least and the greatest number that a column of a kind holds.",
        "quote_name": "A name in the database's quotes.",
    },
    "on_conflict": {
        "UPDATE": "ON CONFLICT DO UPDATE.",
    },
    "query": {
        "add_q": "Adds a condition, as filter() does.",
        "alias_refcount": "The tables that it uses, and how often: 0 if a join was dropped.",
        "annotations": "If there are any, the query is not just rows of its table.",
        "clear_where": "Removes all conditions.",
        "combinator": "UNION and the like. As for annotations.",
        "compiler": "The name of its compiler's class.",
        "distinct": "As for annotations.",
        "extra": "As for annotations.",
        "fields": "INSERT: the fields that are written.",
        "get_compiler": "Compiles it for a database.",
        "get_initial_alias": "The table's own alias, which is made if it is missing.",
        "get_meta": "The options of its model, whose table is written to.",
        "group_by": "As for annotations.",
        "model": "Its model, which may be a proxy, a parent or a migration's.",
        "objs": "INSERT: the instances.",
        "on_conflict": "INSERT: an OnConflict, or None.",
        "related_updates": "UPDATE: values of a parent's table, for another statement.",
        "unique_fields": "INSERT: the columns of ON CONFLICT.",
        "update_fields": "INSERT: what ON CONFLICT DO UPDATE sets.",
        "values": "UPDATE: triples (field, model, value).",
        "where": "The conditions, a WhereNode.",
    },
    "where": {
        "children": "Conditions and WhereNodes.",
        "connector": "AND, OR or XOR.",
        "negated": "NOT around all of them.",
    },
    "compiler": {
        "apply_converters": "Converts the driver's values to those of fields. Rows must be lists.",
        "as_sql": "SQL and parameters; of an INSERT, a list of these. We replace it while it is executed.",
        "connection": "Where the statement goes.",
        "execute_returning_sql": "UPDATE … RETURNING, from Django 6.0 on; wrapped like execute_sql().",
        "execute_sql": "Sends the statement. An UPDATE or DELETE returns a number of rows.",
        "get_converters": "The converters for apply_converters().",
        "query": "What it compiles.",
    },
    "field": {
        "column": "Its name in the database, None if it has none.",
        "flatchoices": "Its choices, without their groups.",
        "get_col": "The field as a column of a table.",
        "has_db_default": "Whether it has a db_default.",
        "has_default": "Whether it has a default.",
        "target_field": "The field that a foreign key refers to.",
        "prepare_database_save": "Of an instance: what a foreign key to it stores.",
    },
    "options": {
        "concrete_model": "The model behind proxies.",
        "total_unique_constraints": "Unique constraints without a condition.",
    },
    "router": {
        "allow_migrate_model": "Whether a model's table belongs into a database.",
        "routers": "Those of DATABASE_ROUTERS. Without any, asking costs more than it tells.",
    },
    "signal": {
        "receivers": "Empty if nobody listens. Then nothing needs to be computed for them.",
    },
}
"""Attributes of Django's objects that are not in its documentation."""


class Uncached(QuerySet):
    """Asks the database, even if django-cacheops caches what querysets read: it learns only of some writes."""

    _cacheprofile = None  # of django-cacheops: how to cache them


def unknown_methods() -> list[str]:
    """Return those of METHODS that a Django that was not tested lacks, and those that it has instead."""
    if django.VERSION[:2] <= NEWEST_DJANGO:  # other packages may have replaced some
        return []
    known, found = set(), set()
    for kind, methods in METHODS.items():
        known |= {f"{kind.__name__}.{name}({parameters})" for name, parameters in methods.items()}
        for name in dir(kind):
            if name in methods or name.startswith("execute_"):
                found.add(f"{kind.__name__}.{name}({', '.join(signature(getattr(kind, name)).parameters)})")
    return sorted(found ^ known)


def end_request_thread() -> None:
    """End the thread that has run the synchronous code of an async request. Otherwise it lives as long as the request,
    which takes minutes for a stream."""
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = SyncToAsync.context_to_thread_executor.pop(context, None) if context else None
    if executor:
        executor.shutdown(wait=False)


def mark_as_logged(response: HttpResponse) -> None:
    """Keep Django from logging a status of 500 or more as an error, of which it may send mails."""
    response._has_been_logged = True  # type: ignore[attr-defined]
