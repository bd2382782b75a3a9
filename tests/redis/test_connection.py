"""A thread holds a connection of the site's pool. Nobody waits for the reply to a confirmation: whoever uses the
connection next reads it, or the connection is closed."""

import gc
import subprocess
import sys
from collections import Counter as Tally
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any
from unittest import mock

import pytest
import redis
from django.db import transaction

import servers
from notifications_counter.counters import unread
from notifications_counter.models import DoubtRequest
from notifications_counter.redis import client as client_module
from notifications_counter.redis.client import client_of, read_all_owed
from notifications_counter.redis.connection import Connection, release_abandoned
from tests.support import (
    OtherConnection,
    assert_exact,
    assert_heals,
    assert_reads,
    begin_now,
    buffer,
    create,
    entries,
    fork,
    round_trips,
    rows,
    together,
    total_key,
    wait_until,
)
from tests.tasks.counters import open_issues, urgent_issues
from tests.tasks.models import Issue, Project

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def server(use, server) -> Iterator[servers.Server]:
    use(server.url)
    unread.heal()
    with entries(RETRY_AFTER=0):
        yield server


def test_a_connection_that_was_given_back_keeps_nothing_of_a_thread(server, alice):
    """Otherwise, it would grow with every thread that has held it."""
    kept = Tally[redis.Connection]()  # callbacks of threads, by connection
    register, deregister = redis.Connection.register_connect_callback, redis.Connection.deregister_connect_callback

    def registering(connection: redis.Connection, callback: Any) -> None:
        kept[connection] += 1
        register(connection, callback)

    def deregistering(connection: redis.Connection, callback: Any) -> None:
        kept[connection] -= connection in kept  # others are of tests before
        deregister(connection, callback)

    with (
        mock.patch.object(redis.Connection, "register_connect_callback", registering),
        mock.patch.object(redis.Connection, "deregister_connect_callback", deregistering),
    ):
        for _ in range(3):
            with OtherConnection() as other:
                other.run(unread.count, alice)
        assert kept
        wait_until(lambda: gc.collect() >= unread.count(alice) and not any(kept.values()))


def test_the_garbage_collector_waits_for_no_pool(server, alice):
    """It may run where this thread has the pool's lock."""
    unread.count(alice)
    pool = unread.buffer.client._pool
    with mock.patch.object(pool, "release", wraps=pool.release) as release:
        Connection(pool, 0)
        gc.collect()
        assert not release.called
        unread.count(alice)
        release.assert_called_once()


@pytest.fixture
def ready(server, alice) -> None:
    """The server knows the scripts, and the total is cached."""
    create(alice)
    assert_reads(alice)


def pool() -> Any:
    return client_of("default").redis.connection_pool


def take_all() -> None:
    """Take every connection that the pool may have: none was lost."""
    read_all_owed()
    gc.collect()  # of threads
    release_abandoned()
    taken = [pool().get_connection() for _ in range(min(pool().max_connections, 100))]
    for connection in taken:
        pool().release(connection)


def test_a_write_of_two_counters_waits_once(server):
    house = Project.objects.create()
    for counter in (open_issues, urgent_issues):
        counter.heal()
        assert counter.count(house) == 0
    Issue.objects.create(project=house, urgent=True)
    assert open_issues.count(house) == 1
    with round_trips() as trips, transaction.atomic():
        Issue.objects.create(project=house, urgent=True)
    assert (trips.number, trips.commands) == (1, 2)
    for counter in (open_issues, urgent_issues):
        assert_exact(house, counter=counter)


def test_a_write_after_a_restart_is_confirmed_at_once(ready, server, other, alice):
    """The server knows no script any more, and this thread may not ask it again for long."""
    server.kill()
    server.start()
    assert_reads(alice)  # and notices that the connection has ended
    unread.heal()
    create(alice)
    wait_until(lambda: not other.hlen(unread.buffer.key("intents")))


@pytest.mark.parametrize("heal_after", [0, 1])  # Redis counts whole seconds: the next one may begin at once
def test_a_slow_statement_waits(ready, alice, heal_after):
    with round_trips() as trips, entries(HEAL_AFTER=heal_after), transaction.atomic():
        create(alice)
    assert trips.number == 2
    assert_exact(alice)


@pytest.mark.parametrize("of", ["a new process", "a connection that is made again"])
def test_the_first_write_to_a_new_server(use, ready, alice, server, other, monkeypatch, of):
    """A confirmation that is sent again, by its source, would come after what this thread sends next."""
    monkeypatch.setattr(client_module, "FRESH_SECONDS", 60)
    unread.flush()
    other.script_flush()
    with OtherConnection() as another:
        another.run(unread.flush)  # so that the server knows how to cut
    if of == "a new process":
        use(server.url)
    else:
        pool().disconnect()
    create(alice)
    assert unread.flush().owners == 1
    assert_exact(alice)


def test_a_server_that_has_forgotten_the_scripts(ready, alice, other):
    """Whoever uses the connection next sends the confirmation again."""
    other.script_flush()
    create(alice)
    assert unread.count(alice) == 2
    assert not DoubtRequest.objects.exists()
    assert_exact(alice)


# --------------------------------------------------------------------------------------------------- whose it is
def test_threads_give_back_what_they_hold(ready, make_user, other):
    users = [make_user() for _ in range(6)]

    def work(user: Any) -> None:
        before = rows(user)
        for number in range(1, 16):
            create(user)
            with transaction.atomic():
                create(user)
            assert unread.counts(users)[user.pk] == unread.count(user) == before + 2 * number

    together(*[partial(work, user) for user in users])
    assert_exact(*users)
    assert len(other.client_list()) <= 2 + len(users)
    take_all()


def test_at_most_half_of_the_pool_is_held(use, server, alice, caplog):
    use(server.url, CONNECTION_POOL_KWARGS={"max_connections": 4})
    unread.heal()
    with OtherConnection() as one, OtherConnection() as two, OtherConnection() as three:
        for number, each in enumerate([one, two, three, one, two, three], 1):
            each.run(create, alice)
            assert each.run(unread.count, alice) == number
        others = [pool().get_connection() for _ in range(2)]
        with pytest.raises(redis.ConnectionError):
            pool().get_connection()
        for connection in others:
            pool().release(connection)
    assert caplog.records == []
    take_all()


LIMITED = {"max_connections": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"CONNECTION_POOL_KWARGS": LIMITED},
        {
            "CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool",
            "CONNECTION_POOL_KWARGS": LIMITED | {"timeout": 1, "protocol": 2},
        },
        {"CONNECTION_POOL_KWARGS": {"protocol": 3, "decode_responses": True}},
        {"CONNECTION_POOL_KWARGS": {"health_check_interval": 1e-9}},  # a PING before each command that may have one
    ],
    ids=str,
)
def test_pools_of_the_site(use, server, other, options, alice, caplog):
    """Nothing holds one connection while it waits for another, not even with the time-sliced counters."""
    use(server.url, **options)
    before = other.info("stats")["total_connections_received"]
    unread.heal()
    create(alice)
    with transaction.atomic():
        create(alice)
        assert_reads(alice)
    unread.flush()
    assert_exact(alice)
    # One that is held, opened again because its age was unknown, and one that the test asks.
    assert other.info("stats")["total_connections_received"] <= before + 3
    other.set(total_key(alice), b"\xff")  # no text
    assert unread.count(alice) == 2
    assert caplog.records == []


def test_more_threads_than_connections(use, server, alice):
    """Whoever gets no connection counts rows. With a redis-py that says why, that is no outage for the others, until
    Redis misses a change."""
    use(server.url, CONNECTION_POOL_KWARGS=LIMITED)
    unread.heal()
    create(alice)
    assert_reads(alice)
    taken = pool().get_connection()
    assert unread.count(alice) == 1
    with pytest.raises(redis.ConnectionError) as exhausted:
        pool().get_connection()
    assert client_of("default").breaker.down_since is None or not isinstance(exhausted.value, client_module.EXHAUSTED)
    create(alice)
    assert_reads(alice)
    assert DoubtRequest.objects.count() == 1
    assert client_of("default").breaker.down_since is not None
    pool().release(taken)
    unread.heal()
    assert_heals(alice)


def test_an_interrupt_gives_the_connection_back(use, server, alice, monkeypatch):
    """Also while somebody keeps the exception, as an error reporter does."""
    use(server.url, CONNECTION_POOL_KWARGS=LIMITED)
    unread.heal()
    with monkeypatch.context() as patch:
        patch.setattr(redis.Connection, "read_response", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt) as kept:
            unread.count(alice)
    take_all()
    assert kept


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # pytest-xdist has threads
def test_a_fork_between_a_write_and_a_read(ready, alice, bob, monkeypatch):
    """A child must not speak over the connections of its parent, nor read what the parent is owed."""
    monkeypatch.setattr(client_module, "FRESH_SECONDS", 60)  # without a test, a lost reply is an outage
    create(alice)

    def work() -> None:
        assert unread.count(alice) == 2
        for _ in range(20):
            create(bob)
            assert unread.count(alice) == 2

    with fork(read_all_owed):  # as at its end
        pass
    with fork(work), fork(work):
        work()
    assert client_of("default").breaker.reason == ""
    assert unread.count(alice) == 2
    assert unread.count(bob) == 60
    assert_exact(alice, bob)


PROGRAM = """
import sys, django
django.setup()
from notifications_counter.models import Notification

for _ in range(2):
    Notification.objects.create(user_id=sys.argv[1], title="x")
"""


@pytest.mark.usefixtures("healed")
def test_a_process_that_ends_right_after_a_write(child_environment, alice):
    create(alice)
    assert_reads(alice)
    subprocess.run([sys.executable, "-c", PROGRAM, str(alice.pk)], env=child_environment, check=True)
    assert unread.count(alice) == 3
    wait_until(lambda: buffer().status().intents == 0)  # what was sent arrives
    assert_exact(alice)


TIME_LIMITS = """
import random, signal, sys, django
django.setup()
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.timeseries import TimeSeries

class TimeLimit(Exception):
    pass

def end(*_):
    raise TimeLimit

signal.signal(signal.SIGALRM, end)
series, hits = TimeSeries([60]), dict.fromkeys(map(str, range(50)), 1)
for _ in range(300):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.003), 0.05)  # seconds
            while True:
                series.update_counters(hits)
                unread.count(sys.argv[1])
                Notification.objects.create(user_id=sys.argv[1], title="x")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TimeLimit:
        pass
"""


@pytest.mark.skipif(find_spec("hiredis") is None, reason="redis-py packs by itself")
@pytest.mark.usefixtures("healed")
def test_time_limits_amid_calls(child_environment, server, alice):
    """If the handler of a signal raises while hiredis packs a number, it crashes."""
    # redis-py itself sends numbers only to choose another database or protocol than these.
    environment = child_environment | {"TEST_REDIS_URL": f"{server.url}?protocol=2"}
    subprocess.run([sys.executable, "-c", TIME_LIMITS, str(alice.pk)], env=environment, check=True)


# ------------------------------------------------------------------------------------------------------ failures
def test_a_connection_that_others_close(ready, alice):
    """As a cache does that closes its pool after each request. No reply is taken for that of another command."""
    for number in range(2, 6):
        create(alice)
        pool().disconnect()
        assert unread.count(alice) == number
    assert client_of("default").breaker.reason == ""
    assert_exact(alice, in_doubt=None)


@pytest.mark.parametrize("fresh_seconds", [0, 60], ids=["tested", "not tested"])
def test_a_connection_that_redis_has_closed(ready, alice, other, fresh_seconds, monkeypatch, caplog):
    """It is noticed before it is used, unless that was a moment ago. Then rows are counted."""
    monkeypatch.setattr(client_module, "FRESH_SECONDS", fresh_seconds)
    create(alice)
    wait_until(lambda: buffer().status().intents == 0)
    other.client_kill_filter(_type="normal", skipme=True)
    assert_reads(alice)
    assert bool(caplog.records) == bool(fresh_seconds)
    assert not DoubtRequest.objects.exists()
    assert_exact(alice)


@pytest.mark.parametrize("when", ["at once", "after a test of the connection", "by the next write"])
def test_a_confirmation_that_is_refused(ready, alice, bob, other, when, caplog, monkeypatch):
    """The owner is in flight until the next heal. Whoever reads the refusal logs it."""
    with transaction.atomic():
        create(alice)
        begin_now()
        other.replicaof("127.0.0.1", 1)
    if when == "after a test of the connection":
        monkeypatch.setattr(client_module, "FRESH_SECONDS", 0)
    elif when == "by the next write":
        create(bob)
    assert_reads(alice, bob)
    assert "refused confirm" in caplog.text
    other.replicaof("NO", "ONE")
    unread.heal()
    assert_heals(alice, bob)
