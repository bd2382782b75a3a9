"""Every private or undocumented name of other packages that this app uses: one small function each, with the reason.

``tests/test_internals.py`` checks what we take for granted against the installed versions, and fails if such a
name is used anywhere else. This module imports nothing of ours.
"""

from __future__ import annotations

import inspect
import os
from typing import Any

from redis.connection import AbstractConnection


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
    """Ask the cluster which node holds what. redis-py does so by itself only in ``execute_command``."""
    cluster.nodes_manager.initialize()


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
