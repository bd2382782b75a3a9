"""A connection of the site's pool, with replies that are still to be read."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from redis.exceptions import ConnectionError, NoScriptError, RedisClusterException, RedisError, ResponseError

from .calls import Answer, Call

FAILURES = (RedisError, RedisClusterException, OSError)
"""All that redis-py raises if Redis does not answer, or refuses."""

_opened: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
"""When connections of redis-py were opened, by the monotonic clock, as far as we have seen it."""

_abandoned: deque[Connection] = deque()
"""Connections that nobody has given back. Appending takes no lock."""


class Connection:
    """A connection of a pool, until ``release``. Each reply belongs to the oldest call that is ``owed`` one, so after
    any failure the connection must be closed.

    ``late``     answers to earlier calls that were read before the connection is used again
    ``is_held``  whether a thread keeps it after a call
    ``known``    names of calls that the server has answered
    ``opened``   when it was opened, by the monotonic clock
    """

    is_held = False

    def __init__(self, pool: Any, oldest: float):
        """Take a connection of a pool. If it was opened before ``oldest``, or perhaps so by others, open it again."""
        self.pool = pool
        self.owed: list[Call] = []
        self.late: list[Answer] = []
        self.known: set[str] = set()
        self._pid = os.getpid()
        self._connection = pool.get_connection()
        self._connection.register_connect_callback(self._begin_anew)
        self.opened = _opened.get(self._connection, -math.inf)
        if self.opened < oldest:
            self._connection.disconnect()  # so that it connects again

    def exchange(self, calls: Sequence[Call], wait: bool) -> tuple[list[Answer], list[Answer]]:
        """Send calls in one go. Returns the late answers that refuse earlier calls, and all answers to these. Without
        ``wait`` there are none, so that the calls are owed replies, unless the server has yet to learn a script: then
        it may have to be sent again, before anything else. Raises one of FAILURES."""
        connection = self._connection
        is_first = not self.owed
        if len(calls) == 1:
            connection.send_command(*calls[0].arguments, check_health=is_first)
        else:
            commands = connection.pack_commands([call.arguments for call in calls])
            connection.send_packed_command(commands, check_health=is_first)
        self.owed += calls
        self._used = time.monotonic()
        if not wait and all(call.name in self.known for call in calls):
            return [], []
        answers, self.late = self.late + self._read_owed(), []
        late, own = answers[: -len(calls)], answers[-len(calls) :]
        return [answer for answer in late if isinstance(answer[1], ResponseError)], own

    def _read_owed(self) -> list[Answer]:
        """Return each call that is owed a reply, and its reply. A script that Redis does not know is sent again, by its
        source: it has not run yet, so it does not run twice."""
        answers = [(call, self._read()) for call in self.owed]
        for i, (call, reply) in enumerate(answers):
            if isinstance(reply, NoScriptError):
                self._connection.send_command(*call.by_source)
                answers[i] = call, self._read()
            self.known.add(call.name)
        self.owed.clear()  # not before: after an interrupt, the connection is closed
        return answers

    def _read(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True)  # foreign bytes may be no text
        except ResponseError as error:
            return error
        except (AttributeError, ValueError) as error:  # what redis-py has read from is gone
            raise ConnectionError("another thread has closed the connection") from error

    def is_usable(self, fresh: float = 0) -> bool:
        """Return whether this process may use the connection, and it seems to be alive. Unless it was used less than
        ``fresh`` seconds ago, that is tested, and what is owed is read."""
        if self._pid != os.getpid():  # a fork: the parent uses it
            return False
        if time.monotonic() - self._used < fresh:
            return True
        try:
            self.late += self._read_owed()
            return not self._connection.can_read()  # otherwise it is closed, or out of sync
        except FAILURES:
            return False

    def _begin_anew(self, connection: Any) -> None:
        """Redis-py has connected again: the connection was too old, somebody had closed it, or the server was
        restarted."""
        self.opened = _opened[connection] = time.monotonic()
        self.owed.clear()
        self.known.clear()

    def release(self, close: bool = False) -> None:
        """Give the connection back, if that was not done before. Closes it if replies are owed, which are lost."""
        if self._connection is not None:
            if close or self.owed:
                self._connection.disconnect()
            self._connection.deregister_connect_callback(self._begin_anew)
            self.pool.release(self._connection)
            self._connection = None

    def __del__(self) -> None:
        """Keep what a thread held that has ended. The garbage collector may run anywhere, even where this thread has
        the lock of the pool, so ``release`` could wait for ever."""
        if getattr(self, "_connection", None) is not None:
            _abandoned.append(self)


def release_abandoned() -> None:
    """Give back connections whose threads have ended."""
    while _abandoned:
        with suppress(IndexError):  # another thread was faster
            _abandoned.popleft().release()
