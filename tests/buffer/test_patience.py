"""A Redis that answers late: the site does not wait for it, and the flusher does."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from django.db import transaction

from notifications_counter.buffer.client import Client
from notifications_counter.buffer.patience import Patience, current, limit
from notifications_counter.counters import unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import Notification, RecountRequest
from servers.relay import NEVER, Relay
from tests.support import (
    assert_heals,
    assert_reads,
    begin_now,
    buffer,
    entries,
    notify,
    rows,
    sent,
    wait_until,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def relay(server) -> Iterator[Relay]:
    relay = Relay(server)
    yield relay
    relay.socket.close()


@pytest.fixture
def use(use, relay) -> Callable[..., Client]:
    """A function that puts the cache behind the relay. No timeout of the cache is shorter than the test."""
    return partial(use, relay.url, SOCKET_TIMEOUT=NEVER, SOCKET_CONNECT_TIMEOUT=NEVER)


POOLS = {
    "own connections": {},
    "a limited pool": {"CONNECTION_POOL_KWARGS": {"max_connections": 4}},
    "a pool that blocks": {
        "CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool",
        "CONNECTION_POOL_KWARGS": {"max_connections": 4},
    },
}


@pytest.mark.parametrize("options", POOLS.values(), ids=POOLS)
@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "to be connected"])
def test_the_site_does_not_wait(use, relay, options, is_connected, alice, bob):
    """Each process waits once for a reply, which is what the test takes; it would hang otherwise."""
    client = use(**options)
    unread.heal()
    notify(alice)
    assert_reads(alice, bob)
    if not is_connected:
        client._connections.disconnect()
    with entries(READ_TIMEOUT=0.2, WRITE_TIMEOUT=0.3), relay.slow():
        assert unread.count(alice) == 3
        assert unread.counts([alice, bob]) == {alice.pk: 3, bob.pk: 0}
        for _ in range(2):
            client.breaker.retry_at = 0.0  # as if the time had passed
            Notification.objects.create(user=alice, title="x")
        with transaction.atomic():
            Notification.objects.create(user=bob, title="x")
        assert_reads(alice, bob)
        assert client.breaker.down_since is not None
    assert (rows(alice), rows(bob), RecountRequest.objects.count()) == (5, 1, 3)
    client.breaker.retry_at = 0.0
    assert_heals(alice, bob)


def test_a_write_that_redis_does_not_hear_of_is_executed_once(use, relay, alice, bob):
    """Its announcement may arrive later; nobody confirms it."""
    client = use()
    unread.heal()
    notify(alice)
    with entries(READ_TIMEOUT=60, WRITE_TIMEOUT=0.3), relay.slow(1):
        Notification.objects.create(user=alice, title="x")
        assert isinstance(client.breaker.down_since, float)
        Notification.objects.bulk_create(Notification(user=user, title="y") for user in (alice, bob))
    assert (rows(alice), rows(bob), RecountRequest.objects.count()) == (5, 1, 3)
    assert_reads(alice, bob)
    client.breaker.retry_at = 0.0
    assert_heals(alice, bob)


def test_a_confirmation_has_a_limit_too(use, relay, alice):
    """Who reads next has no patience with it. The rows are committed, so a request takes its place."""
    client = use()
    unread.heal()
    notify(alice)
    with entries(READ_TIMEOUT=0.3), ExitStack() as slow:
        with transaction.atomic():
            Notification.objects.create(user=alice, title="x")
            begin_now()
            slow.enter_context(relay.slow())
        assert not RecountRequest.objects.exists()
        assert_reads(alice)
        assert (rows(alice), RecountRequest.objects.count()) == (4, 1)
    client.breaker.retry_at = 0.0
    assert_heals(alice)


def test_less_than_the_limit_is_no_outage_and_the_flusher_has_none(use, relay, alice, bob):
    client = use()
    unread.heal()
    with relay.slow(0.05):
        with entries(READ_TIMEOUT=60, WRITE_TIMEOUT=60):
            notify(alice)
            assert_reads(alice, bob)
            with sent() as commands:
                assert unread.count(alice) == 3
            assert commands == ["MGET"]
        with entries(READ_TIMEOUT=0.001, WRITE_TIMEOUT=0.001):
            unread.heal()
            unread.flush()
            unread.recount([alice])
    assert client.breaker.down_since is None
    assert RecountRequest.objects.count() == 0
    assert_heals(alice)


@pytest.mark.parametrize("options", POOLS.values(), ids=POOLS)
def test_the_cache_gets_connections_back_with_its_own_timeouts(use, options, alice):
    client = use(**options)
    unread.heal()
    notify(alice)
    with entries(READ_TIMEOUT=7, WRITE_TIMEOUT=7):
        client._connections.disconnect()  # the site sets the next one up
        assert_reads(alice)
        notify(alice)
    connection = client.redis.connection_pool.get_connection()
    connection.connect()
    assert connection._sock.gettimeout() == NEVER
    client.redis.connection_pool.release(connection)


def test_quick_replies_are_free_and_slow_ones_add_up():
    patience = Patience(1)
    for _ in range(1000):
        patience.spend(0.09)
    assert patience.left == 1
    for _ in range(3):
        patience.spend(0.5)
    assert patience.left < 0


def test_patience_that_is_used_up_is_no_outage(use, alice):
    client = use()
    unread.heal()
    notify(alice)
    with Patience(60):
        current.get()().spend(1000)
        with pytest.raises(BufferUnavailable, match="too long"):
            buffer().status()
        assert client.breaker.down_since is None
        assert_reads(alice)  # each read has patience of its own
    assert buffer().status().ready


def test_the_shorter_of_two_limits_counts():
    with Patience(1):
        with Patience(2):
            assert limit() == 1
        with Patience(0.5):
            assert limit() == 0.5
        assert limit() == 1
    assert limit() is None
    without_end = Patience(1)
    without_end.__enter__()  # as if an exception struck before the end
    assert limit() == 1
    del without_end
    assert limit() is None


def test_the_log_says_that_redis_is_slow(use, relay, alice, caplog):
    client = use()
    unread.heal()
    notify(alice)
    with entries(READ_TIMEOUT=0.2, RETRY_AFTER=0):
        with relay.slow():
            assert_reads(alice)
        wait_until(lambda: unread.count(alice) == 3 and client.breaker.down_since is None)
    found = [(record.event, record.levelno) for record in caplog.records if record.name == "notifications_counter"]
    assert found[:2] == [("redis_slow", logging.WARNING), ("redis_found", logging.WARNING)]


def test_so_it_does_if_redis_does_not_take_what_is_sent(use, relay, caplog):
    client = use()
    client.call("k", "GET", "k")
    process = relay.server.process
    process.send_signal(signal.SIGSTOP)
    try:
        with Patience(0.2), pytest.raises(BufferUnavailable, match="does not answer in time"):
            client.call("k", "SET", "k", b"x" * 10**8)
    finally:
        process.send_signal(signal.SIGCONT)
    assert [record.event for record in caplog.records if record.name == "notifications_counter"] == ["redis_slow"]
