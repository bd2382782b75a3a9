"""A connection of the site's pool, with replies that are still to be read."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError, NoScriptError, RedisClusterException, RedisError, ResponseError

from .calls import Answer, Call, Script

FAILURES = (RedisError, RedisClusterException, OSError)
"""All that redis-py raises if Redis does not answer, or refuses."""

FRESH_SECONDS = 0.1
"""Seconds for which a connection is used again without a test whether it is still alive. The test is a system call."""


class Connection:
    """A connection of a pool, from ``get_connection`` to ``release``. Each reply belongs to the oldest call that is
    ``owed`` one, so after any failure the connection must be dropped.

    ``late``     calls and replies that were read before the connection is used again
    ``is_held``  whether a thread keeps it after an exchange
    ``ran``      scripts that the server knows, unless it has forgotten them since
    ``outages``  how many there had been when it was made
    """

    is_held = False

    def __init__(self, pool: Any, outages: int):
        self.pool, self.outages = pool, outages
        self.owed: list[Call] = []
        self.late: list[Answer] = []
        self.ran: set[Script | None] = set()
        self._pid, self._used = os.getpid(), time.monotonic()
        self._connection = pool.get_connection()
        self._connection.register_connect_callback(self._forget_owed)

    def exchange(self, calls: Sequence[Call], wait: bool = True) -> list[Answer]:
        """Send calls in one go. Returns each call that was owed a reply with this reply, which may be a ResponseError;
        without ``wait`` nothing, so that the calls are owed theirs. Raises one of FAILURES."""
        connection, is_first = self._connection, not self.owed
        if len(calls) == 1:
            connection.send_command(*calls[0].command, check_health=is_first)
        else:
            commands = connection.pack_commands([call.command for call in calls])
            connection.send_packed_command(commands, check_health=is_first)
        self.owed += calls
        self._used = time.monotonic()
        if not wait:
            return []
        late, self.late = self.late, []
        return [*late, *self.read_owed()]

    def read_owed(self) -> list[Answer]:
        """Return each call that is owed a reply, and its reply. A script that Redis does not know is sent again, by its
        source: it has not run yet, so it does not run twice."""
        answers = [(call, self._read()) for call in self.owed]
        for i, (call, reply) in enumerate(answers):
            if isinstance(reply, NoScriptError):
                self._connection.send_command(*call.command_with_source)
                answers[i] = call, self._read()
        self.owed.clear()  # not before: after an interrupt, the connection is closed
        return answers

    def _read(self) -> Any:
        try:
            return self._connection.read_response(disable_decoding=True)  # foreign bytes may be no text
        except ResponseError as error:
            return error
        except (AttributeError, ValueError) as error:  # what redis-py has read from is gone
            raise ConnectionError("another thread has closed the connection") from error

    def is_usable(self) -> bool:
        """Return whether this process may use the connection, and it seems to be alive."""
        if self._pid != os.getpid():  # a fork: the parent uses it
            return False
        return time.monotonic() - self._used < FRESH_SECONDS or self._is_quiet()

    def _is_quiet(self) -> bool:
        try:
            self.late += self.read_owed()
            return not self._connection.can_read()  # otherwise it is closed, or out of sync
        except FAILURES:
            return False

    def _forget_owed(self, connection: object) -> None:
        """Redis-py has connected again: somebody had closed the connection, or the server was restarted."""
        self.owed.clear()
        self.ran.clear()

    def end(self) -> None:
        """Read what is owed, unless a parent does, and give the connection back."""
        if self._pid == os.getpid():
            with suppress(*FAILURES):
                self.read_owed()
        self.release()

    def release(self, close: bool = False) -> None:
        """Give the connection back, if that was not done before. Closes it if replies are owed, which are lost."""
        if self._connection is not None:
            if close or self.owed:
                self._connection.disconnect()
            self._connection.deregister_connect_callback(self._forget_owed)
            self.pool.release(self._connection)
            self._connection = None

    def __del__(self) -> None:  # the thread that held it has ended
        with suppress(AttributeError):  # nothing was connected
            self.release()
