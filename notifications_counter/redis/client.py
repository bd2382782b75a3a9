"""Sends calls to the Redis behind a cache of django-redis."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any
from weakref import WeakSet

import redis
from django.core.signals import setting_changed
from django.dispatch import receiver
from django_redis import get_redis_connection
from redis.exceptions import NoScriptError, ResponseError

from ..caches import SiteCache
from ..conf import options, shown
from ..exceptions import BufferUnavailable
from .breaker import Breaker
from .calls import MAX_REASON_LENGTH, Answer, Argument, Call, Scripts, command
from .connection import FAILURES, Connection, release_abandoned
from .replies import as_text

SCRIPTS = Scripts(__package__)

EXHAUSTED: Any = getattr(redis.exceptions, "MaxConnectionsError", ())
"""What a pool raises if all its connections are in use, since redis-py 6."""

FRESH_SECONDS = 0.1
"""Seconds for which a connection is used again without a test whether it is still alive. The test is a system call."""

OLD_SECONDS = 60
"""The age at which a connection is closed. If the address leads to a new master while the old one lives on, that one
would go on answering, and what it is told is lost."""

NOTE_SECONDS = 10
"""Seconds between two notes of a process about trouble."""

RECENT_SECONDS = 60
"""Seconds after which trouble that no process has noted again is over."""

_clients: dict[str, Client] = {}


class _Thread(threading.local):
    """What a thread holds: one connection, or none."""

    def __init__(self) -> None:
        self.held: list[Connection] = []

    def take(self) -> Connection | None:
        """Take the connection. What interrupts the thread meanwhile, such as a handler of a signal, gets another."""
        try:
            return self.held.pop()
        except IndexError:
            return None


@receiver(setting_changed)
def _drop_clients(*, setting: str, **_: object) -> None:
    if setting == "CACHES":
        _clients.clear()


def client_of(alias: str) -> Client:
    """Return the client of a cache alias."""
    client = _clients.get(alias)
    if client is None:
        client = _clients[alias] = Client(alias)
    return client


def used_clients() -> list[Client]:
    """Return the client of each cache that this process has used."""
    return list(_clients.values())


@atexit.register
def read_all_owed() -> None:
    """Read the replies that this thread is owed, before the process ends."""
    for client in used_clients():
        client.let_go()


class Client:
    """The client of the Redis behind a cache. It never retries by itself, because that could count twice.

    A thread holds one connection of the site's pool, as it holds a connection to the database. So a call costs less
    than one of redis-py, nobody has to wait for the reply to a confirmation, and a read that follows is behind it. At
    most half of the pool is held. The others, and those of Sentinel and clusters, go back to it after each call.
    """

    def __init__(self, alias: str):
        self.alias = alias
        self.breaker = Breaker(alias if shown(alias) == repr(alias) else "***")
        self._thread = _Thread()
        self._held: WeakSet[Connection] = WeakSet()  # of all threads
        self._noted_at = -math.inf

    # ---------------------------------------------------------------- calls
    def ask(self, *calls: Call) -> list[Any]:
        """Send calls in one go, and return their replies. BufferUnavailable if Redis did not answer, or refused one."""
        outcomes = self.send(calls)
        for outcome in outcomes:
            if isinstance(outcome, BufferUnavailable):
                raise outcome
        return outcomes

    def send(self, calls: Sequence[Call], urgent: bool = False, wait: bool = True) -> list[Any]:
        """Send calls in one go, and return the outcome of each: the reply, or the BufferUnavailable to raise. For
        RETRY_AFTER seconds after a failure, only ``urgent`` calls are sent. Without ``wait``, the result may be empty:
        whoever uses the connection next reads the replies."""
        try:
            if self.breaker.down_since is not None and not urgent:
                self._try_again(calls[0])
            answers = self._exchange(calls, wait)
        except BufferUnavailable as error:
            return [error] * len(calls)
        except EXHAUSTED as error:
            return [self._note_refusal(call, error) for call in calls]
        except FAILURES as error:
            return [self.breaker.trip(error)] * len(calls)
        outcomes = []
        for call, reply in answers:
            outcomes.append(self._note_refusal(call, reply) if isinstance(reply, ResponseError) else reply)
        return outcomes

    def infos(self, key: str = "") -> list[dict[str, Any]]:
        """Return INFO of each server, or of the one that holds ``key``; empty if it is refused. Managed servers allow
        it, unlike CONFIG GET."""
        try:
            with self._closed_if_interrupted():
                if self._pool is not None:  # the server of the scripts, which another connection may not lead to
                    [(_, reply)] = self._exchange([Call("INFO", "", ("INFO",))])
                    lines = [] if isinstance(reply, ResponseError) else as_text(reply).splitlines()
                    return [dict(line.split(":", 1) for line in lines if ":" in line)]
                nodes = [self.redis.get_node_from_key(key)] if key else self.redis.get_primaries()
                return [self.redis.info(target_nodes=node) for node in nodes]
        except ResponseError:
            return [{}]
        except FAILURES as error:
            raise self.breaker.trip(error) from None

    # ------------------------------------------------------------- failures
    def _note_refusal(self, call: Call, error: Exception) -> BufferUnavailable:
        """Note that Redis, or the pool, has refused a call, and return the exception to raise."""
        unavailable = self.breaker.refused(call.name, error)
        self.note_trouble(str(unavailable))
        return self.breaker.trip(error) if call.must_arrive else unavailable

    def _note_late(self, refusals: Sequence[Answer]) -> None:
        """Note that Redis has refused earlier calls, for whose replies nobody has waited."""
        for call, error in refusals:
            self._note_refusal(call, error)

    def _try_again(self, call: Call) -> None:
        """Raise BufferUnavailable while Redis is down. It is up if it accepts a write: a server that refuses writes,
        such as a replica, still answers readers, with old data."""
        self.breaker.check()
        [(_, reply)] = self._exchange([command("DEL", call.absent)])
        if isinstance(reply, ResponseError):
            raise self.breaker.trip(reply)
        self.breaker.reset()
        self.note_trouble(self.breaker.reason)

    # -------------------------------------------------------------- trouble
    def note_trouble(self, reason: str) -> None:
        """Note trouble for monitoring, once in a while, at its end if it is an outage."""
        if time.monotonic() - self._noted_at >= NOTE_SECONDS:
            self._noted_at = time.monotonic()  # only faster
            with suppress(*FAILURES):
                self._exchange([trouble_call(reason[:MAX_REASON_LENGTH])])

    # ---------------------------------------------------------- connections
    @cached_property
    def redis(self) -> Any:
        """The client of redis-py. That of a cluster asks it for its nodes. Raises one of FAILURES if the counters can't
        use the cache, as in tests that replace CACHES."""
        if problem := SiteCache(self.alias).problem:
            raise redis.ConnectionError(" ".join(problem))
        return get_redis_connection(self.alias)

    @cached_property
    def _pool(self) -> Any:
        """The site's pool; None for a cluster, which has one for each node."""
        return None if isinstance(self.redis, redis.RedisCluster) else self.redis.connection_pool

    @contextmanager
    def _closed_if_interrupted(self) -> Iterator[None]:
        """Close the pool's connections if anything but an error of redis-py ends a call, such as a time limit: redis-py
        may have put one back on which a reply is still to come, and would give that to the next command."""
        try:
            yield
        except FAILURES:
            raise
        except BaseException:
            if self._pool is None:
                self.redis.disconnect_connection_pools()
            else:
                self._pool.disconnect()
            raise

    def _exchange(self, calls: Sequence[Call], wait: bool = True) -> list[Answer]:
        """Send calls over this thread's connection, and return their answers; see ``Connection``."""
        if self._pool is None:
            with self._closed_if_interrupted():
                return self._exchange_with_nodes(calls)
        connection = self._take()
        try:
            refusals, answers = connection.exchange(calls, wait or not connection.is_held)
        except BaseException:
            connection.release(close=True)
            raise
        if connection.is_held and not self._thread.held:
            self._thread.held.append(connection)
        else:
            connection.release()
        if refusals:
            self._note_late(refusals)
        return answers

    def _take(self) -> Connection:
        """Return the connection that this thread holds, or one of the pool."""
        release_abandoned()
        held = self._thread.take()
        oldest = max(self.breaker.oldest, time.monotonic() - OLD_SECONDS)
        if held is not None:
            if held.opened >= oldest and held.is_usable(FRESH_SECONDS):
                return held
            held.release(close=True)  # only faster: when it is collected, it goes back, too
        with self._closed_if_interrupted():
            connection = Connection(self._pool, oldest)
        is_up = self.breaker.down_since is None  # otherwise it may lead to a server that is replaced meanwhile
        is_plain = type(self._pool) is redis.ConnectionPool
        if is_up and is_plain and len(self._held) < self._pool.max_connections // 2:
            self._held.add(connection)
            connection.is_held = True
        return connection

    def let_go(self) -> None:
        """Read what this thread is owed, and give its connection back."""
        held = self._thread.take()
        if held is not None:
            held.release(close=not held.is_usable())

    def _exchange_with_nodes(self, calls: Sequence[Call]) -> list[Answer]:
        """Send calls to the nodes of a cluster, and wait for the replies. Redis-py follows keys that move."""
        calls = [call.guarded for call in calls]
        replies = self._send_to_nodes([call.arguments for call in calls])
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        again = self._send_to_nodes([calls[i].by_source for i in unknown])
        for i, reply in zip(unknown, again, strict=True):
            replies[i] = reply
        for reply in replies:
            if isinstance(reply, FAILURES) and not isinstance(reply, ResponseError):
                raise reply
        return list(zip(calls, replies, strict=True))

    def _send_to_nodes(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        pipeline = self.redis.pipeline()
        for arguments in commands:
            pipeline.execute_command(*arguments)
        return pipeline.execute(raise_on_error=False)


class Refusing(Client):
    """Stands for the client where a database has no id, to which keys could belong. Each call is refused."""

    def __init__(self, reason: str):
        self.reason = reason

    def send(self, calls: Sequence[Call], urgent: bool = False, wait: bool = True) -> list[Any]:
        return [BufferUnavailable(self.reason)] * len(calls)

    def infos(self, key: str = "") -> list[dict[str, Any]]:
        raise BufferUnavailable(self.reason)


def trouble_call(reason: str = "") -> Call:
    """Return the call that notes trouble, if there is a ``reason``, and replies with the last one of all processes."""
    return SCRIPTS.call("trouble", [f"{{{options.KEY_PREFIX}:trouble}}"], reason, str(RECENT_SECONDS))
