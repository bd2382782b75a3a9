"""Connections to one Redis server, faster than a pool of redis-py."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import Any
from weakref import finalize

from redis.exceptions import RedisClusterException, RedisError

from ..internals import has_input, is_inherited, new_connection

FRESH_SECONDS = 0.1
"""Seconds for which an idle connection is used again without a test whether it is still alive."""

IDLE_SECONDS = 60
"""Seconds after which an unused connection is closed."""

FAILURES = (RedisError, RedisClusterException, OSError)
"""What redis-py raises if Redis does not answer, or refuses."""


class Connections:
    """Idle connections, the most recently used first. Those that nobody has needed for a minute are closed.

    It replaces a plain ``ConnectionPool`` whose size the site has not limited, and takes a third of its time.
    """

    def __init__(self, pool: Any):
        self._pool = pool
        self._idle: deque[tuple[Any, float]] = deque()
        finalize(self, _close, self._idle).atexit = False

    def get_connection(self) -> Any:
        """Return a connection that is not in use.

        The test whether it is alive takes a system call, so one that was used a moment ago is not tested. If it has
        died since, that is an outage.
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

    def disconnect(self, inuse_connections: bool = False) -> None:
        """Close the idle connections, as ``ConnectionPool.disconnect`` does."""
        _close(self._idle)


def _close(idle: deque[tuple[Any, float]]) -> None:
    with suppress(IndexError):
        while True:
            idle.pop()[0].disconnect()
