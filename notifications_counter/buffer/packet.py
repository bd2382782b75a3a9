"""Several script calls in one packet, so that a write waits once, however many counters it changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.exceptions import NoScriptError, ResponseError

from ..exceptions import BufferUnavailable
from ..internals import send_packed
from .client import Argument, Client, Exchange, Reply, TypedKeys, pack_command
from .connections import FAILURES
from .scripts import Script


class Call(NamedTuple):
    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]

    @property
    def typed_keys(self) -> TypedKeys:
        return list(zip(self.keys, self.script.types, strict=True))

    def pack(self, command: str, script: str | bytes) -> bytes:
        return pack_command((command, script, len(self.keys), *self.keys, *self.args))


def send_together(client: Client, calls: Sequence[Call], urgent: bool = False) -> list[Reply | PacketReply]:
    """Send script calls without waiting for the replies; on a cluster, in one packet for each node.

    Reading a reply raises BufferUnavailable if the call was not sent, or Redis did not answer or refused.
    """
    if len(calls) == 1:
        return [client.start(*calls[0], urgent)]
    packets: dict[tuple[Client, str], Packet] = {}
    replies: list[Reply | PacketReply] = []
    for call in calls:
        node = client.node_of(key := call.keys[0])
        packet = packets.setdefault((node, "" if node.knows_server else key), Packet(node))
        replies.append(PacketReply(packet, len(packet.calls)))
        packet.calls.append(call)
    try:
        for packet in packets.values():
            packet.send(urgent)
    except BaseException:
        for packet in packets.values():
            packet.close()
        raise
    return replies


class Packet(Exchange):
    """Calls to one server. Their replies are read together, and each has an outcome of its own."""

    def __init__(self, client: Client):
        super().__init__(client)
        self.calls: list[Call] = []
        self._outcomes: list[Any] | None = None

    def send(self, urgent: bool) -> None:
        """Send the calls. If that fails, their outcomes are the exception to raise."""
        client, key = self._client, self.calls[0].keys[0]
        packed = b"".join(call.pack("EVALSHA", call.script.sha) for call in self.calls)
        try:
            if client.breaker.down_since is None or urgent:
                self._send(client.pool(key), packed)
            else:
                with client.trial():
                    client.check(key)
                    self._send(client.pool(key), packed)
        except BufferUnavailable as error:
            self._outcomes = [error] * len(self.calls)
        except FAILURES as error:
            self.close()
            self._outcomes = [client.lost(error)] * len(self.calls)
            self._announce([error] * len(self.calls))

    def outcomes(self) -> list[Any]:
        """Return what Redis answered to each call, or the BufferUnavailable to raise."""
        if self._outcomes is None:
            client, answers = self._client, self._receive()
            self._announce(answers)
            self._outcomes = [
                client.refused(answer, call.script, call.script.name, call.typed_keys)
                if isinstance(answer, ResponseError)
                else answer
                for call, answer in zip(self.calls, answers, strict=True)
            ]
            if not any(isinstance(outcome, BufferUnavailable) for outcome in self._outcomes):
                for call in self.calls:
                    client.answered(call.script.name)
        return self._outcomes

    def _receive(self) -> list[Any]:
        if not self._connections:
            raise BufferUnavailable(f"Nobody waited for the replies of Redis (cache {self._client.alias!r}).")
        connection, answers, started = self._connections[0], [], time.monotonic()
        try:
            for _ in self.calls:
                answers.append(_read(connection))
            for i, call in enumerate(self.calls):
                if isinstance(answers[i], NoScriptError):  # nothing was run, so this is not a second time
                    send_packed(connection, call.pack("EVAL", call.script.source))
                    answers[i] = _read(connection)
        except FAILURES as error:
            self.close()
            lost = self._client.lost(error)
            answers += [lost] * (len(self.calls) - len(answers))
            return [lost if isinstance(answer, NoScriptError) else answer for answer in answers]
        except BaseException:
            self.close()
            raise
        self._spend(started)
        self._return()
        return answers

    def _announce(self, answers: Sequence[Any]) -> None:
        """Send ``redis_called`` for each call."""
        if self._started:
            for call, answer in zip(self.calls, answers, strict=True):
                error = answer if isinstance(answer, Exception) else None
                self._client.announce(call.script.name, self._started, error)


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


class PacketReply:
    """The reply to one call of a packet."""

    __slots__ = ("_packet", "_place")

    def __init__(self, packet: Packet, place: int):
        self._packet, self._place = packet, place

    def read(self) -> Any:
        """Return what Redis answered. BufferUnavailable if it did not answer, or refused."""
        outcome = self._packet.outcomes()[self._place]
        if isinstance(outcome, BufferUnavailable):
            raise outcome
        return outcome

    def close(self) -> None:
        """Drop all replies of the packet that have not been read."""
        self._packet.close()
