"""A command that was sent, and its reply; and what is done about replies for which nobody waited."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..exceptions import BufferUnavailable
from ..internals import limit_wait, send_packed
from ..signals import redis_called
from . import errors
from .commands import Argument, TypedKeys, pack_command
from .connections import Connections, disconnect, read_owed
from .patience import current
from .scripts import Script

late_failures: deque[Callable[[], bool]] = deque()
"""What is to be done about calls for which nobody waited, and which failed. Each returns whether it could be done."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=late_failures.clear)


def see_to_late() -> None:
    """Do what can be done now about calls that failed although nobody waited for them."""
    for _ in range(len(late_failures)):
        try:
            do = late_failures.popleft()
        except IndexError:  # another thread does it
            return
        is_done = False
        try:
            is_done = do()
        finally:
            if not is_done:
                late_failures.append(do)


class Exchange:
    """A connection on which something was sent. Read what comes back or close it, or it is never returned."""

    __slots__ = ("_client", "_pool", "_connections", "_started", "_patience", "_spent", "_script", "_command")

    def __init__(self, client: Any, script: Script | None = None, command: tuple[Argument, ...] = ()):
        self._client, self._script, self._command = client, script, command
        self._patience = current()
        self._started = time.time_ns() if redis_called.receivers else 0
        self._connections: list[Any] = []  # at most one; nothing that is taken out of a list is returned twice

    def _send(self, pool: Any, packed: Iterable[bytes]) -> None:
        patience = self._patience
        if patience is not None and patience.left <= 0:
            raise BufferUnavailable(f"Redis (cache {self._client.alias!r}) takes too long.")
        self._pool = pool
        started = time.monotonic()
        self._connections.append(connection := pool.get_connection())
        limit_wait(connection, None if patience is None else patience.seconds)
        send_packed(connection, packed)
        self._spent = time.monotonic() - started

    def _return(self, started: float | None = None) -> None:
        """Return the connection, and note how long Redis took if the reply was read since ``started``."""
        if (patience := self._patience) is not None:
            if started is not None and (spent := self._spent + time.monotonic() - started) > patience.free:
                patience.spend(spent)
            if type(self._pool) is not Connections:  # the site may use it next
                limit_wait(self._connections[0], None)
        self._pool.release(self._connections.pop())

    def close(self) -> None:
        """Return the connection without reading the reply, which the next command would otherwise read as its own."""
        if self._connections:
            disconnect(self._connections[0])
            self._return()


class Reply(Exchange):
    """The reply to a command."""

    __slots__ = ()

    @property
    def _name(self) -> str:
        return self._script.name if self._script is not None else str(self._command[0])

    @property
    def _typed_keys(self) -> TypedKeys:
        if self._script is not None:
            return list(zip(self._command[3:], self._script.types, strict=False))
        types = {"H": "hash", "Z": "zset"}
        return [(key, types.get(self._name[0], "string")) for key in self._command[1:2]]

    def receive(self) -> Any:
        """Return what Redis answered, or raise the exception of redis-py."""
        connection, started = self._connections[0], time.monotonic()
        try:
            if getattr(connection, "owed", None):
                read_owed(connection)
            answer = connection.read_response()
        except errors.NoScriptError:  # nothing was run, so this is not a second time
            assert self._script is not None
            send_packed(connection, [pack_command(("EVAL", self._script.source, *self._command[2:]))])
            answer = connection.read_response()
        self._return(started)
        return answer

    def read(self, may_be_refused: bool = False) -> Any:
        """Return what Redis answered; None if ``may_be_refused`` and it refused.

        BufferUnavailable if it did not answer, or refused, or if the reply was closed.
        """
        client = self._client
        try:
            if not self._connections:
                raise BufferUnavailable(f"Nobody waited for the reply of Redis (cache {client.alias!r}).")
            answer = self.receive()
        except errors.ResponseError as error:
            self._return()
            self.tell(error)
            if may_be_refused:
                return None
            raise self.failed(client.refused(error, self._script, self._name, self._typed_keys)) from error
        except errors.FAILURES as error:
            self.close()
            self.tell(error)
            raise self.failed(client.lost(error)) from error
        except BaseException:
            self.close()
            raise
        breaker = client.breaker  # has_trouble, without a call
        if breaker.down_since is not None or breaker.no_room_for or breaker.refused:
            client.answered(self._name)
        if self._started:
            self.tell()
        if late_failures:
            see_to_late()
        return answer

    def failed(self, error: BufferUnavailable) -> BufferUnavailable:
        if late_failures:  # the same has befallen what was owed on the connection
            see_to_late()
        return error

    def tell(self, error: Exception | None = None) -> None:
        """Send ``redis_called``."""
        if self._started:
            self._client.tell(self._name, self._started, error)
