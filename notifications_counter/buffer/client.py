"""The only module that knows django-redis: one command out, one reply back, and no knocking at a closed door."""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from django.core.cache import InvalidCacheBackendError, caches
from django.core.signals import setting_changed
from django.dispatch import receiver
from django_redis import get_redis_connection
from redis import ConnectionPool
from redis.exceptions import (
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from ..conf import options
from ..exceptions import BufferUnavailable, ConfigurationError
from . import keys
from .cluster import ClusterConnectionFactory
from .scripts import Script, script

try:
    from hiredis import pack_command  # what redis-py calls, after twice its time with each argument
except ImportError:

    def pack_command(arguments: Sequence[Argument]) -> bytes:
        """A command as Redis reads it."""
        parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
        return b"".join([b"*%d\r\n" % len(parts), *(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)])


logger = logging.getLogger("notifications_counter")

Argument = str | int | bytes
MOMENT = 0.1  # seconds for which a connection is taken to be as it was
FAILURES = (RedisError, RedisClusterException, OSError)
_clients: dict[str, Client] = {}


@receiver(setting_changed)
def _forget_clients(*, setting: str, **_: Any) -> None:
    if setting == "CACHES":
        _clients.clear()


def client_of(alias: str) -> Client:
    """The client of a cache alias; ConfigurationError if that is not a django-redis cache."""
    client = _clients.get(alias)
    if client is None:
        try:
            of_cache = getattr(caches[alias], "client", None)
        except InvalidCacheBackendError:
            of_cache = None
        if not hasattr(of_cache, "get_client"):
            raise ConfigurationError(
                f"CACHE_ALIAS {alias!r} is not a django-redis cache; set NOTIFICATIONS_COUNTER['CACHE_ALIAS'] to an "
                "entry of CACHES whose BACKEND is django_redis.cache.RedisCache."
            )
        in_cluster = isinstance(getattr(of_cache, "connection_factory", None), ClusterConnectionFactory)
        client = _clients[alias] = Cluster(alias) if in_cluster else Client(alias)
    return client


class Outages(NamedTuple):
    """How often a process was without Redis, and for how many seconds, all processes added up."""

    number: int
    seconds: float


class Connections:
    """Connections to one server, idle ones first. They are made as their pool makes them, and in its place, because
    its bookkeeping for one command takes a quarter of the time of that command."""

    def __init__(self, pool: Any):
        self._pool = pool
        self._idle: list[tuple[Any, float]] = []

    def get_connection(self) -> Any:
        """A connection that nobody uses. One used a moment ago is taken as it is, because to ask whether it lives takes
        a system call; should it have died since, that is an outage like any other."""
        try:
            connection, released = self._idle.pop()
        except IndexError:
            return self._pool.connection_class(**self._pool.connection_kwargs)
        if connection.pid != os.getpid():  # it belongs to the process that this one was forked from
            return self.get_connection()
        if time.monotonic() - released > MOMENT:
            connection.connect()
            try:
                usable = not connection.can_read()
            except FAILURES:
                usable = False
            if not usable:
                connection.disconnect()
        return connection

    def release(self, connection: Any) -> None:
        """Take a connection back."""
        self._idle.append((connection, time.monotonic()))


class Reply:
    """A command that is on its way. Its reply must be read, or its connection is not returned."""

    __slots__ = ("_client", "_pool", "_connection", "_script", "_call")

    def __init__(self, client: Client, pool: Any, connection: Any, script: Script | None, call: tuple):
        self._client, self._pool, self._connection = client, pool, connection
        self._script, self._call = script, call

    def read(self) -> Any:
        """What Redis answered. BufferUnavailable if nothing, or a refusal."""
        connection = self._connection
        try:
            try:
                answer = connection.read_response()
            except NoScriptError:  # nothing was run, so this is not a second time
                assert self._script is not None
                connection.send_command("EVAL", self._script.source, *self._call)
                answer = connection.read_response()
        except ResponseError as error:
            raise self._client.refused(error, self._script) from error
        except FAILURES as error:
            connection.disconnect()
            raise self._client.lost(error) from error
        except BaseException:  # an interrupt: the reply would be taken for that of the next command
            connection.disconnect()
            raise
        finally:
            self._pool.release(connection)
        if self._client.down_since is not None:
            self._client.found()
        if self._client.no_room_for and self._script is not None:
            self._client.found_room(self._script)
        return answer


class Client:
    """Sends commands to the Redis behind a cache alias, each once and never again by itself."""

    def __init__(self, alias: str):
        self.alias = alias
        self.down_since: float | None = None
        self.no_room_for: set[str] = set()
        self._quiet_until = 0.0
        self._refuses = False

    @cached_property
    def redis(self) -> Any:
        """The client of redis-py."""
        return get_redis_connection(self.alias)

    @cached_property
    def _connections(self) -> Any:
        pool = self.redis.connection_pool
        return Connections(pool) if type(pool) is ConnectionPool else pool  # others know more, such as who is master

    def _pool(self, key: str) -> Any:
        return self._connections

    def send(self, key: str, *command: Argument, script: Script | None = None, urgent: bool = False) -> Reply:
        """Send a command to the node that holds ``key``, without waiting for the reply.

        For RETRY_AFTER seconds after a failure only urgent commands are sent; BufferUnavailable for the others.
        """
        if self.down_since is not None and not urgent:
            self._knock(key)
        connection = None
        try:
            pool = self._pool(key)
            connection = pool.get_connection()
            connection.send_packed_command([pack_command(command)])
        except FAILURES as error:
            if connection is not None:
                connection.disconnect()
                pool.release(connection)
            raise self.lost(error) from error
        return Reply(self, pool, connection, script, command[2:])

    def _knock(self, key: str) -> None:
        """BufferUnavailable as long as Redis is left alone. One that refuses writes, such as a replica, would still
        answer readers with what it knew: it is asked for a write first."""
        if time.monotonic() < self._quiet_until:
            raise BufferUnavailable(f"Redis (cache {self.alias!r}) did not answer a moment ago.")
        if self._refuses:
            self.run(script("probe"), (f"{key}:probe",), (), urgent=True)

    def call(self, key: str, *command: Argument) -> Any:
        """Send a command and return its reply."""
        return self.send(key, *command).read()

    def start(self, script: Script, keys: Sequence[str], args: Sequence[Argument], urgent: bool = False) -> Reply:
        """Send a script call, without waiting for the reply."""
        return self.send(keys[0], "EVALSHA", script.sha, len(keys), *keys, *args, script=script, urgent=urgent)

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument], urgent: bool = False) -> Any:
        """Call a script and return its reply."""
        return self.start(script, keys, args, urgent).read()

    def refused(self, error: ResponseError, script: Script | None) -> BufferUnavailable:
        """Redis is there but does not do it. Without memory it still does what makes room, and answers readers."""
        # Redis 6.2 wraps the error of a command inside a script in one of its own.
        if script is not None and (isinstance(error, OutOfMemoryError) or " -OOM " in str(error)):
            if not self.no_room_for:
                about = {"event": "redis_full", "cache": self.alias, "reason": str(error)}
                logger.warning("Redis (cache %r) is out of memory: %s", self.alias, error, extra=about)
            self.no_room_for.add(script.name)
            return BufferUnavailable(f"Redis (cache {self.alias!r}) refused: {error}")
        self._refuses = True
        return self.lost(error)

    def lost(self, error: Exception) -> BufferUnavailable:
        """Note a failure; one warning for each outage."""
        self._quiet_until = time.monotonic() + options.RETRY_AFTER
        if self.down_since is None:
            self.down_since = time.monotonic()
            about = {"event": "redis_lost", "cache": self.alias, "reason": str(error)}
            text = "Redis (cache %r) is out of reach, rows are counted in the database: %s"
            logger.warning(text, self.alias, error, extra=about)
        return BufferUnavailable(f"Redis (cache {self.alias!r}) is out of reach: {error}")

    def found(self) -> None:
        """Note that Redis answers again."""
        since, self.down_since, self._refuses = self.down_since, None, False
        if since is None:
            return
        seconds = time.monotonic() - since
        about = {"event": "redis_found", "cache": self.alias, "seconds": round(seconds, 3)}
        logger.info("Redis (cache %r) answers again after %.1f s.", self.alias, seconds, extra=about)
        with suppress(*FAILURES):  # it is for statistics only
            self._count_outage(seconds)

    def _count_outage(self, seconds: float) -> None:
        """In Redis, where every process can read it. Not by send(): should it fail, that is not one more outage."""
        key = keys.outages(options.KEY_PREFIX)
        pool = self._pool(key)
        connection = pool.get_connection()
        try:
            connection.send_command("HINCRBY", key, "outages", 1)
            connection.send_command("HINCRBY", key, "outage_ms", round(seconds * 1000))
            connection.read_response()
            connection.read_response()
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def outages(self) -> Outages:
        """The outages that processes have noticed and outlived. BufferUnavailable during one."""
        key = keys.outages(options.KEY_PREFIX)
        number, milliseconds = self.call(key, "HMGET", key, "outages", "outage_ms")
        return Outages(int(number or 0), int(milliseconds or 0) / 1000)

    def found_room(self, script: Script) -> None:
        """Note that there is memory again for what was refused."""
        if script.name in self.no_room_for:
            about = {"event": "redis_has_room", "cache": self.alias}
            logger.info("Redis (cache %r) has memory again.", self.alias, extra=about)
            self.no_room_for.clear()


class Node(Client):
    """One node of a cluster: left alone after a failure, while the others are not. The cluster tells of its outages."""

    def __init__(self, cluster: Cluster):
        super().__init__(cluster.alias)
        self._cluster = cluster

    def _pool(self, key: str) -> Any:
        redis = self._cluster.redis
        if self.down_since is not None:  # another node may have taken its place
            redis.nodes_manager.initialize()
        return redis.get_redis_connection(redis.get_node_from_key(key)).connection_pool

    def refused(self, error: ResponseError, script: Script | None) -> BufferUnavailable:
        """A cluster that has moved is looked at anew."""
        if not isinstance(error, MovedError):
            return super().refused(error, script)
        try:
            self._cluster.redis.nodes_manager.initialize()
        except FAILURES as failure:
            return self.lost(failure)
        return BufferUnavailable(f"Redis (cache {self.alias!r}) refused: {error}")

    def lost(self, error: Exception) -> BufferUnavailable:
        """Note a failure of this node."""
        now = time.monotonic()
        self._quiet_until, self.down_since = now + options.RETRY_AFTER, now
        return self._cluster.lost(error)

    def found(self) -> None:
        """Note that this node answers again, or the one in its place."""
        self.down_since, self._refuses = None, False
        self._cluster.found()


class Cluster(Client):
    """Sends each command to the node that holds its key. An outage lasts from the first node lost to the last found."""

    def __init__(self, alias: str):
        super().__init__(alias)
        self._nodes: dict[str, Node] = defaultdict(lambda: Node(self))

    def _node_of(self, key: str) -> Node:
        """The one without a name stands for one that is not known yet: `redis` asks the cluster when it is made."""
        try:
            return self._nodes[self.__dict__["redis"].get_node_from_key(key).name]
        except (KeyError, *FAILURES):
            return self._nodes[""]

    def _pool(self, key: str) -> Any:
        return self._node_of(key)._pool(key)

    def send(self, key: str, *command: Argument, script: Script | None = None, urgent: bool = False) -> Reply:
        """Send a command to the node that holds ``key``, without waiting for the reply."""
        return self._node_of(key).send(key, *command, script=script, urgent=urgent)

    def found(self) -> None:
        """Note that Redis answers again, if all of it does."""
        if all(node.down_since is None for node in self._nodes.values()):
            super().found()
