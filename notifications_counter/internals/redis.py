"""Names of redis-py and django-redis. Neither is imported before it is needed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

__all__ = [
    "connection_factory",
    "default_socket_timeout",
    "disconnect_idle",
    "disconnect_nodes",
    "has_input",
    "is_exhausted",
    "limit_setup",
    "limit_wait",
    "new_cluster",
    "new_connection",
    "node_pool",
    "pool_options",
    "read_replies",
    "redis_py",
    "reload_nodes",
    "send_packed",
    "socket_of",
]


def redis_py() -> Any:
    """Return the package ``redis``. If two threads import it at once, and begin with different modules, Python can give
    one of them half a module. So begin as a cache of django-redis does."""
    import django_redis.client  # noqa: F401
    import redis

    return redis


# ------------------------------------------------------------ redis-py: connections
def limit_setup(pool: Any, seconds: Callable[[], float | None]) -> None:
    """Limit to ``seconds()`` how long the connections of a pool wait for each reply while they are set up. None: keep
    the site's timeout. A pool that limits their number sets them up itself, before it returns them."""
    pool.connection_class = _limited(pool.connection_class, seconds)


@cache
def _limited(kind: Any, seconds: Callable[[], float | None]) -> Any:
    if hasattr(kind, "setup_is_limited"):
        return kind

    Plain = redis_py().connection.AbstractConnection
    is_plain = (kind.send_packed_command, kind.read_response) == (Plain.send_packed_command, Plain.read_response)

    class Limited(kind):  # type: ignore[misc]
        setup_is_limited = True

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            # redis-py does nothing else around a command, as it does for Sentinel or a health check.
            self.is_plain = is_plain and not self.health_check_interval

        def _connect(self: Any) -> Any:
            if (limit := seconds()) is None:
                return super()._connect()
            timeouts = self.socket_timeout, self.socket_connect_timeout
            self.socket_timeout, self.socket_connect_timeout = (
                limit if timeout is None else min(limit, timeout) for timeout in timeouts
            )
            try:  # the socket keeps the limit for the commands that follow, such as AUTH
                return super()._connect()
            finally:
                self.socket_timeout, self.socket_connect_timeout = timeouts

    return Limited


def limit_wait(connection: Any, limit: float | None) -> None:
    """Limit how many seconds a connection waits for each reply from now on. None: restore the site's timeout. Does
    nothing if the connection is not set up yet."""
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
    """Return whether the error says that all connections are in use. redis-py has an exception for that only from
    version 7 on."""
    return str(error) == "Too many connections"


def disconnect_idle(pool: Any) -> None:
    """Close the idle connections of a pool. Before redis-py 7, a BlockingConnectionPool would also close those in use;
    then close none."""
    if "inuse_connections" in inspect.signature(pool.disconnect).parameters:
        pool.disconnect(inuse_connections=False)


def has_input(connection: Any) -> bool:
    """Return whether there is something to read. If the connection is idle, it is closed, or out of sync."""
    return connection.can_read()


def send_packed(connection: Any, commands: Iterable[bytes]) -> None:
    """Send packed commands. ``send_command`` would pack them itself, more slowly. After a failure, the caller must
    close the connection."""
    if connection._sock is None or not getattr(connection, "is_plain", False):  # the site may have made the connection
        connection.send_packed_command(commands)
    else:
        for command in commands:
            connection._sock.sendall(command)


def read_replies(connection: Any, number: int, replies: list[Any]) -> bool:
    """Append the next replies of Redis. Returns whether one is an exception. ``read_response`` takes twice the time,
    because it prepares an error message. After a failure, the caller must close the connection."""
    is_plain, has_failed = getattr(connection, "is_plain", False), False
    read = connection._parser.read_response if is_plain else partial(_read_carefully, connection)
    for _ in range(number):
        replies.append(reply := read())
        if isinstance(reply, Exception):
            has_failed = True
    return has_failed


def _read_carefully(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis_py().ResponseError as error:
        return error


def default_socket_timeout() -> float | None:
    """Return how many seconds a connection waits for a reply by default, which depends on the version of redis-py."""
    plain = redis_py().connection.AbstractConnection
    return inspect.signature(plain.__init__).parameters["socket_timeout"].default


# ---------------------------------------------------------------- redis-py: clusters
def new_cluster(url: str, seconds: Callable[[], float | None], **options: Any) -> Any:
    """Make the client of a cluster, with the limit of ``limit_setup`` for its connections; with TLS, only once it has
    found the nodes."""
    redis = redis_py()
    connection_class = _limited(redis.Connection, seconds)
    cluster = redis.RedisCluster.from_url(url, **{"connection_class": connection_class, **options})
    kwargs = cluster.nodes_manager.connection_kwargs
    kwargs["connection_class"] = _limited(kwargs["connection_class"], seconds)
    return cluster


def node_pool(cluster: Any, key: str) -> Any:
    """Return the pool of the node that holds a key. ``execute_command`` would retry, and could count a delta twice."""
    return cluster.get_redis_connection(cluster.get_node_from_key(key)).connection_pool


def reload_nodes(cluster: Any) -> None:
    """Ask the cluster which node holds which keys. redis-py does so only in ``execute_command``.

    Before version 8, it closes all connections to the node that it asked, even those in use. So give it new nodes to
    ask.
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
