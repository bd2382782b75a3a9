"""Connections to one Redis server, faster than a pool of redis-py.

A connection may be released before the last replies on it were read. They are *owed*: whoever uses the connection next
reads them first.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from typing import Any
from weakref import finalize

from ..internals import has_input, limit_wait, new_connection
from . import errors
from .patience import limit

FRESH_SECONDS = 0.1
"""Seconds for which an idle connection is used again without a test whether it is still alive."""

IDLE_SECONDS = 60
"""Seconds after which an unused connection is closed."""

LAST_SECONDS = 1.0
"""The longest wait for replies that are owed on a connection that is about to be closed."""


class Connections:
    """Idle connections, the most recently used first. A connection that nobody has needed for a minute is closed.

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
                connection = new_connection(self._pool)
                connection.owed, connection.made_in = [], os.getpid()
                return connection
            if connection.made_in == os.getpid():  # not by the parent of a fork; some forks run no hook
                break
        if time.monotonic() - released > FRESH_SECONDS:
            connection.connect()
            try:
                if getattr(connection, "owed", None):
                    limit_wait(connection, limit())
                    read_owed(connection)
                usable = not has_input(connection)
            except errors.FAILURES:
                usable = False
            except BaseException:
                disconnect(connection)
                raise
            if not usable:
                disconnect(connection)
        return connection

    def release(self, connection: Any) -> None:
        """Take a connection back."""
        now = time.monotonic()
        self._idle.append((connection, now))
        try:
            if now - self._idle[0][1] > IDLE_SECONDS:
                _close_idle(self._idle.popleft()[0])
        except IndexError:  # other threads have just taken them all
            pass

    def disconnect(self, inuse_connections: bool = False) -> None:
        """Close the idle connections, as ``ConnectionPool.disconnect`` does."""
        _close(self._idle)


def _close(idle: deque[tuple[Any, float]]) -> None:
    with suppress(IndexError):
        while True:
            _close_idle(idle.pop()[0])


def _close_idle(connection: Any) -> None:
    if connection.made_in != os.getpid():
        connection.owed = []  # the other process reads them
    elif getattr(connection, "owed", None):
        with suppress(*errors.FAILURES):
            limit_wait(connection, LAST_SECONDS)
            read_owed(connection)
    disconnect(connection)


def read_owed(connection: Any) -> None:
    """Read the replies that are owed on a connection. Raises one of FAILURES if they don't come."""
    while connection.owed:
        connection.owed[0].arrive(connection)
        del connection.owed[0]


def disconnect(connection: Any) -> None:
    """Close a connection. The replies that are owed on it are lost."""
    connection.disconnect()
    owed: list[Any] = getattr(connection, "owed", [])
    while owed:
        owed.pop(0).lose()
