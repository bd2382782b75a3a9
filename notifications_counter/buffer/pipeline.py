"""Several calls in one packet, so that a write waits once, however many counters it changes, and a read once, however
many shards it asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

from ..exceptions import BufferUnavailable
from ..internals import socket_of
from . import errors
from .client import Client
from .commands import Argument, TypedKeys, pack
from .connections import Connections, read_owed
from .exchange import Exchange, late_failures
from .scripts import Script


class Call(NamedTuple):
    """A call of a script. ``head`` is all that is the same each time, as ``pack_head`` returns it."""

    script: Script
    keys: Sequence[str]
    head: bytes
    args: Sequence[Argument]

    @property
    def name(self) -> str:
        return self.script.name

    @property
    def typed_keys(self) -> TypedKeys:
        return list(zip(self.keys, self.script.types, strict=True))

    @property
    def packed(self) -> bytes:
        return pack(self.args, self.head, 3 + len(self.keys))


@dataclass
class Get:
    """A command that returns the value of a key, and of others on the same server: a prefix and each of the ends. It is
    packed fastest if ends of the same length follow each other."""

    first: str
    prefix: str
    ends: Sequence[bytes]
    name: ClassVar[str] = "MGET"
    script: ClassVar[None] = None
    typed_keys: ClassVar[TypedKeys] = ()

    @property
    def keys(self) -> Sequence[str]:
        return (self.first,)

    @property
    def packed(self) -> bytes:
        """The command as Redis reads it. ``pack_command`` would take longer for as many keys."""
        first, prefix = self.first.encode(), self.prefix.encode()
        parts = [b"*%d\r\n$4\r\nMGET\r\n$%d\r\n%b" % (len(self.ends) + 2, len(first), first)]
        for length, run in groupby(self.ends, len):
            head = b"\r\n$%d\r\n%b" % (len(prefix) + length, prefix)
            parts += (head, head.join(run))
        return b"".join([*parts, b"\r\n"])


Subject = Any
"""What a caller knows of a call, and gets back with its outcome."""


def pipelines_for(client: Client, calls: Sequence[tuple[Call | Get, Subject]]) -> list[Pipeline]:
    """Return a pipeline for calls, each with its subject; on a cluster, one for each node."""
    if client.knows_server:
        return [Pipeline(client, calls)]
    grouped: dict[tuple[Client, str], list[tuple[Call | Get, Subject]]] = {}
    for call in calls:
        node = client.node_of(key := call[0].keys[0])
        grouped.setdefault((node, "" if node.knows_server else key), []).append(call)
    return [Pipeline(node, its) for (node, _), its in grouped.items()]


class Pipeline(Exchange):
    """Calls to one server. Their replies are read together, and each has an outcome of its own: what Redis answered, or
    the BufferUnavailable to raise, if the call was not sent, or Redis did not answer or refused."""

    __slots__ = ("calls", "subjects", "_outcomes", "_socket", "_on_failure")

    def __init__(self, client: Client, calls: Iterable[tuple[Call | Get, Subject]]):
        super().__init__(client)
        self.calls, self.subjects = zip(*calls, strict=True)
        self._outcomes: list[Any] | None = None

    def send(self, urgent: bool) -> None:
        """Send the calls, without waiting for the replies."""
        client, key = self._client, self.calls[0].keys[0]
        packed: Iterable[bytes] = (call.packed for call in self.calls)  # Redis looks up some while others are packed
        if isinstance(self.calls[0], Call):  # they are small
            packed = [b"".join(packed)]
        try:
            if client.breaker.down_since is None or urgent:
                self._send(client.pool(key), packed)
            else:
                with client.trial():
                    client.check(key)
                    self._send(client.pool(key), packed)
        except BufferUnavailable as error:
            self._outcomes = [error] * len(self.calls)
        except errors.FAILURES as error:
            self.close()
            self._outcomes = [client.lost(error)] * len(self.calls)
            self._tell([error] * len(self.calls))
        except BaseException:
            self.close()
            raise

    def read(self) -> Iterable[tuple[Subject, Any]]:
        """Return the subject of each call with its outcome. A script that Redis does not know is called again, by its
        source."""
        if self._outcomes is None:
            self._judge(self._receive())
        outcomes: list[Any] = self._outcomes  # type: ignore[assignment]
        for i, outcome in enumerate(outcomes):
            if isinstance(outcome, errors.NoScriptError):  # nothing was run, so this is not a second time
                outcomes[i] = self._run(self.calls[i])
        return zip(self.subjects, outcomes, strict=True)

    def _run(self, call: Call) -> Any:
        try:
            answer = self._client.run(call.script, call.keys, call.args, urgent=True)
        except BufferUnavailable as error:
            return error
        self._client.has_run.add(call.name)
        return answer

    # ------------------------------------------------------------- without waiting
    def leave(self, on_failure: Callable[[], bool]) -> bool:
        """Release the connection although the replies are owed. If a call turns out to have failed, ``on_failure`` is
        put into ``late_failures``. Returns False if one has to wait, because a failure is likely."""
        client = self._client
        if self._outcomes is not None or type(self._pool) is not Connections or client.breaker.has_trouble:
            return False
        for call in self.calls:
            if call.name not in client.has_run:
                return False
        self._on_failure = on_failure
        connection = self._connections[0]
        self._socket = socket_of(connection)
        connection.owed.append(self)  # first: after an exception, the connection is closed
        self._return()
        self._tell([None] * len(self.calls))
        return True

    def arrive(self, connection: Any) -> None:
        """Read the replies that are owed."""
        if socket_of(connection) is not self._socket:
            raise errors.ConnectionError("The connection was closed before the replies came.")
        answers = [_read(connection) for _ in self.calls]
        if self._judge(answers):
            late_failures.append(self._on_failure)
            self._tell(answers)

    def lose(self) -> None:
        """Note that the replies will not come."""
        if self._outcomes is None:
            lost = BufferUnavailable(f"The replies of Redis (cache {self._client.alias!r}) are lost.")
            self._outcomes = [lost] * len(self.calls)
            late_failures.append(self._on_failure)

    # ----------------------------------------------------------------------- reading
    def _receive(self) -> list[Any]:
        if not self._connections:
            lost = BufferUnavailable(f"Nobody waited for the replies of Redis (cache {self._client.alias!r}).")
            return [lost] * len(self.calls)
        connection, answers, started = self._connections[0], [], time.monotonic()
        try:
            if getattr(connection, "owed", None):
                read_owed(connection)
            for _ in self.calls:
                answers.append(_read(connection))
            self._return(started)
        except errors.FAILURES as error:
            self.close()
            lost = self._client.lost(error)
            answers += [lost] * (len(self.calls) - len(answers))
        except BaseException:
            self.close()
            raise
        self._tell(answers)
        return answers

    def _judge(self, answers: list[Any]) -> bool:
        """Turn answers into outcomes. Returns whether a call has failed."""
        client, self._outcomes = self._client, answers
        for answer in answers:
            if isinstance(answer, Exception):
                break
        else:
            if client.breaker.has_trouble or not client.has_run.issuperset([call.name for call in self.calls]):
                for call in self.calls:
                    client.answered(call.name)
            return False
        self._outcomes = [
            client.refused(answer, call.script, call.name, call.typed_keys)
            if isinstance(answer, errors.ResponseError) and not isinstance(answer, errors.NoScriptError)
            else answer
            for call, answer in zip(self.calls, answers, strict=True)
        ]
        return True

    def _tell(self, answers: Sequence[Any]) -> None:
        """Send ``redis_called`` for each call."""
        if self._started:
            for call, answer in zip(self.calls, answers, strict=True):
                self._client.tell(call.name, self._started, answer if isinstance(answer, Exception) else None)


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except errors.ResponseError as error:
        return error
