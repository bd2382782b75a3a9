"""Sends commands to the Redis behind a cache of django-redis: one command out, one reply back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.signals import setting_changed
from django.dispatch import Signal, receiver
from django_redis import get_redis_connection
from redis import ConnectionPool
from redis.exceptions import NoScriptError, OutOfMemoryError, RedisClusterException, RedisError, ResponseError

from ..conf import options
from ..exceptions import BufferUnavailable, ConfigurationError, DatabaseChanged
from ..internals import connection_factory, has_input, is_exhausted, is_inherited, new_connection, send_packed
from ..signals import redis_called
from . import keys
from .breaker import NEVER, Breaker
from .scripts import Script, script

try:
    # redis-py calls it too, after spending twice its time on each argument.
    from hiredis import pack_command as pack_command
except ImportError:

    def pack_command(arguments: Sequence[Argument]) -> bytes:
        """A command as Redis reads it."""
        parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
        return b"".join([b"*%d\r\n" % len(parts), *(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)])


Argument = str | int | bytes
T = TypeVar("T")
FRESH_SECONDS = 0.1
"""Seconds for which an idle connection is used again without asking whether it is still alive."""
IDLE_SECONDS = 60
"""Seconds after which a connection that nobody needs is closed."""
ARGUMENTS = 3900
"""The most arguments of a command. Some managed servers refuse 4,000."""
FAILURES = (RedisError, RedisClusterException, OSError)
_clients: dict[str, Client] = {}
keys_left = Signal()
"""Sent when a script finds that the database of its keys has another id now."""


@receiver(setting_changed)
def _forget_clients(*, setting: str, **_: Any) -> None:
    if setting == "CACHES":
        _clients.clear()


def in_groups(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Items in groups whose sizes add up to at most so much, for one command each. A larger item is on its own."""
    group: list[T] = []
    total = 0
    for item in items:
        of_item = size(item)
        if group and total + of_item > most:
            yield group
            group, total = [], 0
        group.append(item)
        total += of_item
    if group:
        yield group


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
    """Connections to one server, the most recently used first.

    It replaces a plain pool of redis-py whose size the site has not limited, and costs a third of it. Those that nobody
    has needed for a minute are closed.
    """

    def __init__(self, pool: Any):
        self._pool = pool
        self._idle: deque[tuple[Any, float]] = deque()

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
        now = time.monotonic()
        self._idle.append((connection, now))
        try:
            if now - self._idle[0][1] > IDLE_SECONDS:
                self._idle.popleft()[0].disconnect()
        except IndexError:  # other threads have just taken them all
            pass


class Reply:
    """The reply to a command. Read it or close it, or its connection is never returned."""

    __slots__ = ("_client", "_pool", "_connections", "_script", "_command", "_started")

    def __init__(self, client: Client, script: Script | None, command: tuple[Argument, ...]):
        self._client, self._script, self._command = client, script, command
        self._started = time.time_ns() if redis_called.receivers else 0
        self._connections: list[Any] = []  # the one in use; nothing that is taken out of a list is returned twice

    @property
    def _name(self) -> str:
        return self._script.name if self._script is not None else str(self._command[0])

    def send(self, pool: Any) -> None:
        """Send the command, over a connection of the pool."""
        self._pool = pool
        self._connections.append(pool.get_connection())
        send_packed(self._connections[0], pack_command(self._command))

    def receive(self) -> Any:
        """What Redis answered, or the exception of redis-py."""
        connection = self._connections[0]
        try:
            answer = connection.read_response()
        except NoScriptError:  # nothing was run, so this is not a second time
            assert self._script is not None
            send_packed(connection, pack_command(("EVAL", self._script.source, *self._command[2:])))
            answer = connection.read_response()
        self._pool.release(self._connections.pop())
        return answer

    def read(self, may_be_refused: bool = False) -> Any:
        """What Redis answered; None if it refused, and may.

        BufferUnavailable if it did not answer, or refused, or if the reply was closed.
        """
        client = self._client
        try:
            if not self._connections:
                raise BufferUnavailable(f"Nobody waited for the reply of Redis (cache {client.alias!r}).")
            answer = self.receive()
        except ResponseError as error:
            self._pool.release(self._connections.pop())
            self.announce(error)
            if may_be_refused:
                return None
            raise client.refused(error, self._script, self._name) from error
        except FAILURES as error:
            self.close()
            self.announce(error)
            raise client.breaker.trip(error) from error
        except BaseException:
            self.close()
            raise
        breaker = client.breaker
        if breaker.down_since is not None or breaker.no_room_for or breaker.refused:
            client.answered(self._name)
        if self._started:
            self.announce()
        return answer

    def announce(self, error: Exception | None = None) -> None:
        """Tell the site of the command, for its traces."""
        if self._started:
            self._client.announce(self._name, self._started, error)

    def close(self) -> None:
        """Return the connection without reading the reply, which the next command would take for its own."""
        if self._connections:
            self._connections[0].disconnect()
            self._pool.release(self._connections.pop())


class Client:
    """Sends commands to the Redis behind a cache alias. It never retries by itself, because that could count twice."""

    knows_server = True
    """Whether all its keys are on one server."""

    def __init__(self, alias: str):
        self.alias = alias
        self.breaker = Breaker(alias)

    @cached_property
    def redis(self) -> Any:
        """The client of redis-py."""
        return get_redis_connection(self.alias)

    @cached_property
    def is_limited(self) -> bool:
        """Whether the site limits the number of connections. Then nothing holds one while it waits for another."""
        cache: Any = settings.CACHES[self.alias]
        about = cache.get("OPTIONS", {})
        return (
            "max_connections" in about.get("CONNECTION_POOL_KWARGS", ())
            or "CONNECTION_POOL_CLASS" in about
            or "max_connections=" in str(cache.get("LOCATION"))
        )

    @cached_property
    def _connections(self) -> Any:
        pool = self.redis.connection_pool
        if type(pool) is ConnectionPool and not self.is_limited:
            return Connections(pool)
        return pool  # it keeps the limit, or knows more, such as which server is the master

    def pool(self, key: str) -> Any:
        """The connections to the server that holds ``key``."""
        return self._connections

    def send(self, key: str, *command: Argument, script: Script | None = None, urgent: bool = False) -> Reply:
        """Send a command to the server that holds ``key``, without waiting for the reply.

        For RETRY_AFTER seconds after a failure only urgent commands are sent; BufferUnavailable for the others.
        """
        if self.breaker.down_since is not None and not urgent:
            self.check(key)
        reply = Reply(self, script, command)
        try:
            reply.send(self.pool(key))
            return reply
        except FAILURES as error:
            reply.close()
            reply.announce(error)
            raise self.breaker.miss(error) if is_exhausted(error) else self.breaker.trip(error) from error
        except BaseException:  # it is meant for the site: a time limit, an interrupt
            reply.close()
            raise

    def node_of(self, key: str) -> Client:
        """The client of the server that holds ``key``."""
        return self

    def check(self, key: str) -> None:
        """BufferUnavailable while Redis is down.

        A server that refuses writes, such as a replica, would still answer readers, with old data. So it must accept a
        write first.
        """
        self.breaker.check()
        if self.breaker.refuses:
            self.run(script("probe"), (f"{key}:probe",), (), urgent=True)

    def call(self, key: str, *command: Argument, script: Script | None = None, urgent: bool = False) -> Any:
        """Send a command and return its reply."""
        reply = None
        try:
            reply = self.send(key, *command, script=script, urgent=urgent)
            return reply.read()
        except BaseException:
            if reply is not None:
                reply.close()
            raise

    def start(self, script: Script, keys: Sequence[str], args: Sequence[Argument], urgent: bool = False) -> Reply:
        """Send a script call, without waiting for the reply."""
        return self.send(keys[0], "EVALSHA", script.sha, len(keys), *keys, *args, script=script, urgent=urgent)

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument], urgent: bool = False) -> Any:
        """Call a script and return its reply."""
        return self.call(keys[0], "EVALSHA", script.sha, len(keys), *keys, *args, script=script, urgent=urgent)

    def refused(self, error: ResponseError, script: Script | None, name: str) -> BufferUnavailable:
        """Note a refusal, and return what to raise. A server without memory can still free some, and answer readers."""
        if str(error).startswith("LEFT "):
            keys_left.send(sender=self)
            return DatabaseChanged("The database was replaced or emptied. Its counts are read from the rows meanwhile.")
        # Redis 6.2 wraps the error of a command inside a script in one of its own.
        if script is not None and (isinstance(error, OutOfMemoryError) or " -OOM " in str(error)):
            return self.breaker.trip_full(error, script.name)
        if NEVER.search(str(error)):
            return self.breaker.refuse(error, name)
        self.breaker.refuses = True
        return self.breaker.trip(error)

    def announce(self, name: str, started: int, error: Exception | None) -> None:
        """Tell the site of a command that was sent at ``started``, in nanoseconds, for its traces."""
        about = {"name": name, "cache": self.alias, "started": started, "ended": time.time_ns(), "error": error}
        redis_called.send_robust(sender=type(self), **about)

    # ---------------------------------------------------------------- outages
    def answered(self, name: str) -> None:
        """Note that Redis has run a command or script, after an outage or a refusal."""
        if self.breaker.down_since is not None:
            self.recovered()
        self.breaker.accept(name)

    def recovered(self) -> None:
        """Note that Redis answers again, and count the outage for everyone to see."""
        seconds = self.breaker.reset()
        if seconds is not None:
            with suppress(*FAILURES):  # it is for statistics only
                self._count_outage(seconds)

    def _count_outage(self, seconds: float) -> None:
        """Add an outage to the statistics. Not by send(): if it fails, that is not one more outage."""
        key = keys.outages(options.KEY_PREFIX)
        for field, number in (("outages", 1), ("outage_ms", round(seconds * 1000))):
            reply = Reply(self, None, ("HINCRBY", key, field, number))
            try:
                reply.send(self.pool(key))
                reply.receive()
            except BaseException:
                reply.close()
                raise

    def outages(self) -> Outages:
        """The outages that processes have noticed and outlived. BufferUnavailable during one."""
        key = keys.outages(options.KEY_PREFIX)
        number, milliseconds = self.call(key, "HMGET", key, "outages", "outage_ms")
        return Outages(int(number or 0), int(milliseconds or 0) / 1000)
