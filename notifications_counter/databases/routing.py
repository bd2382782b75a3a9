"""The database, and the tenant's schema, in which this code works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, router
from django.db.models import QuerySet

from ..internals import BaseDatabaseWrapper

HERE: AbstractContextManager[None] = nullcontext()
"""A context that changes nothing."""

_alias: ContextVar[str | None] = ContextVar("alias", default=None)


@contextmanager
def working_on(alias: str) -> Iterator[None]:
    """Make the app use this database instead of the router's choice."""
    token = _alias.set(alias)
    try:
        yield
    finally:
        _alias.reset(token)


def alias_for(model: Any) -> str:
    """Return the alias of the database in which this thread or task works on rows of a model."""
    return _alias.get() or (router.db_for_write(model) if router.routers else DEFAULT_DB_ALIAS)


def schema_of(connection: BaseDatabaseWrapper) -> str | None:
    """Return the tenant's schema that a tenant library has set on a connection."""
    return getattr(connection, "schema_name", None)


def in_schema(connection: BaseDatabaseWrapper, schema: str | None) -> AbstractContextManager[None]:
    """Make a connection use a tenant's schema for a while."""
    return HERE if schema is None or schema_of(connection) == schema else _in_schema(connection, schema)


@contextmanager
def _in_schema(connection: Any, schema: str) -> Iterator[None]:  # the tenant library's own class of connections
    before = connection.tenant
    connection.set_schema(schema)
    try:
        yield
    finally:
        connection.set_tenant(before)


def own_rows(model: str, using: str) -> QuerySet[Any]:
    """Return all rows of one of the app's own models, given by name: counters may be imported before models."""
    return QuerySet(apps.get_model("notifications_counter", model), using=using)
