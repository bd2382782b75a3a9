"""Several calls in one packet, so that a write waits once, however many counters it changes, and a read once, however
many shards it asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ..exceptions import BufferUnavailable
from ..internals import socket_of
from . import errors
from .client import Argument, Client, Exchange, TypedKeys, late_failures, pack_command
from .connections import Connections, read_owed
from .scripts import Script


class Call(NamedTuple):
    """A call of a script."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]

    @property
    def name(self) -> str:
        return self.script.name

    @property
    def typed_keys(self) -> TypedKeys:
        return list(zip(self.keys, self.script.types, strict=True))

    @property
    def command(self) -> Sequence[Argument]:
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)


@dataclass
class Get:
    """A command that returns the values of keys."""

    keys: Sequence[str]
    name: ClassVar[str] = "MGET"
    script: ClassVar[None] = None
    typed_keys: ClassVar[TypedKeys] = ()

    @property
    def command(self) -> Sequence[Argument]:
        return (self.name, *self.keys)


def send_together(client: Client, calls: Sequence[Call | Get], urgent: bool = False) -> list[PacketReply]:
    """Send calls without waiting for the replies; on a cluster, in one packet for each node.

    Reading a reply raises BufferUnavailable if the call was not sent, or Redis did not answer or refused.
    """
    packets: dict[tuple[Client, str], Packet] = {}
    replies: list[PacketReply] = []
    for call in calls:
        node = client.node_of(key := call.keys[0])
        packet = packets.setdefault((node, "" if node.knows_server else key), Packet(node))
        replies.append(PacketReply(packet, len(packet.calls)))
        packet.calls.append(call)
    try:
        for packet in packets.values():
            packet.send(urgent)
        return replies
    except BaseException:
        for packet in packets.values():
            packet.close()
        raise


class Packet(Exchange):
    """Calls to one server. Their replies are read together, and each has an outcome of its own."""

    def __init__(self, client: Client):
        super().__init__(client)
        self.calls: list[Call | Get] = []
        self._outcomes: list[Any] | None = None
        self._sock: Any = None
        self._on_failure: list[Callable[[], bool]] = []

    def send(self, urgent: bool) -> None:
        """Send the calls. If that fails, their outcomes are the exception to raise."""
        client, key = self._client, self.calls[0].keys[0]
        packed = b"".join([pack_command(call.command) for call in self.calls])
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
            if self._started:
                self._tell([error] * len(self.calls))

    def run(self, place: int) -> Any:
        """Run a call alone, and return the reply."""
        call = self.calls[place]
        assert isinstance(call, Call)
        answer = self._client.run(*call, urgent=True)
        self._client.has_run.add(call.name)
        return answer

    def outcomes(self) -> list[Any]:
        """Return what Redis answered to each call, or the BufferUnavailable to raise."""
        if self._outcomes is None:
            answers = self._receive()
            if self._started:
                self._tell(answers)
            self._outcomes = self._judge(answers)
        return self._outcomes

    def _judge(self, answers: Sequence[Any]) -> list[Any]:
        client = self._client
        outcomes = [
            client.refused(answer, call.script, call.name, call.typed_keys)
            if isinstance(answer, errors.ResponseError) and not isinstance(answer, errors.NoScriptError)
            else answer
            for call, answer in zip(self.calls, answers, strict=True)
        ]
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                return outcomes
        for call in self.calls:
            if call.name not in client.has_run or client.breaker.has_trouble:
                client.answered(call.name)
        return outcomes

    # ------------------------------------------------------------- without waiting
    def leave(self, on_failure: Callable[[], bool]) -> bool:
        """Release the connection although the replies are owed. If a call turns out to have failed, ``on_failure`` is
        put into ``late_failures``. Returns False if one has to wait, because a failure is likely."""
        client, breaker = self._client, self._client.breaker
        if self._outcomes is not None or type(self._pool) is not Connections:
            return False
        if breaker.has_trouble or not client.has_run.issuperset([call.name for call in self.calls]):
            return False
        self._on_failure.append(on_failure)
        if self._connections:
            connection = self._connections[0]
            self._sock = socket_of(connection)
            connection.owed.append(self)  # first: after an exception, the connection is closed
            self._return()
            if self._started:
                self._tell([None] * len(self.calls))
        return True

    def arrive(self, connection: Any) -> None:
        """Read the replies that are owed."""
        if socket_of(connection) is not self._sock:
            raise errors.ConnectionError("The connection was closed before the replies came.")
        answers = [_read(connection) for _ in self.calls]
        self._outcomes = self._judge(answers)
        if any(isinstance(outcome, Exception) for outcome in self._outcomes):
            late_failures.extend(self._on_failure)
            if self._started:
                self._tell(answers)

    def lose(self) -> None:
        """Note that the replies will not come."""
        if self._outcomes is None:
            lost = BufferUnavailable(f"The replies of Redis (cache {self._client.alias!r}) are lost.")
            self._outcomes = [lost] * len(self.calls)
            late_failures.extend(self._on_failure)

    # ----------------------------------------------------------------------- reading
    def _receive(self) -> list[Any]:
        if not self._connections:
            raise BufferUnavailable(f"Nobody waited for the replies of Redis (cache {self._client.alias!r}).")
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
            return answers + [lost] * (len(self.calls) - len(answers))
        except BaseException:
            self.close()
            raise
        return answers

    def _tell(self, answers: Sequence[Any]) -> None:
        """Send ``redis_called`` for each call."""
        for call, answer in zip(self.calls, answers, strict=True):
            self._client.tell(call.name, self._started, answer if isinstance(answer, Exception) else None)


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except errors.ResponseError as error:
        return error


class PacketReply:
    """The reply to one call of a packet."""

    __slots__ = ("_packet", "_place")

    def __init__(self, packet: Packet, place: int):
        self._packet, self._place = packet, place

    def read(self) -> Any:
        """Return what Redis answered. BufferUnavailable if it did not answer, or refused."""
        outcome = self._packet.outcomes()[self._place]
        if isinstance(outcome, errors.NoScriptError):  # nothing was run, so this is not a second time
            return self._packet.run(self._place)
        if isinstance(outcome, BufferUnavailable):
            raise outcome
        return outcome

    def leave(self, on_failure: Callable[[], bool]) -> bool:
        """Don't wait for the reply: see ``Packet.leave``."""
        return self._packet.leave(on_failure)

    def close(self) -> None:
        """Drop all replies of the packet that have not been read."""
        self._packet.close()
