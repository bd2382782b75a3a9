"""What the torment asks of the database, and does to its clients."""

import re
from typing import Any

from django.db import OperationalError, connections

from servers import HOST

from .tenants import current, each

CLIENTS = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}
WAITING = {
    "postgresql": f"{CLIENTS['postgresql']} AND wait_event_type = 'Lock'",
    "mysql": "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
}
END = {
    "postgresql": ["SELECT pg_terminate_backend({})", "SELECT pg_cancel_backend({})"],
    "mysql": ["KILL {}", "KILL QUERY {}"],
}
"""How to end a client, and how to end only its statement."""
LIMIT = {"postgresql": "SET statement_timeout = {}", "mysql": "SET max_statement_time = {} / 1000"}
LIMITED = re.compile("statement timeout|max_statement_time")


def run(statement: str) -> list[Any]:
    with current().cursor() as cursor:
        cursor.execute(statement)
        return [row[0] for row in cursor.fetchall()] if cursor.description else []


def clients() -> set[int]:
    """The connections that the database has, or those of all tenants, if it is a server."""
    return {client for _ in each() if current().vendor in CLIENTS for client in run(CLIENTS[current().vendor])}


def waiting_clients() -> list[int]:
    """Those that wait for a lock."""
    return run(WAITING[current().vendor])


def end(client: int, only_its_statement: bool) -> None:
    """End a client, unless it has just ended by itself."""
    try:
        run(END[current().vendor][only_its_statement].format(client))
    except OperationalError as error:
        if "Unknown thread id" not in str(error):
            raise


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


# ---------------------------------------------------------------------------------------------------------- PostgreSQL
def promote(port: int) -> None:
    """Make a standby a primary."""
    _ask(port, "SELECT pg_promote()")


def written(port: int) -> str:
    """How far the log of a primary has come."""
    return _ask(port, "SELECT pg_current_wal_insert_lsn()::text")


def has_received(port: int, position: str) -> bool:
    """Has a standby received the log so far?"""
    return _ask(port, "SELECT pg_last_wal_receive_lsn() >= %s::pg_lsn", position)


def _ask(port: int, statement: str, *params: str) -> Any:
    import psycopg

    with psycopg.connect(host=HOST, port=port, user="postgres", dbname="postgres", autocommit=True) as connection:
        return connection.execute(statement, params).fetchone()[0]  # type: ignore[index]
