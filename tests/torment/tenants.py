"""The tenants of the site under torment: by its settings, each has a schema or a database, or there are none."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.conf import settings
from django.db import connections, router

from notifications_counter.models import Notification
from tests.tenants.router import working_for

SCHEMAS = ["blue", "green"]


def tenants() -> list[str]:
    """Their names; one that is empty if there are none."""
    if hasattr(settings, "TENANT_MODEL"):
        return SCHEMAS
    return list(connections) if settings.DATABASE_ROUTERS else [""]


def at(tenant: str) -> AbstractContextManager[Any]:
    """Work for a tenant."""
    if hasattr(settings, "TENANT_MODEL"):
        from django_tenants.utils import schema_context

        return schema_context(tenant)
    return working_for(tenant) if tenant else nullcontext()


def each() -> Iterator[str]:
    """Work for one tenant after the other."""
    for tenant in tenants():
        with at(tenant):
            yield tenant


def here() -> str:
    """The tenant for whom this thread works."""
    connection = current()
    return getattr(connection, "schema_name", connection.alias) if tenants() != [""] else ""


def current() -> Any:
    """The connection of this tenant."""
    return connections[router.db_for_write(Notification)]


def create() -> None:
    """Create the databases of the tests, and the schemas in them."""
    for connection in connections.all():
        connection.creation.create_test_db(verbosity=0, serialize=False)
    if hasattr(settings, "TENANT_MODEL"):
        from tests.tenants.models import Client

        for name in SCHEMAS:
            Client(schema_name=name, name=name).save(verbosity=0)
