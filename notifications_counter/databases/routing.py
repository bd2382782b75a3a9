"""The database, and the tenant's schema, in which this code works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from django.db import router
from django.db.models import Model

from ..internals import DEFAULT_DB_ALIAS, BaseDatabaseWrapper

UNCHANGED: AbstractContextManager[None] = nullcontext()
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


def alias_for(model: type[Model]) -> str:
    """Return the alias of the database in which this thread or task works on rows of a model."""
    return _alias.get() or (router.db_for_write(model) if router.routers else DEFAULT_DB_ALIAS)


def schema_of(connection: BaseDatabaseWrapper) -> str | None:
    """Return the tenant's schema that a tenant library has set on a connection."""
    return getattr(connection, "schema_name", None)


def in_schema(connection: BaseDatabaseWrapper, schema: str | None) -> AbstractContextManager[None]:
    """Make a connection use a tenant's schema for a while."""
    return UNCHANGED if schema is None or schema_of(connection) == schema else _in_schema(connection, schema)


@contextmanager
def _in_schema(connection: Any, schema: str) -> Iterator[None]:  # the tenant library's own class of connections
    before = connection.tenant
    connection.set_schema(schema)
    try:
        yield
    finally:
        connection.set_tenant(before)
