"""The one module that talks to Redis: stale connections, refusals, outages."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import redis
from django.db import IntegrityError, transaction

import servers
from notifications_counter.buffer import client as client_module
from notifications_counter.buffer import connection as connection_module
from notifications_counter.counters import unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import Notification, RecountRequest
from tests.support import (
    assert_exact,
    assert_heals,
    assert_reads,
    begin_now,
    entries,
    notify,
    stored,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

LOGGER = "notifications_counter"


@contextmanager
def another_client() -> Iterator[None]:
    """Inside, what another process would know of Redis: nothing."""
    mine = dict(client_module._clients)
    client_module._clients.clear()
    try:
        yield
    finally:
        client_module._clients.clear()
        client_module._clients.update(mine)


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(r.levelno, r.getMessage()) for r in caplog.records if "Redis (cache" in r.getMessage()]


# ------------------------------------------------------------------------ what servers do
@pytest.mark.parametrize(
    "options",
    [
        {"CONNECTION_POOL_KWARGS": {"protocol": 2}},
        {"CONNECTION_POOL_KWARGS": {"protocol": 3, "decode_responses": True}},
        {"CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool", "CONNECTION_POOL_KWARGS": {"max_connections": 2}},
    ],
    ids=str,
)
def test_options_of_connections(use, server, options, alice, bob):
    """Also where bytes are no text: these are foreign."""
    use(server.url, **options)
    unread.heal()
    notify(alice)
    notify(bob)
    with transaction.atomic():
        Notification.objects.create(user=alice, title="x")
        Notification.objects.create(user=bob, title="x")
    unread.recount()
    buffer = unread.buffers[0]
    buffer.client.call("SET", f"{buffer.trusted[1]}{alice.pk}", b"\xff")
    assert unread.count(alice) == 4
    assert buffer.client.breaker.down_since is None
    buffer.client.call("ZADD", buffer.keys.pending, 1, b"\xfe")
    assert unread.flush().aside == 1
    buffer.take_back()
    assert_heals(alice, bob)
    assert [shard.server != "nameless" for shard in unread.status()] == [True]


def test_a_server_that_was_restarted_between_two_calls(use, server, alice, caplog, monkeypatch):
    monkeypatch.setattr(connection_module, "FRESH_SECONDS", 0)
    use(server.url)
    unread.heal()
    notify(alice)
    assert_reads(alice)
    server.stop()
    server.start()
    notify(alice)  # over a connection that the server has closed
    assert_reads(alice)
    assert messages(caplog) == []
    assert RecountRequest.objects.count() == 1  # Redis answers, and knows of no generation
    assert_heals(alice)


def test_a_server_without_memory(use, alice, bob, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    with servers.redis("--maxmemory-policy", "noeviction") as server:
        use(server.url)
        unread.heal()
        notify(alice)
        notify(bob)
        assert_reads(alice, bob)
        Notification.objects.create(user=bob, title="x")
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxmemory", 1)
            for _ in range(3):
                Notification.objects.create(user=alice, title="x")
                with another_client():
                    assert_reads(alice, bob)  # also by others, at once: alice is in flight
            assert RecountRequest.objects.count() == 3
            assert_reads(alice, bob)
            unread.heal()  # draining goes on
            assert RecountRequest.objects.count() == 0
            unread.flush()
            assert (stored(alice), stored(bob)) == (6, 4)
            client.config_set("maxmemory", 0)
        notify(alice)
        assert_exact(alice, bob)
    told = messages(caplog)
    assert {level for level, _ in told} == {logging.ERROR}
    assert [text.partition(";")[0].rpartition(" ")[2] for _, text in told] == ["announce", "lease"]
    assert all("maxmemory" in text for _, text in told)


# ---------------------------------------------------------------------------- outages
def notify_quietly(user: Any) -> None:
    Notification.objects.create(user=user, title="x")


def test_an_outage_is_told_once_and_its_end_once(use, server, alice, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    use(server.url)
    unread.heal()
    notify(alice)
    with entries(RETRY_AFTER=0):
        for _ in range(2):
            server.kill()
            for _ in range(3):
                notify_quietly(alice)
                assert_reads(alice)
            server.start()
            for _ in range(3):
                notify_quietly(alice)
                assert_reads(alice)
    told = messages(caplog)
    assert [level for level, _ in told] == [logging.WARNING] * 4
    assert "is unavailable" in told[0][1]
    assert "answers again" in told[1][1]
    assert_heals(alice)


def test_what_has_begun_is_committed_although_redis_failed_meanwhile(use, server, alice, bob):
    client = use(server.url)
    unread.heal()
    notify(alice)
    with transaction.atomic():
        notify_quietly(alice)
        begin_now()
        client.breaker.trip(redis.ConnectionError("a moment of weakness"))
        notify_quietly(bob)  # is left to a request
    assert unread.buffers[0].client is client
    assert RecountRequest.objects.count() == 1
    client.breaker.retry_at = 0.0
    assert [shard.status.intents for shard in unread.status()] == [0]
    assert_heals(alice, bob)


def test_one_write_waits_for_a_server_that_is_gone(use, server, alice, bob, caplog, monkeypatch):
    """However many there are before RETRY_AFTER."""
    breaker = use(server.url, SOCKET_TIMEOUT=2, SOCKET_CONNECT_TIMEOUT=2).breaker
    unread.heal()
    notify(alice)
    waited: list[Exception] = []
    trip = breaker.trip
    monkeypatch.setattr(breaker, "trip", lambda error: waited.append(error) or trip(error))
    server.kill()
    with entries(RETRY_AFTER=600):
        for _ in range(5):
            notify_quietly(alice)
            assert_reads(alice, bob)
        assert len(waited) == 1
        breaker.retry_at = 0.0  # as if the time had passed
        assert_reads(alice)
    assert (len(waited), len(messages(caplog)), RecountRequest.objects.count()) == (2, 1, 5)
    server.start()
    breaker.retry_at = 0.0
    assert_heals(alice)


def test_after_an_outage_one_tries_while_others_count_rows(use, server, alice):
    client = use(server.url)
    unread.heal()
    notify(alice)
    client.breaker.trip(redis.ConnectionError("a moment of weakness"))
    client.breaker.retry_at = 0.0  # as if the time had passed
    client.breaker.check()
    with pytest.raises(BufferUnavailable, match="not asked again"):
        client.call("GET", "key")
    assert_reads(alice)
    client.breaker.retry_at = 0.0
    assert client.call("GET", "key") is None
    assert_reads(alice)


@pytest.mark.parametrize("many", [False, True], ids=["few owners", "many owners"])
def test_after_an_outage_redis_is_told_what_it_has_missed(use, server, alice, bob, many, monkeypatch):
    """The process does not read what it knows to be too old, and does not wait for the flusher."""
    client = use(server.url)
    unread.heal()
    notify(alice)
    notify(bob)
    assert_reads(alice, bob)
    if many:
        monkeypatch.setattr("notifications_counter.buffer.client.OWNERS_PER_CALL", 1)
    client.breaker.trip(redis.ConnectionError("a moment of weakness"))
    notify_quietly(alice)
    notify_quietly(bob)
    client.breaker.retry_at = 0.0  # as if the time had passed
    assert_reads(alice, bob)
    assert client.breaker.down_since is None
    assert_heals(alice, bob)


def test_errors_between_an_announcement_and_its_confirmation(use, server, alice, bob):
    client = use(server.url, CONNECTION_POOL_KWARGS={"max_connections": 3})
    unread.heal()
    for _ in range(5):
        for block in (nullcontext, transaction.atomic):
            with pytest.raises(IntegrityError), block():
                Notification.objects.create(user=alice, title=None)
    notify(bob)
    assert client.breaker.down_since is None
    assert_heals(alice, bob)
