"""Calls that are sent to a server together. So a write waits once, however many counters it changes, and a read once,
however many shards it asks."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from ..exceptions import BufferUnavailable
from ..internals import limit_wait, read_replies, send_packed, socket_of
from ..signals import redis_called
from . import errors
from .commands import Call, Command, Get
from .connections import Connections, disconnect, read_owed
from .patience import current

AnyCall = Call | Command | Get
PACKED: Callable[[AnyCall], bytes] = attrgetter("packed")
Subject = Any
"""The caller's name for a call."""


class LateFailures(deque[Callable[[], bool]]):
    """Handlers of calls that failed after their caller had stopped waiting. Each returns whether it could do its
    work."""

    def handle(self) -> None:
        """Call each handler once, and keep those that could not do their work."""
        for _ in range(len(self)):
            try:
                handler = self.popleft()
            except IndexError:  # another thread has taken the rest
                return
            is_done = False
            try:
                is_done = handler()
            finally:
                if not is_done:
                    self.append(handler)


late_failures = LateFailures()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=late_failures.clear)


def pipelines_for(client: Any, calls: Sequence[AnyCall], subjects: Sequence[Subject]) -> list[Pipeline]:
    """Return a pipeline for calls, each with its subject; on a cluster, one for each node."""
    if client.knows_server:
        return [Pipeline(client, calls, subjects)]
    grouped: dict[tuple[Any, str], list[tuple[AnyCall, Subject]]] = {}
    for call, subject in zip(calls, subjects, strict=True):
        node = client.node_of(key := call.key)
        grouped.setdefault((node, "" if node.knows_server else key), []).append((call, subject))
    return [Pipeline(node, *zip(*its, strict=True)) for (node, _), its in grouped.items()]


class Pipeline:
    """Calls to one server, whose replies are read together. The outcome of a call is the reply, or the
    BufferUnavailable to raise, if the call was not sent, or Redis did not answer or refused.

    Read the outcomes or close the pipeline, or its connection is never returned.
    """

    __slots__ = (
        *("client", "calls", "subjects", "_outcomes", "_has_failed", "_has_forgotten", "_started"),
        *("_patience", "_pool", "_connections", "_spent", "_socket", "_on_failure"),
    )

    def __init__(self, client: Any, calls: Sequence[AnyCall], subjects: Sequence[Subject] = ()):
        self.client, self.calls, self.subjects = client, calls, subjects
        self._outcomes: list[Any] | None = None
        self._connections: list[Any] = []  # at most one; nothing that is taken out of a list is returned twice
        self._has_failed = self._has_forgotten = False
        self._started = 0

    def send(self, urgent: bool = False) -> None:
        """Send the calls, without waiting for the replies.

        For RETRY_AFTER seconds after a failure, only ``urgent`` calls are sent.
        """
        client = self.client
        try:
            if client.breaker.down_since is None or urgent:
                self._send()
            else:
                with client.trial():
                    client.check(self.calls[0].key)
                    self._send()
        except BufferUnavailable as error:
            self._outcomes = [error] * len(self.calls)
        except errors.FAILURES as error:
            self.close()
            self._outcomes = [client.lost(error)] * len(self.calls)
            self._tell([error] * len(self.calls))
        except BaseException:  # it is meant for the site: a time limit, an interrupt
            self.close()
            raise

    def _send(self) -> None:
        patience = self._patience = current.get()()
        if patience is not None and patience.left <= 0:
            raise BufferUnavailable(f"Redis (cache {self.client.alias!r}) takes too long.")
        calls = self.calls
        self._pool = pool = self.client.pool(calls[0].key)
        if redis_called.receivers:
            self._started = time.time_ns()
        started = time.monotonic()
        self._connections.append(connection := pool.get_connection())
        limit_wait(connection, None if patience is None else patience.seconds)
        if len(calls) == 1 or type(calls[0]) is Get:  # Redis looks up some while others are packed
            packed: Iterable[bytes] = map(PACKED, calls)
        else:
            packed = [b"".join(map(PACKED, calls))]
        send_packed(connection, packed)
        self._spent = time.monotonic() - started

    def _return(self, started: float | None = None) -> None:
        """Return the connection, and note how long Redis took if the replies were read since ``started``."""
        if (patience := self._patience) is not None:
            if started is not None and (spent := self._spent + time.monotonic() - started) > patience.free:
                patience.spend(spent)
            if type(self._pool) is not Connections:  # the site may use it next
                limit_wait(self._connections[0], None)
        self._pool.release(self._connections.pop())

    def close(self) -> None:
        """Return the connection without reading the replies, which the next command would read as its own."""
        if self._connections:
            disconnect(self._connections[0])
            self._return()

    # ----------------------------------------------------------------------- reading
    def outcomes(self) -> list[Any]:
        """Return the outcome of each call. A script that Redis does not know is called again, by its source."""
        if self._outcomes is None:
            answers: list[Any] = []
            try:
                if not self._connections:
                    raise BufferUnavailable(f"Nobody waited for the reply of Redis (cache {self.client.alias!r}).")
                self._receive(answers)
            except BufferUnavailable as error:
                answers, self._has_failed = [error] * len(self.calls), True
            except errors.FAILURES as error:
                self._has_failed = True
                self.close()
                missing = len(self.calls) - len(answers)
                self._tell([*answers, *[error] * missing])
                answers += [self.client.lost(error)] * missing
            except BaseException:
                self.close()
                raise
            else:
                if self._started:
                    self._tell(answers)
            self._judge(answers)
        if self._has_forgotten:  # a pipeline whose replies were left
            self._outcomes = list(map(self._outcome, self.calls, self._outcomes))  # type: ignore[arg-type]
        return self._outcomes  # type: ignore[return-value]

    def _outcome(self, call: AnyCall, outcome: Any) -> Any:
        if not isinstance(outcome, errors.NoScriptError):
            return outcome
        try:
            return self.client.ask(call, urgent=True)
        except BufferUnavailable as error:
            return error

    def _receive(self, answers: list[Any]) -> None:
        """Read the answers, and return the connection. Scripts that Redis does not know are sent again, by their
        source: they have not run yet, so they don't run twice."""
        connection, started = self._connections[0], time.monotonic()
        if getattr(connection, "owed", None):
            read_owed(connection)
        self._has_failed = read_replies(connection, len(self.calls), answers)
        if self._has_failed:
            first, answers[:], self._has_failed = answers[:], [], False
            for call, answer in zip(self.calls, first, strict=True):
                if isinstance(answer, errors.NoScriptError):
                    send_packed(connection, [call.by_source.packed])  # type: ignore[union-attr]
                    self._has_failed |= read_replies(connection, 1, answers)
                else:
                    answers.append(answer)
                    self._has_failed |= isinstance(answer, Exception)
        self._return(started)

    def _judge(self, answers: list[Any]) -> bool:
        """Turn answers into outcomes. Returns whether a call has failed."""
        client = self.client
        if not self._has_failed:
            self._outcomes = answers
            for call in self.calls:
                if call.name not in client.breaker.has_run:
                    client.answered(call.name)
            return False
        for i, (call, answer) in enumerate(zip(self.calls, answers, strict=True)):
            if isinstance(answer, errors.NoScriptError):
                self._has_forgotten = True
            elif isinstance(answer, errors.ResponseError):
                is_optional = type(call) is Command and call.may_be_refused
                answers[i] = None if is_optional else client.refused(answer, call)
        self._outcomes = answers  # last: if a time limit strikes while a refusal is being noted, all count as lost
        return True

    def _tell(self, answers: Sequence[Any]) -> None:
        """Send ``redis_called`` for each call."""
        if not self._started:
            return
        for call, answer in zip(self.calls, answers, strict=True):
            if not isinstance(answer, errors.NoScriptError):
                self.client.tell(call.name, self._started, answer if isinstance(answer, Exception) else None)

    def attempt(self) -> None:
        """Send the calls, and read the replies. A failure is no outage."""
        with suppress(BufferUnavailable, *errors.FAILURES):
            try:
                self._send()
                self._receive([])
            finally:
                self.close()

    # ------------------------------------------------------------- without waiting
    def leave_replies(self, on_failure: Callable[[], bool]) -> bool:
        """Release the connection although the replies are owed. If a call turns out to have failed, ``on_failure``
        joins ``late_failures``. Returns False if the caller has to wait, because a failure is likely."""
        if self._outcomes is not None or type(self._pool) is not Connections:
            return False
        for call in self.calls:
            if call.name not in self.client.breaker.has_run:
                return False
        self._on_failure = on_failure
        connection = self._connections[0]
        self._socket = socket_of(connection)
        connection.owed.append(self)  # first: after an exception, the connection is closed
        self._return()
        if self._started:
            self._tell([None] * len(self.calls))
        return True

    def arrive(self, connection: Any) -> None:
        """Read the replies that are owed."""
        if socket_of(connection) is not self._socket:
            raise errors.ConnectionError("The connection was closed before the replies came.")
        answers: list[Any] = []
        self._has_failed = read_replies(connection, len(self.calls), answers)
        if self._judge(answers):
            late_failures.append(self._on_failure)
            self._tell(answers)

    def lose(self) -> None:
        """Note that the replies will not come."""
        if self._outcomes is None:
            lost = BufferUnavailable(f"The replies of Redis (cache {self.client.alias!r}) are lost.")
            self._outcomes = [lost] * len(self.calls)
            late_failures.append(self._on_failure)
