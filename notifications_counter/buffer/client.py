"""Sends commands to the Redis behind a cache of django-redis: one command out, one reply back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from django.core.cache import InvalidCacheBackendError, caches
from django.core.signals import setting_changed
from django.dispatch import Signal, receiver
from django_redis import get_redis_connection
from redis import ConnectionPool
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisClusterException, RedisError, ResponseError

from ..conf import options
from ..exceptions import BufferUnavailable, ConfigurationError, DatabaseChanged
from ..internals import connection_factory, has_input, is_inherited, new_connection, send_packed
from . import keys
from .breaker import Breaker
from .scripts import Script, script

try:
    from hiredis import pack_command  # redis-py calls it too, after spending twice its time on each argument
except ImportError:

    def pack_command(arguments: Sequence[Argument]) -> bytes:
        """A command as Redis reads it."""
        parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
        return b"".join([b"*%d\r\n" % len(parts), *(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)])


Argument = str | int | bytes
FRESH_SECONDS = 0.1
"""Seconds for which an idle connection is used again without asking whether it is still alive."""
FAILURES = (RedisError, RedisClusterException, OSError)
_clients: dict[str, Client] = {}
keys_left = Signal()
"""Sent when a script finds that the database of its keys has another id now."""


@receiver(setting_changed)
def _forget_clients(*, setting: str, **_: Any) -> None:
    if setting == "CACHES":
        _clients.clear()


def client_of(alias: str) -> Client:
    """The client of a cache alias. ConfigurationError if it is not a django-redis cache."""
    client = _clients.get(alias)
    if client is None:
        try:
            factory = connection_factory(caches[alias])
        except InvalidCacheBackendError:
            factory = None
        if factory is None:
            raise ConfigurationError(
                f"CACHE_ALIAS {alias!r} is not a django-redis cache; set NOTIFICATIONS_COUNTER['CACHE_ALIAS'] to an "
                "entry of CACHES whose BACKEND is django_redis.cache.RedisCache."
            )
        client = _clients[alias] = getattr(factory, "client_class", Client)(alias)
    return client


class Outages(NamedTuple):
    """How often processes were without Redis, and for how many seconds, all processes added up."""

    number: int
    seconds: float


class Connections:
    """Connections to one server, the most recently used first. It replaces a plain pool of redis-py, and is faster."""

    def __init__(self, pool: Any):
        self._pool = pool
        self._idle: list[tuple[Any, float]] = []

    def get_connection(self) -> Any:
        """Return a connection that is not in use.

        One that was used a moment ago is not tested, because that takes a system call. If it has died since, that is
        an outage.
        """
        while True:
            try:
                connection, released = self._idle.pop()
            except IndexError:
                return new_connection(self._pool)
            if not is_inherited(connection):
                break
        if time.monotonic() - released > FRESH_SECONDS:
            connection.connect()
            try:
                usable = not has_input(connection)
            except FAILURES:
                usable = False
            if not usable:
                connection.disconnect()
        return connection

    def release(self, connection: Any) -> None:
        """Take a connection back."""
        self._idle.append((connection, time.monotonic()))


class Reply:
    """A command that was sent. Read its reply, or its connection is never returned."""

    __slots__ = ("_client", "_pool", "_connection", "_script", "_call")

    def __init__(self, client: Client, pool: Any, connection: Any, script: Script | None, call: tuple):
        self._client, self._pool, self._connection = client, pool, connection
        self._script, self._call = script, call

    def read(self) -> Any:
        """What Redis answered. BufferUnavailable if it did not answer, or refused."""
        client, connection = self._client, self._connection
        try:
            try:
                answer = connection.read_response()
            except NoScriptError:  # nothing was run, so this is not a second time
                assert self._script is not None
                send_packed(connection, pack_command(("EVAL", self._script.source, *self._call)))
                answer = connection.read_response()
        except ResponseError as error:
            raise client.refused(error, self._script) from error
        except FAILURES as error:
            connection.disconnect()
            raise client.breaker.trip(error) from error
        except BaseException:  # an interrupt: the next command would read this reply as its own
            connection.disconnect()
            raise
        finally:
            self._pool.release(connection)
        breaker = client.breaker
        if breaker.down_since is not None:
            client.recovered()
        if breaker.no_room_for and self._script is not None:
            breaker.reset_full(self._script.name)
        return answer


class Client:
    """Sends commands to the Redis behind a cache alias. It never retries by itself, because that could count twice."""

    def __init__(self, alias: str):
        self.alias = alias
        self.breaker = Breaker(alias)

    @cached_property
    def redis(self) -> Any:
        """The client of redis-py."""
        return get_redis_connection(self.alias)

    @cached_property
    def _connections(self) -> Any:
        pool = self.redis.connection_pool
        return (
            Connections(pool) if type(pool) is ConnectionPool else pool
        )  # other pools know more, such as which server is the master

    def pool(self, key: str) -> Any:
        """The connections to the server that holds ``key``."""
        return self._connections

    def send(self, key: str, *command: Argument, script: Script | None = None, urgent: bool = False) -> Reply:
        """Send a command to the server that holds ``key``, without waiting for the reply.

        For RETRY_AFTER seconds after a failure only urgent commands are sent; BufferUnavailable for the others.
        """
        if self.breaker.down_since is not None and not urgent:
            self._check(key)
        connection = None
        try:
            pool = self.pool(key)
            connection = pool.get_connection()
            send_packed(connection, pack_command(command))
        except FAILURES as error:
            if connection is not None:
                connection.disconnect()
                pool.release(connection)
            raise self.breaker.trip(error) from error
        return Reply(self, pool, connection, script, command[2:])

    def _check(self, key: str) -> None:
        """BufferUnavailable while Redis is down.

        A server that refuses writes, such as a replica, would still answer readers, with old data. So it must accept a
        write first.
        """
        self.breaker.check()
        if self.breaker.refuses:
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
        """Note a refusal, and return what to raise. A server without memory can still free some, and answer readers."""
        if str(error).startswith("LEFT "):
            keys_left.send(sender=self)
            return DatabaseChanged("The database was replaced or emptied. Its counts are read from the rows meanwhile.")
        # Redis 6.2 wraps the error of a command inside a script in one of its own.
        if script is not None and (isinstance(error, OutOfMemoryError) or " -OOM " in str(error)):
            return self.breaker.trip_full(error, script.name)
        self.breaker.refuses = True
        return self.breaker.trip(error)

    # ---------------------------------------------------------------- outages
    def recovered(self) -> None:
        """Note that Redis answers again, and count the outage for everyone to see."""
        seconds = self.breaker.reset()
        if seconds is not None:
            with suppress(*FAILURES):  # it is for statistics only
                self._count_outage(seconds)

    def _count_outage(self, seconds: float) -> None:
        """Add an outage to the statistics. Not by send(): if it fails, that is not one more outage."""
        key = keys.outages(options.KEY_PREFIX)
        pool = self.pool(key)
        connection = pool.get_connection()
        try:
            for field, number in (("outages", 1), ("outage_ms", round(seconds * 1000))):
                send_packed(connection, pack_command(("HINCRBY", key, field, number)))
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
