"""Sends commands to the Redis behind a cache of django-redis."""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

from ..conf import options, shown
from ..exceptions import BufferUnavailable, ConfigurationError
from ..internals import (
    connection_factory,
    disconnect_idle,
    is_exhausted,
    limit_setup,
    redis_py,
)
from ..signals import redis_called
from . import errors
from .breaker import BROKEN, NEVER, Breaker
from .commands import Argument, Command, TypedKeys, call_of
from .connections import Connections
from .location import HOW_TO_WRITE, parse, reason_of, urls_of
from .patience import Patience, limit
from .pipeline import AnyCall, Pipeline, late_failures
from .scripts import Script, script
from .troubles import TroubleLog
from .types import decode

_clients: dict[str, Client] = {}


@receiver(setting_changed)
def _forget_clients(*, setting: str, **_: Any) -> None:
    if setting == "CACHES":
        _clients.clear()


def client_of(alias: str) -> Client:
    """Return the client of a cache alias. ConfigurationError if it is not a django-redis cache."""
    client = _clients.get(alias)
    if client is None:
        redis_py()
        try:
            factory = connection_factory(caches[alias])
        except ImproperlyConfigured as error:  # InvalidCacheBackendError, too
            if alias in settings.CACHES:
                raise ConfigurationError(f"The cache {alias!r} cannot be used: {error}") from None
            raise ConfigurationError(
                f"NOTIFICATIONS_COUNTER['CACHE_ALIAS'] is {shown(alias)}, which is not defined in CACHES."
            ) from None
        if factory is None:
            raise ConfigurationError(
                f"CACHE_ALIAS {alias!r} is not a django-redis cache; set NOTIFICATIONS_COUNTER['CACHE_ALIAS'] to an "
                "entry of CACHES whose BACKEND is django_redis.cache.RedisCache."
            )
        client = _clients[alias] = getattr(factory, "client_class", Client)(alias)
    return client


def used_clients() -> list[Client]:
    """Return the client of each cache that this process has used."""
    return list(_clients.values())


@atexit.register
def read_all_owed() -> None:
    """Read the replies that are owed on all idle connections, and close these, before the process ends."""
    for client in used_clients():
        client.close_idle()
    late_failures.handle()


class Client:
    """The client of the Redis behind a cache. It never retries by itself, because that could count twice."""

    knows_server = True
    """Whether all its keys are on one server."""

    def __init__(self, alias: str):
        self.alias = alias
        self.breaker = Breaker(alias)
        self.troubles = TroubleLog(self)

    @cached_property
    def redis(self) -> Any:
        """The client of redis-py. ConfigurationError if LOCATION is no URL; redis-py's error would show a part."""
        if None in map(parse, urls_of(self.alias)):
            raise ConfigurationError(f"The LOCATION of the cache {self.alias!r} is not a URL of Redis. {HOW_TO_WRITE}")
        from django_redis import get_redis_connection

        return get_redis_connection(self.alias)

    @cached_property
    def is_limited(self) -> bool:
        """Whether the site limits the number of connections. If it does, never hold one while waiting for another."""
        cache: Any = settings.CACHES[self.alias]
        about = cache.get("OPTIONS", {})
        return (
            "max_connections" in about.get("CONNECTION_POOL_KWARGS", ())
            or "CONNECTION_POOL_CLASS" in about
            or "max_connections=" in str(cache.get("LOCATION"))
        )

    @cached_property
    def _connections(self) -> Any:
        return self._connections_of(self.redis.connection_pool)

    def _connections_of(self, pool: Any) -> Any:
        limit_setup(pool, limit)
        if type(pool) is redis_py().ConnectionPool and self.knows_server and not self.is_limited:
            return Connections(pool)
        return pool  # it enforces a limit, or finds the master among several servers

    def pool(self, key: str) -> Any:
        """Return the connections to the server that holds ``key``."""
        if self.breaker.refuses_writes:  # the address may lead to another server now, but only for new connections
            disconnect_idle(self._connections)
        return self._connections

    def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        if type(pool := self.__dict__.get("_connections")) is Connections:
            pool.disconnect()

    def node_of(self, key: str) -> Client:
        """Return the client of the server that holds ``key``."""
        return self

    def trial(self) -> AbstractContextManager[None]:
        """Return the context of a command that tries whether Redis is still down. The site waits for it no longer than
        for a read, because others will have to try again."""
        return nullcontext() if limit() is None else Patience(options.READ_TIMEOUT)

    def check(self, key: str) -> None:
        """Raise BufferUnavailable while Redis is down.

        A server that refuses writes, such as a replica, still answers readers, with old data. It must accept a write
        before it is used again.
        """
        self.breaker.check()
        if self.breaker.refuses_writes:
            self.run(script("probe"), (f"{key}:probe",), (), urgent=True)

    def ask(self, call: AnyCall, urgent: bool = False) -> Any:
        """Send a call and return its reply. For RETRY_AFTER seconds after a failure, only ``urgent`` calls are sent.
        BufferUnavailable if it was not sent, or Redis did not answer or refused."""
        pipeline = Pipeline(self if self.knows_server else self.node_of(call.key), [call])
        try:
            pipeline.send(urgent)
            (outcome,) = pipeline.outcomes()
        except BaseException:
            pipeline.close()
            raise
        if late_failures:  # of this, or of one that was owed on the connection
            late_failures.handle()
        if isinstance(outcome, BufferUnavailable):
            raise outcome
        return outcome

    def call(self, key: str, name: str, *arguments: Argument) -> Any:
        """Send a command and return its reply."""
        return self.ask(Command(name, key, arguments))

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument], urgent: bool = False) -> Any:
        """Call a script and return its reply."""
        return self.ask(call_of(script, keys, args), urgent)

    def info(self, key: str, *section: str) -> dict[str, str]:
        """Return INFO of the server that holds ``key``; empty if the server refuses it. Managed servers allow it,
        unlike CONFIG GET."""
        lines = decode(self.ask(Command("INFO", key, section, may_be_refused=True)) or "").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def lost(self, error: Exception) -> BufferUnavailable:
        """Note that a command could not be sent or got no reply, and return the exception to raise."""
        if is_exhausted(error):
            return self.breaker.note_busy(error)
        return self.breaker.trip(error)

    def refused(self, error: Exception, call: AnyCall) -> BufferUnavailable:
        """Note a refusal, and return the exception to raise."""
        text, name = str(error), call.name
        if text.startswith("UNUSED "):
            reason = "is new or was emptied, or SHARDS has changed"
            return BufferUnavailable(f"Redis (cache {self.alias!r}) {reason}. Reads count rows until the next flush.")
        # Without memory, a server can still answer readers. Redis 6.2 wraps an error inside a script in one of its own.
        if call.script is not None and (isinstance(error, errors.OutOfMemoryError) or " -OOM " in text):
            self.troubles.note(text)
            return self.breaker.note_full(error, name)
        if BROKEN.search(text):
            failed = self.breaker.note_broken(error, name)
            self.troubles.note(str(failed))
            self._mend(call.typed_keys)
            return failed
        if NEVER.search(text):
            self.troubles.note(f"{name}: {text}")
            return self.breaker.note_refusal(error, name)
        self.breaker.refuses_writes = True
        return self.breaker.trip(error)

    def _mend(self, keys: TypedKeys) -> None:
        """Delete foreign values in keys, once in a while."""
        if keys and self.troubles.is_due(str(keys[0][0])):
            self.run_aside("mend", [str(key) for key, _ in keys], [kind for _, kind in keys])

    def tell(self, name: str, started: int, error: Exception | None) -> None:
        """Send ``redis_called`` for a command that was sent at ``started``, in nanoseconds."""
        if error is not None:
            reason_of(error, self.alias)
        about = {"name": name, "cache": self.alias, "started": started, "ended": time.time_ns(), "error": error}
        redis_called.send_robust(sender=type(self), **about)

    # ---------------------------------------------------------------- outages
    def answered(self, name: str) -> None:
        """Note that Redis has run a command or script, after an outage or a refusal."""
        if self.breaker.down_since is not None and (reason := self.breaker.reset()) is not None:
            self.troubles.note(reason)
        self.breaker.accept(name)

    def run_aside(self, name: str, keys: Sequence[str], args: Sequence[Argument]) -> None:
        """Run a script on which no count depends, so that a failure is no outage."""
        Pipeline(self, [call_of(script(name), keys, args).by_source]).attempt()
