"""A Redis that is there and does not do what it is asked: the site goes on, rows are counted, one line says so, and one
that it is over."""

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import redis
from django.db import transaction

import servers
from notifications_counter.buffer.calls import OWNERS_PER_CALL
from notifications_counter.buffer.client import Client, client_of
from notifications_counter.buffer.connection import FRESH_SECONDS
from notifications_counter.chunks import chunked
from notifications_counter.counters import unread
from notifications_counter.events import EventLog
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.timeseries import TimeSeries
from servers.relay import Relay
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_heals,
    assert_reads,
    begin_now,
    buffer,
    confirm,
    entries,
    notify,
    sent,
    wait_until,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


TIMEOUT = 3
"""Seconds that a reply may take: enough for a busy machine, and few for a reply that never comes."""


@pytest.fixture
def use(use) -> Callable[..., Client]:
    return partial(use, SOCKET_TIMEOUT=TIMEOUT)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(r.levelname, r.getMessage()) for r in caplog.records if "Redis (cache" in r.getMessage()]


def answer(client: redis.Redis) -> str:
    """What Redis says to a PING, if only why it refuses it."""
    try:
        return str(client.ping())
    except redis.RedisError as error:
        return str(error)


# ------------------------------------------------------------------------------------------------------ what befalls it
@contextmanager
def read_only(server: servers.Server, client: redis.Redis) -> Iterator[None]:
    """It was the master, and now follows another one: it would still answer readers, with what it knew."""
    with servers.redis(replica_of=server) as other, redis.Redis.from_url(other.url) as master:
        client.execute_command("WAIT", 1, 5000)
        master.replicaof("NO", "ONE")
        client.replicaof(servers.HOST, other.port)
        wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        yield
        client.replicaof("NO", "ONE")


@contextmanager
def busy(server: servers.Server, client: redis.Redis) -> Iterator[None]:
    """A script of somebody else that has no end."""
    client.config_set("lua-time-limit", 1)

    def work() -> None:
        with redis.Redis.from_url(server.url) as other, pytest.raises(redis.ResponseError, match="(?i)kill"):
            other.eval("while true do end", 0)

    thread = threading.Thread(target=work)
    thread.start()

    wait_until(lambda: "BUSY" in answer(client))
    yield
    client.script_kill()
    thread.join()


@contextmanager
def with_password(server: servers.Server, client: redis.Redis) -> Iterator[None]:
    client.config_set("requirepass", "secret")
    client.client_kill_filter(_type="normal", skipme=True)
    time.sleep(FRESH_SECONDS)  # idle connections are asked again whether they live
    yield
    client.config_set("requirepass", "")
    time.sleep(FRESH_SECONDS)  # Redis has closed connections that sent a long command without the password


@contextmanager
def without_permission(server: servers.Server, client: redis.Redis) -> Iterator[None]:
    client.acl_setuser("default", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-evalsha"])
    yield
    client.acl_setuser("default", enabled=True, nopass=True, keys=["*"], commands=["+@all"])


REFUSALS = {
    "READONLY": read_only,
    "BUSY": busy,
    "NOAUTH": with_password,
    "NOPERM": without_permission,
}
WORDS = {  # what redis-py makes of them
    "READONLY": "read only replica",
    "NOAUTH": "uthenticat",  # "Authentication required", or "unauthenticated multibulk length"
    "NOPERM": "no permissions",
}


@pytest.fixture(params=REFUSALS)
def refusal(request, use) -> Iterator[Any]:
    with servers.redis() as server, redis.Redis.from_url(server.url) as client:
        use(server.url)
        yield request.param, lambda: REFUSALS[request.param](server, client)


def test_a_refusal_at_begin(refusal, alice, bob, caplog):
    name, befalls = refusal
    caplog.set_level(logging.INFO, "notifications_counter")
    unread.heal()
    notify(alice)
    assert_reads(alice, bob)
    with entries(RETRY_AFTER=0):  # whatever is done asks Redis
        with befalls():
            for _ in range(3):
                Notification.objects.create(user=alice, title="x")
                assert_reads(alice, bob)
            with transaction.atomic():
                Notification.objects.create(user=bob, title="x")
            assert_reads(alice, bob)
            for maintain in (unread.heal, unread.flush, unread.recount):
                with pytest.raises(BufferUnavailable):
                    maintain()
            assert RecountRequest.objects.count() == 4
        Notification.objects.create(user=alice, title="x")
        assert_reads(alice, bob)  # Redis is told of the doubts that it has refused
    levels, texts = zip(*told(caplog), strict=True)
    assert levels[-1] == "WARNING"
    assert "answers again" in texts[-1]
    assert all(WORDS.get(name, name) in text for text in texts if "unavailable" in text)
    assert_heals(alice, bob)
    assert not RecountRequest.objects.exists()


@pytest.mark.parametrize("pool", [{}, {"max_connections": 4}], ids=str)
def test_an_address_that_leads_to_another_server(use, alice, pool):
    """The connections to the old master stay open, and nobody closes them."""
    with servers.redis() as server, redis.Redis.from_url(server.url) as client:
        line = Relay(server)
        use(line.url, CONNECTION_POOL_KWARGS=pool, SOCKET_TIMEOUT=30)
        unread.heal()
        notify(alice)
        old = client_of("default").redis.connection_pool
        for connection in [old.get_connection() for _ in range(2)]:
            old.release(connection)
        with servers.redis(replica_of=server) as other, redis.Redis.from_url(other.url) as master:
            client.execute_command("WAIT", 1, 5000)
            master.replicaof("NO", "ONE")
            client.replicaof(servers.HOST, other.port)
            wait_until(lambda: client.info("replication")["master_link_status"] == "up")
            line.server = other
            Notification.objects.create(user=alice, title="x")
            assert RecountRequest.objects.count() == 1
            client_of("default").breaker.retry_at = 0.0  # as if the time had passed
            assert_heals(alice)
            Notification.objects.create(user=alice, title="x")
            assert not RecountRequest.objects.exists()
            assert_reads(alice)
            assert unread.status()[0].server.startswith(master.info("server")["run_id"])
        line.socket.close()


# ------------------------------------------------------------------------------------------- a refusal that never ends
def test_a_command_that_the_server_does_not_have(use, alice, bob, caplog):
    """It is an error of the configuration, and logged once."""
    with servers.redis("--rename-command", "ZINCRBY", "") as server:
        use(server.url)
        unread.heal()
        assert_reads(alice, bob)
        for _ in range(2):
            Notification.objects.create(user=alice, title="x")
            assert_reads(alice, bob)
        [(level, text)] = told(caplog)
        assert (level, "has refused confirm" in text) == ("ERROR", True)
        assert client_of("default").breaker.down_since is None
        assert_heals(alice)


def test_a_refused_extra_does_not_silence_the_counters(use, alice, caplog):
    with servers.redis("--rename-command", "EXPIREAT", "") as server:
        use(server.url)
        unread.heal()
        notify(alice)
        with entries(RECORD_ACTIVITY=True), sent() as commands:
            assert_reads(alice)
            commands.clear()
            Notification.objects.create(user=alice, title="x")
            assert unread.count(alice) == 4
        assert (commands[:3], commands[-1]) == (["announce", "confirm", "update_series"], "MGET")
        assert [level for level, _ in told(caplog)] == ["ERROR"]
        assert not RecountRequest.objects.exists()
        assert_heals(alice)


def test_no_command_has_too_many_arguments(use, make_user):
    """Some managed servers take no more than 3,999."""
    with servers.redis() as server:
        line = Line(server)
        use(line.url)
        unread.heal()
        users = range(1, 10_001)
        assert sum(unread.counts(users).values()) == 0
        buffer().doubt([str(user) for user in users])
        buffer().peek([str(user) for user in users])
        buffer().set_aside({str(user): "1" for user in users})
        for some in chunked(users, OWNERS_PER_CALL):
            confirm(buffer(), f"part{some[0]}", {str(user): 1 for user in some})
        EventLog().record_events({"type": "x", "a": 1, "b": 2} for _ in users)
        TimeSeries(precisions=[*range(1, 100)]).update_counters({f"name{user}": 1 for user in range(100)})
        assert 1000 < line.most_arguments < 3999
        line.socket.close()


# --------------------------------------------------------------------------------------------- a reply that breaks off
class Line(Relay):
    """It can be broken in the middle of a reply."""

    def __init__(self, server: servers.Server):
        self.left: int | None = None  # bytes of replies that still come through; None: all
        self.broken = 0  # replies that did not come through
        self.most_arguments = 0
        super().__init__(server)

    def pass_on(self, data: bytes, is_reply: bool, to: socket.socket) -> bool:
        if is_reply and self.left is not None:
            self.broken += len(data) > self.left
            data, self.left = data[: self.left], max(0, self.left - len(data))
        if not is_reply and (length := re.match(rb"\*(\d+)\r\n", data)):
            self.most_arguments = max(self.most_arguments, int(length[1]) - 1)
        return super().pass_on(data, is_reply, to)


@pytest.fixture
def _no_second_try() -> Iterator[None]:
    """Until the test says so, however long its statements take."""
    with entries(RETRY_AFTER=3600):
        yield


@pytest.fixture
def line(use) -> Iterator[Line]:
    with servers.redis() as server:
        line = Line(server)
        use(line.url)
        yield line
        line.socket.close()


@pytest.mark.parametrize("after", [0, 3], ids="{} bytes".format)
@pytest.mark.parametrize("when", ["read", "announce", "confirm"])
@pytest.mark.usefixtures("_no_second_try")
def test_a_reply_that_breaks_off(line, alice, bob, caplog, monkeypatch, when, after):
    caplog.set_level(logging.INFO, "notifications_counter")
    monkeypatch.setattr("notifications_counter.buffer.client.NOTE_SECONDS", 10**6)
    unread.heal()
    notify(alice)
    notify(bob, 2)
    assert_reads(alice, bob)
    if when == "confirm":
        with transaction.atomic():
            Notification.objects.create(user=alice, title="x")
            begin_now()
            line.left = after
    else:
        line.left = after
        if when == "announce":
            Notification.objects.create(user=alice, title="x")
    assert_reads(alice, bob)
    Notification.objects.create(user=bob, title="x")
    assert_reads(alice, bob)
    # Nobody waits for a second timeout. The reply to a confirmation and the next one are lost together.
    assert line.broken <= (2 if when == "confirm" else 1)
    line.left = None
    client_of("default").breaker.retry_at = 0.0  # as if the time had passed
    # No reply is taken for that of another command, and Redis is told what it has missed.
    assert unread.counts([alice, bob]) == {alice.pk: 3 if when == "read" else 4, bob.pk: 3}
    assert [level for level, _ in told(caplog)] == ["WARNING", "WARNING"]
    assert_heals(alice, bob)
    assert not RecountRequest.objects.exists()


# -------------------------------------------------------------------------------------------------------------- others
def test_a_server_that_is_loading(use, alice, caplog):
    """It is started, and not ready yet."""
    caplog.set_level(logging.INFO, "notifications_counter")
    with servers.redis() as server, redis.Redis.from_url(server.url, socket_timeout=PATIENCE) as client:
        use(server.url)
        unread.heal()
        notify(alice)
        with client.pipeline(transaction=False) as pipeline:
            for i in range(700):
                pipeline.set(f"other:{i}", os.urandom(131072))
            pipeline.execute()
        client.save()
        server.kill()
        # While it loads, it answers after every second megabyte, which takes 0.16 s.
        server.command += ["--key-load-delay", "10000"]  # microseconds

        def meanwhile() -> None:
            wait_until(lambda: "loading" in answer(client))
            time.sleep(FRESH_SECONDS)
            Notification.objects.create(user=alice, title="x")
            assert unread.count(alice) == 4
            assert "loading" in answer(client)

        with entries(RETRY_AFTER=0), OtherConnection() as other:
            working = other.start(meanwhile)
            server.start()  # returns when it is ready
            working.result(PATIENCE)
            Notification.objects.create(user=alice, title="x")
    levels, texts = zip(*told(caplog), strict=True)
    assert levels == ("WARNING", "WARNING")
    assert "loading" in texts[0]
