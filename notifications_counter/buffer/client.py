"""The only module that knows django-redis: one command out, one reply back, and no knocking at a closed door."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from django.core.cache import InvalidCacheBackendError
from django.core.signals import setting_changed
from django.dispatch import receiver
from django_redis import get_redis_connection
from redis.exceptions import MovedError, NoScriptError, RedisError, ResponseError

from ..conf import options
from ..exceptions import BufferUnavailable, ConfigurationError
from .scripts import Script

logger = logging.getLogger("notifications_counter")

Argument = str | int | bytes
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
            client = _clients[alias] = Client(alias, get_redis_connection(alias))
        except (NotImplementedError, InvalidCacheBackendError):
            raise ConfigurationError(
                f"CACHE_ALIAS {alias!r} is not a django-redis cache; set NOTIFICATIONS_COUNTER['CACHE_ALIAS'] to an "
                "entry of CACHES whose BACKEND is django_redis.cache.RedisCache."
            ) from None
    return client


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
            raise self._client.refused(error) from error
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise self._client.lost(error) from error
        except BaseException:  # an interrupt: the reply would be taken for that of the next command
            connection.disconnect()
            raise
        finally:
            self._pool.release(connection)
        if self._client.down_since is not None:
            self._client.found()
        return answer


class Client:
    """Sends commands to the Redis behind a cache alias, each once and never again by itself."""

    def __init__(self, alias: str, redis: Any):
        self.alias = alias
        self.redis = redis
        self.is_cluster = hasattr(redis, "nodes_manager")
        self.down_since: float | None = None
        self._quiet_until = 0.0

    def _pool(self, key: str) -> Any:
        if self.is_cluster:
            return self.redis.get_redis_connection(self.redis.get_node_from_key(key)).connection_pool
        return self.redis.connection_pool

    def send(self, key: str, *command: Argument, script: Script | None = None, urgent: bool = False) -> Reply:
        """Send a command to the node that holds ``key``, without waiting for the reply.

        For RETRY_AFTER seconds after a failure only urgent commands are sent; BufferUnavailable for the others.
        """
        if self.down_since is not None and not urgent and time.monotonic() < self._quiet_until:
            raise BufferUnavailable("Redis did not answer a moment ago.")
        connection = None
        try:
            pool = self._pool(key)
            connection = pool.get_connection()
            connection.send_command(*command)
        except (RedisError, OSError) as error:
            if connection is not None:
                connection.disconnect()
                pool.release(connection)
            raise self.lost(error) from error
        return Reply(self, pool, connection, script, command[2:])

    def call(self, key: str, *command: Argument) -> Any:
        """Send a command and return its reply."""
        return self.send(key, *command).read()

    def start(self, script: Script, keys: Sequence[str], args: Sequence[Argument], urgent: bool = False) -> Reply:
        """Send a script call, without waiting for the reply."""
        return self.send(keys[0], "EVALSHA", script.sha, len(keys), *keys, *args, script=script, urgent=urgent)

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument], urgent: bool = False) -> Any:
        """Call a script and return its reply."""
        return self.start(script, keys, args, urgent).read()

    def refused(self, error: Exception) -> BufferUnavailable:
        """Redis is there but does not do it. A cluster that moved is looked at anew."""
        if isinstance(error, MovedError) and self.is_cluster:
            self.redis.nodes_manager.initialize()
            return BufferUnavailable(f"The cluster has moved: {error}")
        return self.lost(error)

    def lost(self, error: Exception) -> BufferUnavailable:
        """Note a failure; one warning for each outage."""
        self._quiet_until = time.monotonic() + options.RETRY_AFTER
        if self.down_since is None:
            self.down_since = time.monotonic()
            logger.warning(
                "Redis (cache %r) is out of reach: %s. Unread rows are counted in the database.", self.alias, error
            )
        return BufferUnavailable(f"Redis (cache {self.alias!r}) is out of reach: {error}")

    def found(self) -> None:
        """Note that Redis answers again."""
        if self.down_since is not None:
            logger.info("Redis (cache %r) answers again after %.1f s.", self.alias, time.monotonic() - self.down_since)
            self.down_since = None
