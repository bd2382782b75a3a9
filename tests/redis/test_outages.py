"""A Redis that is gone, late, or refuses what it is asked: the site goes on, rows are counted, and one line of the log
says so, and one that it is over."""

import gc
import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread, Timer
from typing import Any

import pytest
import redis
from django.db import connections, transaction

import servers
from notifications_counter.counters import unread, unseen
from notifications_counter.events import EventLog
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import DoubtRequest, Notification
from notifications_counter.redis.calls import command
from notifications_counter.redis.client import Client, read_all_owed
from notifications_counter.timeseries import TimeSeries
from servers.relay import Relay
from tests.support import (
    OtherConnection,
    announce,
    assert_heals,
    assert_reads,
    begin_now,
    buffer,
    create,
    entries,
    notify,
    rows,
    sent,
    stored,
    wait_until,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

TIMEOUT = 0.5  # seconds
PATIENT = 60  # seconds: no reply takes longer, however busy the machine is


class Line(Relay):
    """A relay that may break in the middle of a reply, and lead to another server."""

    def __init__(self, server: servers.Server):
        self.left: int | None = None  # bytes of replies that still come through; None: all
        self.broken = 0  # replies that did not come through
        super().__init__(server)

    def pass_on(self, data: bytes, is_reply: bool, to: socket.socket) -> bool:
        if is_reply and self.left is not None:
            self.broken += len(data) > self.left
            data, self.left = data[: self.left], max(0, self.left - len(data))
        return super().pass_on(data, is_reply, to)


@pytest.fixture
def line(server) -> Iterator[Line]:
    line = Line(server)
    yield line
    line.delay = 0.0
    line.socket.close()


@pytest.fixture
def use(use, line) -> Iterator[Callable[..., Client]]:
    """A function that puts the cache behind the line. Only the test says when Redis is tried again."""
    with entries(RETRY_AFTER=3600):
        yield partial(use, line.url)


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


def cached(*users: Any) -> None:
    """Redis has the totals of these users, who have three notifications each."""
    unread.heal()
    for user in users:
        notify(user)
    assert_reads(*users)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(r.levelname, r.getMessage()) for r in caplog.records if "Redis (cache" in r.getMessage()]


# ----------------------------------------------------------------------------------------------------------- it is gone
def test_an_outage_is_told_once_and_its_end_once(use, server, alice, caplog):
    caplog.set_level(logging.INFO, "notifications_counter")
    use()
    cached(alice)
    with entries(RETRY_AFTER=0):
        server.kill()
        for _ in range(3):
            create(alice)
            assert_reads(alice)
        server.start()
        for _ in range(3):
            create(alice)
            assert_reads(alice)
    (began, lost), (ended, back) = told(caplog)
    assert (began, "is unavailable" in lost, ended, "answers again" in back) == ("WARNING", True, "WARNING", True)
    assert_heals(alice)


def test_after_an_outage_one_tries_while_others_count_rows(use, alice):
    client = use()
    cached(alice)
    client.breaker.trip(redis.ConnectionError("a moment of weakness"))
    create(alice)
    client.breaker.retry_at = 0.0  # as if the time had passed
    client.breaker.check()
    with pytest.raises(BufferUnavailable, match="not asked again"):
        client.ask(command("GET", "key"))
    assert_reads(alice)
    work(client)
    assert client.breaker.down_since is None
    assert_heals(alice)


@pytest.mark.parametrize("shared", [False, True])
def test_what_tries_deletes_nothing(use, shared):
    """Whatever a site calls its counters and types of events."""
    client, series, log = use(), TimeSeries(shared=shared), EventLog(shared=shared)
    names = ["hits", "hits:probe", "probe", "60:probe"]
    series.update_counters(dict.fromkeys(names, 1))
    log.record_events([{"type": name} for name in names])

    def again(read: Callable[..., Any], *args: Any) -> Any:
        client.breaker.trip(redis.ConnectionError("a moment of weakness"))
        client.breaker.retry_at = 0.0
        return read(*args)

    for name in names:
        assert len(again(series.get_counter, name, 60)) == 1
        assert again(log.count_type, name) == 1
    assert [len(series.get_counter(name, 60)) for name in names] == [log.count_type(name) for name in names] == [1] * 4


# ----------------------------------------------------------------------------------------------------------- it is late
BLOCKING = {"CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool", "CONNECTION_POOL_KWARGS": {"max_connections": 4}}


@pytest.mark.parametrize(("options", "is_connected"), [({}, True), ({}, False), (BLOCKING, False)])
def test_the_site_waits_once(use, line, options, is_connected, alice, bob):
    """However much it does before RETRY_AFTER: for the timeouts of the cache."""
    client = use(SOCKET_TIMEOUT=TIMEOUT, SOCKET_CONNECT_TIMEOUT=TIMEOUT, **options)
    work(client)
    notify(alice)
    if not is_connected:
        read_all_owed()
        client.redis.connection_pool.disconnect()
    with line.slow():
        assert unread.count(alice) == 3
        assert unread.counts([alice, bob]) == {alice.pk: 3, bob.pk: 0}
        assert client.breaker.down_since is not None
        client.breaker.retry_at = 0.0
        create(alice)
        with transaction.atomic():
            create(bob)
        assert_reads(alice, bob)
    assert (rows(alice), rows(bob), DoubtRequest.objects.count()) == (4, 1, 2)
    work(client)
    assert_heals(alice, bob)


def test_a_thread_that_ends_before_the_reply(use, line, alice):
    """Its connection is not used again, so that nobody takes the reply for that of another command."""
    use(SOCKET_TIMEOUT=PATIENT)
    cached(alice)
    read_all_owed()
    with line.slow(TIMEOUT):
        # It waits for the reply to its first confirmation.
        thread = Thread(target=lambda: (create(alice, 2), connections.close_all()))
        thread.start()
        thread.join()
        gc.collect()
        assert unread.count(alice) == 5


def test_others_close_the_pool_meanwhile(use, line, alice):
    """As a cache does that closes its pool after the request of another thread. Redis-py then raises anything."""
    client = use(SOCKET_TIMEOUT=PATIENT)
    cached(alice)
    with line.slow(TIMEOUT):
        closer = Timer(TIMEOUT / 2, client.redis.connection_pool.disconnect)
        closer.start()
        assert unread.count(alice) == 3
        closer.join()
    assert client.breaker.down_since is not None
    work(client)
    assert_heals(alice)


@pytest.mark.parametrize("when", ["read", "announce", "confirm"])
def test_a_reply_that_breaks_off(use, line, alice, bob, monkeypatch, when):
    """No reply is taken for that of another command."""
    client = use(SOCKET_TIMEOUT=3)
    monkeypatch.setattr("notifications_counter.redis.client.NOTE_SECONDS", 10**6)
    cached(alice, bob)
    if when == "confirm":
        with transaction.atomic():
            create(alice)
            begin_now()
            line.left = 3
    else:
        line.left = 3
        if when == "announce":
            create(alice)
    assert_reads(alice, bob)
    create(bob)
    assert_reads(alice, bob)
    # Nobody waits for a second timeout. The reply to a confirmation and the next one are lost together.
    assert line.broken <= (2 if when == "confirm" else 1)
    line.left = None
    work(client)
    assert unread.counts([alice, bob]) == {alice.pk: 3 if when == "read" else 4, bob.pk: 4}
    assert_heals(alice, bob)
    assert not DoubtRequest.objects.exists()


def test_announcements_of_which_some_are_answered(use, line, make_user, monkeypatch):
    """The other owners of the transaction are named in the database."""
    client, users = use(SOCKET_TIMEOUT=3), [make_user() for _ in range(9)]
    monkeypatch.setattr("notifications_counter.writes.log.OWNERS_PER_CALL", 2)
    cached(*users)
    create(users[0])  # the server knows the script
    read_all_owed()
    line.left = 10  # bytes: two replies, and a part of the third
    with transaction.atomic():
        Notification.objects.bulk_create(Notification(user=user, title="x") for user in users)
    assert_reads(*users)
    line.left = None
    assert DoubtRequest.objects.count() == 5
    work(client)
    assert_heals(*users)


# ----------------------------------------------------------------------------------------------------------- it refuses
def test_a_server_without_memory(use, other, alice, bob, caplog):
    """It answers readers, and refuses what may need memory."""
    use()
    cached(alice, bob)
    create(bob)
    announce(buffer(), "killed", [])
    announce(buffer(), "committed", [str(alice.pk)])
    other.config_set("maxmemory-policy", "noeviction")
    other.config_set("maxmemory", 1)
    for _ in range(3):
        create(alice)
        assert_reads(alice, bob)
    assert DoubtRequest.objects.count() == 3
    buffer().client.ask(buffer().confirmation("committed", [str(alice.pk)], [None]))  # draining goes on
    with entries(HEAL_AFTER=0):
        unread.heal()
    assert DoubtRequest.objects.count() == 0
    unread.flush()
    assert (stored(alice), stored(bob)) == (6, 4)
    other.config_set("maxmemory", 0)
    refusals = [line for line in told(caplog) if "maxmemory" in line[1]]
    assert {level for level, _ in refusals} == {"ERROR"}
    assert len(refusals) == len(set(refusals))
    notify(alice)
    assert_heals(alice, bob)


@pytest.mark.usefixtures("with_unseen")
def test_what_it_takes_of_a_change_that_it_refuses_is_over_at_once(alice, redis_client):
    """It has lost what it knew of one of two counters. The owner is not in flight for the other until a heal."""
    redis_client.delete(unseen.buffer.key("state"))
    assert unread.count(alice) == 0  # cached
    create(alice)
    assert unread.count(alice) == 1
    with sent() as commands:
        assert unread.count(alice) == 1
    assert commands == ["MGET"]
    for counter in (unread, unseen):
        assert_heals(alice, counter=counter)


def test_a_server_that_does_not_say_who_it_is(use, other, alice):
    other.execute_command("ACL", "SETUSER", "default", "-info")
    use()
    cached(alice)
    create(alice)
    assert unread.buffer.server() == "nameless"
    assert_heals(alice)


@pytest.mark.parametrize("pool", [{}, {"max_connections": 4}], ids=str)
def test_an_address_that_leads_to_a_new_master(use, line, server, other, alice, pool):
    """The connections to the old one stay open, and it would still answer readers, with what it knew."""
    client = use(CONNECTION_POOL_KWARGS=pool, SOCKET_TIMEOUT=PATIENT)
    cached(alice)
    its = client.redis.connection_pool
    for connection in [its.get_connection() for _ in range(2)]:
        its.release(connection)
    with OtherConnection() as waiting, servers.redis(replica_of=server) as new, redis.Redis.from_url(new.url) as master:
        waiting.run(unread.count, alice)
        other.execute_command("WAIT", 1, 5000)
        master.replicaof("NO", "ONE")
        other.replicaof(servers.HOST, new.port)
        wait_until(lambda: other.info("replication")["master_link_status"] == "up")
        create(alice)
        assert_reads(alice)
        client.breaker.retry_at = 0.0
        assert_reads(alice)  # it is tried by a write
        line.server = new
        create(alice)
        assert_reads(alice)
        assert DoubtRequest.objects.count() == 2
        client.breaker.retry_at = 0.0
        assert_heals(alice)
        with OtherConnection() as another:
            for each in (waiting, another):
                each.run(create, alice)
        assert not DoubtRequest.objects.exists()
        assert_reads(alice)
        assert unread.buffer.server().startswith(master.info("server")["run_id"])


@pytest.mark.parametrize("options", [{}, BLOCKING], ids=["held", "not held"])
def test_a_master_that_is_replaced_and_lives_on(use, line, server, other, alice, options, monkeypatch):
    """As by a change of DNS. Nobody stays with it for ever, not even over a connection that the site has opened."""
    client = use(**options)
    cached(alice)
    with OtherConnection() as thread, servers.redis(replica_of=server) as new, redis.Redis.from_url(new.url) as master:
        thread.run(create, alice)
        its = client.redis.connection_pool
        for connection in [its.get_connection() for _ in range(2)]:
            its.release(connection)
        other.execute_command("WAIT", 1, 5000)
        master.replicaof("NO", "ONE")
        line.server = new
        create(alice)
        monkeypatch.setattr("notifications_counter.redis.client.OLD_SECONDS", 0.1)
        its_name = master.info("server")["run_id"]
        wait_until(lambda: unread.buffer.server().startswith(its_name))
        wait_until(lambda: thread.run(unread.buffer.server).startswith(its_name))
        other.config_resetstat()
        thread.run(create, alice)
        create(alice)
        assert_heals(alice)
        assert not {"cmdstat_evalsha", "cmdstat_mget"} & other.info("commandstats").keys()
