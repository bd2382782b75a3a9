"""Sends calls to the Redis behind a cache of django-redis."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any
from weakref import WeakSet

import redis
from django.conf import settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django_redis import get_redis_connection
from redis.exceptions import NoScriptError, ResponseError

from ..conf import shown
from ..exceptions import BufferUnavailable, ConfigurationError
from .breaker import Breaker
from .calls import OWNERS_PER_CALL, Argument, Call, Script
from .connection import FAILURES, Connection
from .keys import is_of_shard
from .location import HOW_TO_WRITE, parse, urls_of
from .troubles import TroubleLog
from .types import decode

EXHAUSTED: Any = getattr(redis.exceptions, "MaxConnectionsError", ())
"""What a pool raises if all its connections are in use, since redis-py 6."""

_clients: dict[str, Client] = {}


@receiver(setting_changed)
def _forget_clients(*, setting: str, **_: Any) -> None:
    if setting == "CACHES":
        _clients.clear()


def client_of(alias: str) -> Client:
    """Return the client of a cache alias. ConfigurationError if it is not a django-redis cache."""
    client = _clients.get(alias)
    if client is None:
        _check(alias)
        client = _clients[alias] = Client(alias)
    return client


def _check(alias: str) -> None:
    """Raise ConfigurationError if the counters cannot use a cache. Errors of redis-py would show a part of its URL."""
    if alias not in settings.CACHES:
        raise ConfigurationError(
            f"NOTIFICATIONS_COUNTER['CACHE_ALIAS'] is {shown(alias)}, which is not defined in CACHES."
        )
    try:
        is_django_redis = hasattr(caches[alias], "client")
    except ImproperlyConfigured as error:
        raise ConfigurationError(f"The cache {alias!r} cannot be used: {error}") from None
    if not is_django_redis:
        raise ConfigurationError(
            f"CACHE_ALIAS {alias!r} is not a django-redis cache; set NOTIFICATIONS_COUNTER['CACHE_ALIAS'] to an entry "
            "of CACHES whose BACKEND is django_redis.cache.RedisCache."
        )
    if None in map(parse, urls_of(alias)):
        raise ConfigurationError(f"The LOCATION of the cache {alias!r} is not a URL of Redis. {HOW_TO_WRITE}")


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
        self.breaker = Breaker(alias)
        self.troubles = TroubleLog(self)
        self._missed: dict[tuple[str, ...], Call] = {}  # doubts that Redis has not taken, by the keys of their shard
        self._ran: set[Script | None] = set()  # scripts that the server knows, unless it has forgotten them since
        self._thread = threading.local()
        self._held: WeakSet[Connection] = WeakSet()  # of all threads

    # ---------------------------------------------------------------- calls
    def ask(self, call: Call, urgent: bool = False) -> Any:
        """Send a call and return its reply. BufferUnavailable if Redis did not answer or refused."""
        (outcome,) = self.ask_all([call], urgent)
        if isinstance(outcome, BufferUnavailable):
            raise outcome
        return outcome

    def ask_all(self, calls: Sequence[Call], urgent: bool = False, wait: bool = True) -> list[Any]:
        """Send calls in one go, and return the outcome of each: the reply, or the BufferUnavailable to raise. For
        RETRY_AFTER seconds after a failure, only ``urgent`` calls are sent. Without ``wait``, where the thread holds a
        connection, whoever uses it next reads the replies, and the outcomes are None."""
        try:
            if self.breaker.down_since is not None and not urgent:
                self._try_again(calls[0])
            return self._send(calls, wait)
        except BufferUnavailable as error:
            unavailable = error
        except EXHAUSTED as error:
            unavailable = self.breaker.refuse("a connection", error)
            if any(call.name == "doubt" for call in calls):
                self.breaker.trip(error)
        except FAILURES as error:
            unavailable = self.breaker.trip(error)
        for call in calls:
            self._note_missed(call)
        return [unavailable] * len(calls)

    def ask_each(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls in one go, and return their replies. BufferUnavailable if any of them failed."""
        outcomes = self.ask_all(calls)
        for outcome in outcomes:
            if isinstance(outcome, BufferUnavailable):
                raise outcome
        return outcomes

    def call(self, name: str, *arguments: Argument) -> Any:
        """Send a command and return its reply."""
        return self.ask(Call((name, *arguments)))

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument] = ()) -> Any:
        """Call a script and return its reply."""
        return self.ask(Call.of(script, keys, args))

    def attempt(self, *calls: Call) -> list[Any]:
        """Send calls on which no count depends: a failure is no outage. Returns the replies, None if there are none."""
        with suppress(*FAILURES):
            return [None if isinstance(reply, ResponseError) else reply for _, reply in self._exchange(calls)]
        return [None] * len(calls)

    def info(self, key: str) -> dict[str, Any]:
        """Return INFO of the server that holds ``key``; empty if the server refuses it. Managed servers allow it,
        unlike CONFIG GET."""
        try:
            node = {"target_nodes": self.redis.get_node_from_key(key)} if self._pool is None else {}
            return self.redis.info(**node)
        except ResponseError:
            return {}
        except FAILURES as error:
            raise self.breaker.trip(error) from None

    def _send(self, calls: Sequence[Call], wait: bool) -> list[Any]:
        answers = self._exchange(calls, wait)
        outcomes = [
            self._refused(call, reply) if isinstance(reply, ResponseError) else reply for call, reply in answers
        ]
        return outcomes[-len(calls) :] or [None] * len(calls)  # before them, those of calls that were owed a reply

    def _try_again(self, call: Call) -> None:
        """Raise BufferUnavailable while Redis is down.

        A server that refuses writes, such as a replica, still answers readers, with old data. So before it is used
        again, it must accept a write, and all doubts that it has missed.
        """
        self.breaker.check()
        if self._can_hold:  # the address may lead to another server now, but only for new connections
            self._pool.disconnect(inuse_connections=False)
        probes = [Call(("DEL", f"{call.keys[0]}:probe")), *self._missed.values()]
        for probe, reply in self._exchange(probes)[-len(probes) :]:
            if isinstance(reply, ResponseError):
                raise self.breaker.trip(reply)
            if self._missed.get(probe.keys) is probe:  # otherwise, another thread has added to it
                del self._missed[probe.keys]
        if self._missed:
            raise BufferUnavailable(f"Redis (cache {self.alias!r}) has to be told more before it is asked.")
        self.breaker.reset()
        self.troubles.note(self.breaker.reason)

    def _note_missed(self, call: Call) -> None:
        """Remember a doubt that Redis has not taken: until then, what it has cached may be too old. So many owners that
        one call cannot name them are everyone."""
        if call.name == "doubt":
            before = self._missed.get(call.keys, call)
            owners = {*before.args, *call.args} if before.args and call.args else set()
            args = tuple(owners) if len(owners) <= OWNERS_PER_CALL else ()
            self._missed[call.keys] = Call((*call.command[: 3 + len(call.keys)], *args), call.script)

    def _refused(self, call: Call, error: ResponseError) -> BufferUnavailable:
        """Note that Redis has refused a call, and return the exception to raise."""
        unavailable = self.breaker.refuse(call.name, error)
        self.troubles.note(str(unavailable))
        is_trusted = self._delete_foreign(call)
        if call.name == "doubt" and is_trusted:
            self._note_missed(call)
            return self.breaker.trip(error)
        return unavailable

    def _delete_foreign(self, call: Call) -> bool:
        """Delete what other programs have written to the keys of a script, and have readers count rows until a
        generation begins: the script may have done half of its work. Returns whether what is cached is still read."""
        if call.script is None or call.name != "doubt" and not self.troubles.is_due(call.keys[0]):
            return True
        kinds = self.attempt(*(Call(("TYPE", key)) for key in call.keys))
        foreign = [
            key
            for key, kind, right in zip(call.keys, kinds, call.script.types, strict=False)
            if kind is not None and decode(kind) not in ("none", right)
        ]
        ready = call.keys[0].rpartition(":")[0] + ":ready"
        if foreign and is_of_shard(call.script.keys) and decode(*self.attempt(Call(("GET", ready)))) != "retired":
            foreign.insert(0, ready)
        if foreign:
            self.attempt(Call(("UNLINK", *foreign)))
        return ready not in foreign

    # ---------------------------------------------------------- connections
    @cached_property
    def redis(self) -> Any:
        """The client of redis-py. That of a cluster asks it for its nodes."""
        return get_redis_connection(self.alias)

    @cached_property
    def _pool(self) -> Any:
        """The site's pool; None for a cluster, which has one for each node."""
        return None if isinstance(self.redis, redis.RedisCluster) else self.redis.connection_pool

    @cached_property
    def _can_hold(self) -> bool:
        return type(self._pool) is redis.ConnectionPool

    def _exchange(self, calls: Sequence[Call], wait: bool = True) -> list[tuple[Call, Any]]:
        """Send calls over this thread's connection, and return calls with their replies; see ``Connection``."""
        if self._pool is None:
            return self._exchange_with_nodes(calls)
        connection = self._take()
        wait = wait or not connection.is_held or not self._ran.issuperset([call.script for call in calls])
        try:
            answers = connection.exchange(calls, wait)
        except BaseException:
            connection.drop()
            raise
        self._give_back(connection)
        self._ran.update([call.script for call, _ in answers])
        return answers

    def _take(self) -> Connection:
        """Return the connection that this thread holds, or one of the pool. What interrupts the thread meanwhile, such
        as a handler of a signal, gets another one."""
        held: Connection | None = vars(self._thread).pop("held", None)
        if held is not None:
            if held.outages == self.breaker.outages and held.is_usable():
                return held
            held.drop()
        connection = Connection(self._pool, self.breaker.outages)
        if self._can_hold and len(self._held) < self._pool.max_connections // 2:
            self._held.add(connection)
            connection.is_held = True
        return connection

    def _give_back(self, connection: Connection) -> None:
        if connection.is_held and "held" not in vars(self._thread):
            self._thread.held = connection
        else:
            connection.release()

    def let_go(self) -> None:
        """Read what this thread is owed, and give its connection back."""
        held: Connection | None = vars(self._thread).pop("held", None)
        if held is not None:
            held.end()

    def _exchange_with_nodes(self, calls: Sequence[Call]) -> list[tuple[Call, Any]]:
        """Send calls to the nodes of a cluster, and wait for the replies. Redis-py follows keys that move."""
        pipeline = self.redis.pipeline()
        for call in calls:
            pipeline.execute_command(*call.command)
        answers = list(zip(calls, pipeline.execute(raise_on_error=False), strict=True))
        for i, (call, reply) in enumerate(answers):
            if isinstance(reply, NoScriptError):
                reply = self.redis.execute_command(*call.by_source.command)
                answers[i] = call, reply
            if isinstance(reply, FAILURES) and not isinstance(reply, ResponseError):
                raise reply
        return answers
