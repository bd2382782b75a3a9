"""A Redis that answers late: a call waits for the timeouts of the cache, and then Redis is down for a while."""

import gc
import signal
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread, Timer

import pytest
import redis
from django.db import transaction

from notifications_counter.buffer.client import Client, read_all_owed
from notifications_counter.counters import unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import Notification, RecountRequest
from servers.relay import Relay
from tests.support import assert_heals, assert_reads, begin_now, entries, notify, rows, sent, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

TIMEOUT = 0.5
"""Seconds."""


@pytest.fixture
def relay(server) -> Iterator[Relay]:
    relay = Relay(server)
    yield relay
    relay.delay = 0.0
    relay.socket.close()


@pytest.fixture
def use(use, relay) -> Iterator[Callable[..., Client]]:
    """A function that puts the cache behind the relay. Only the test says when Redis is tried again."""
    with entries(RETRY_AFTER=600):
        yield partial(use, relay.url, SOCKET_TIMEOUT=TIMEOUT, SOCKET_CONNECT_TIMEOUT=TIMEOUT)


def work(client: Client) -> None:
    """Do what a flusher does, as often as it takes: on a busy machine, a reply may be late."""

    def works() -> bool:
        client.breaker.retry_at = 0.0
        try:
            unread.heal()
            unread.flush()
        except BufferUnavailable:
            return False
        return True

    wait_until(works)


BLOCKING = {"CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool", "CONNECTION_POOL_KWARGS": {"max_connections": 4}}


@pytest.mark.parametrize(
    ("options", "is_connected"),
    [({}, True), ({}, False), ({"CONNECTION_POOL_KWARGS": {"max_connections": 1}}, True), (BLOCKING, False)],
    ids=["held", "to be connected", "a limited pool", "a pool that blocks"],
)
def test_the_site_waits_once(use, relay, options, is_connected, alice, bob):
    client = use(**options)
    work(client)
    notify(alice)
    if not is_connected:
        read_all_owed()
        client.redis.connection_pool.disconnect()
    with relay.slow():
        assert unread.count(alice) == 3
        assert unread.counts([alice, bob]) == {alice.pk: 3, bob.pk: 0}
        assert client.breaker.outages >= 1
        for _ in range(2):
            client.breaker.retry_at = 0.0  # as if the time had passed
            Notification.objects.create(user=alice, title="x")
        with transaction.atomic():
            Notification.objects.create(user=bob, title="x")
        assert_reads(alice, bob)
    assert (rows(alice), rows(bob), RecountRequest.objects.count()) == (5, 1, 3)
    work(client)
    assert_heals(alice, bob)


def test_a_confirmation_that_is_late(use, relay, alice):
    """Nobody waits for the reply. Who reads next waits, counts rows, and takes no reply for that of another command."""
    client = use()
    work(client)
    notify(alice)
    with transaction.atomic():
        Notification.objects.create(user=alice, title="x")
        begin_now()
        relay.delay = 600.0
    assert_reads(alice)
    relay.delay = 0.0
    client.breaker.retry_at = 0.0
    assert_reads(alice)
    work(client)
    assert_heals(alice)


def test_a_thread_that_ends_before_the_reply(use, relay, alice):
    """Its connection is not used again, so that nobody takes the reply for that of another command."""
    use(SOCKET_TIMEOUT=60)
    unread.heal()
    notify(alice)
    assert_reads(alice)
    read_all_owed()
    with relay.slow(TIMEOUT):
        thread = Thread(target=partial(Notification.objects.create, user=alice, title="x"))
        thread.start()
        thread.join()
        gc.collect()
        assert unread.count(alice) == 4


def test_a_doubt_while_another_thread_tries_again(use, relay, alice, bob):
    """Redis is told of it as well, before it is read."""
    client = use(SOCKET_TIMEOUT=60)
    unread.heal()
    notify(alice)
    notify(bob)
    assert_reads(alice, bob)
    client.breaker.trip(redis.ConnectionError("a moment of weakness"))
    client.breaker.retry_at = 0.0  # as if the time had passed
    with relay.slow(4 * TIMEOUT):
        thread = Thread(target=unread.count, args=[bob])
        thread.start()
        wait_until(lambda: client.breaker.retry_at > 0)
        Notification.objects.create(user=alice, title="x")
        thread.join()
    for _ in range(2):
        client.breaker.retry_at = 0.0
        assert_reads(alice, bob)
    assert client.breaker.down_since is None


def test_less_than_the_timeout_is_no_outage(use, relay, alice, bob):
    client = use(SOCKET_TIMEOUT=60)
    unread.heal()
    with relay.slow(0.05):
        notify(alice)
        assert_reads(alice, bob)
        with sent() as commands:
            assert unread.count(alice) == 3
        assert commands == ["MGET"]
        unread.heal()
        unread.flush()
    assert client.breaker.outages == 0
    assert_heals(alice)


def test_redis_does_not_take_what_is_sent(use, relay, caplog):
    client = use()
    client.call("GET", "k")
    process = relay.server.process
    process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(BufferUnavailable, match="Timeout"):
            client.call("SET", "k", b"x" * 10**8)
    finally:
        process.send_signal(signal.SIGCONT)
    assert [record.event for record in caplog.records if record.name == "notifications_counter"] == ["redis_lost"]


def test_others_close_the_pool_meanwhile(use, relay, alice):
    """As a cache does that closes its pool after the request of another thread. Redis-py then raises anything."""
    client = use()
    unread.heal()
    notify(alice)
    assert_reads(alice)
    with relay.slow(TIMEOUT / 2):
        closer = Timer(TIMEOUT / 5, client.redis.connection_pool.disconnect)
        closer.start()
        assert unread.count(alice) == 3
        closer.join()
    assert client.breaker.down_since is not None
    work(client)
    assert_heals(alice)
