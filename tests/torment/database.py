"""The databases of a site under torment, and its tenants: by the settings, each has a schema or a database, or there
are none."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.conf import settings
from django.db import connections, router

from notifications_counter.models import Notification
from servers import HOST
from tests.tenants.router import working_for

SCHEMAS = ["blue", "green"]
CLIENTS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}
LIMIT = {"postgresql": "SET statement_timeout = {}", "mysql": "SET max_statement_time = {} / 1000"}
LIMITED = re.compile("statement timeout|max_statement_time")


# ------------------------------------------------------------------------------------------------------------- tenants
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


# ----------------------------------------------------------------------------------------------------------- databases
def run(*statements: str) -> list[Any]:
    """Run statements, and return the rows of the last one."""
    with current().cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def clients() -> set[int]:
    """The connections that the database has, or those of all tenants, if it is a server."""
    return {client for _ in each() if current().vendor in CLIENTS for (client,) in run(CLIENTS[current().vendor])}


def limit_statements(milliseconds: int) -> None:
    """Let statements on this connection take so long; 0 is for ever."""
    run(LIMIT[current().vendor].format(milliseconds))


def port() -> int:
    return int(current().settings_dict["PORT"])


def use(port: int) -> None:
    """Connect to another server from now on."""
    connections.close_all()
    for connection in connections.all():
        connection.settings_dict["PORT"] = str(port)


def ask(port: int, statement: str, *params: str) -> Any:
    """What a PostgreSQL says."""
    import psycopg

    with psycopg.connect(host=HOST, port=port, user="postgres", dbname="postgres", autocommit=True) as connection:
        return connection.execute(statement, params).fetchone()[0]  # type: ignore[index]
