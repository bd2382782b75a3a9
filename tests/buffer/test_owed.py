"""Nobody waits for the reply to a confirmation: whoever uses the connection next reads it, or sees to its loss."""

import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import redis
from django.db import OperationalError, connections, transaction

import servers
from notifications_counter.buffer import connections as connections_module
from notifications_counter.buffer.client import client_of, read_all_owed
from notifications_counter.buffer.pipeline import late_failures
from notifications_counter.counters import unread
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.signals import redis_called
from notifications_counter.writes.intents import Intents
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_exact,
    assert_heals,
    assert_reads,
    buffer,
    entries,
    fork,
    sent,
    wait_until,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def server(use, server) -> Iterator[servers.Server]:
    use(server.url)
    unread.heal()
    with entries(RETRY_AFTER=0):
        yield server


@pytest.fixture
def other(server) -> Iterator[redis.Redis]:
    """Another client of the server."""
    with redis.Redis.from_url(server.url) as client:
        yield client


def write(user: Any) -> None:
    Notification.objects.create(user=user, title="x")


@pytest.fixture
def ready(server, alice) -> None:
    """The server knows the scripts, and the total is cached."""
    write(alice)
    assert_reads(alice)


def owed() -> int:
    """How many packets' replies are owed on idle connections."""
    return sum(len(connection.owed) for connection, _ in client_of("default")._connections._idle)


def arrive() -> None:
    """What is owed is here, and not read yet."""
    sockets = [connection._sock for connection, _ in client_of("default")._connections._idle if connection.owed]
    assert select.select(sockets, [], [], PATIENCE)[0] == sockets


def write_then(act: Callable[[], Any], user: Any) -> None:
    """Write, and act between the COMMIT and the confirmation."""
    confirm = Intents._confirm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Intents, "_confirm", lambda *args: (act(), confirm(*args))[1])
        write(user)


FRESH_SECONDS = pytest.mark.parametrize("fresh_seconds", [0, 60], ids=["tested", "not tested"])


@FRESH_SECONDS
def test_a_read_after_a_write_is_one_command(ready, alice, fresh_seconds, monkeypatch):
    monkeypatch.setattr(connections_module, "FRESH_SECONDS", fresh_seconds)
    calls: list[tuple[str, Any]] = []

    def note(**about: Any) -> None:
        calls.append((about["name"], about["error"]))

    redis_called.connect(note)
    try:
        write(alice)
        assert owed() == 1
        assert unread.count(alice) == 2
    finally:
        redis_called.disconnect(note)
    assert calls == [("announce", None), ("confirm", None), ("MGET", None)]
    assert owed() == 0
    assert_exact(alice)


def test_a_slow_statement_waits(ready, alice):
    with entries(HEAL_AFTER=0), transaction.atomic():
        write(alice)
    assert owed() == 0
    assert_exact(alice)


# --------------------------------------------------------------------------------------- processes, threads, greenlets
PROGRAM = """
import os, sys, django
django.setup()
from notifications_counter.buffer.client import client_of
from notifications_counter.models import Notification

for _ in range(2):
    Notification.objects.create(user_id=sys.argv[1], title="x")
[(connection, _)] = client_of("default")._connections._idle
assert connection.owed
eval(sys.argv[2])
"""


@pytest.mark.parametrize("end", ["None", "sys.exit()", "os._exit(0)"])
@pytest.mark.usefixtures("healed")
def test_a_process_that_ends_right_after_a_write(child_environment, alice, end):
    write(alice)
    assert_reads(alice)
    subprocess.run([sys.executable, "-c", PROGRAM, str(alice.pk), end], env=child_environment, check=True)
    assert unread.count(alice) == 3
    wait_until(lambda: buffer().status().intents == 0)  # what was sent arrives
    assert_exact(alice)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # pytest-xdist has threads
def test_a_fork_between_a_write_and_a_read(ready, alice):
    write(alice)
    assert owed() == 1

    def work() -> None:
        assert unread.count(alice) == 2
        write(alice)
        read_all_owed()
        assert unread.count(alice) == 3

    def end() -> None:
        read_all_owed()  # what its parent is owed is none of its business
        assert not RecountRequest.objects.exists()

    for child in (end, work):
        with fork(child):
            pass
    assert owed() == 1
    assert unread.count(alice) == 3
    assert owed() == 0
    assert_exact(alice)


# ------------------------------------------------------------------------------------------------------------- failures
def test_a_connection_that_is_lost_with_the_reply(ready, alice, server):
    write_then(server.pause, alice)
    server.kill()
    assert owed() == 1
    assert unread.count(alice) == 2
    assert RecountRequest.objects.count() == 1
    server.start()
    assert_heals(alice)


def test_a_read_without_the_database_after_a_lost_reply(ready, alice, monkeypatch, caplog):
    """Redis knows the count. The failure to request a recount is logged."""
    write(alice)
    arrive()
    connections_module.disconnect(client_of("default")._connections._idle[0][0])
    connections["default"].close()
    with monkeypatch.context() as patch, caplog.at_level("ERROR"):
        patch.setattr(type(connections["default"]), "get_new_connection", mock.Mock(side_effect=OperationalError))
        with sent() as commands:
            assert unread.count(alice) == 2
    assert commands == ["MGET"]
    assert "could not be sent" in caplog.text
    assert_exact(alice)


@FRESH_SECONDS
def test_a_connection_that_is_lost_after_the_reply(ready, alice, other, fresh_seconds, monkeypatch):
    monkeypatch.setattr(connections_module, "FRESH_SECONDS", fresh_seconds)
    write(alice)
    arrive()
    other.client_kill_filter(_type="normal", skipme=True)
    assert_reads(alice)
    assert not RecountRequest.objects.exists()
    assert_exact(alice)


REFUSALS: dict[str, tuple[Callable[[redis.Redis], Any], Callable[[redis.Redis], Any]]] = {
    "READONLY": (lambda r: r.replicaof("127.0.0.1", 1), lambda r: r.replicaof("NO", "ONE")),
    "WRONGTYPE": (lambda r: r.set(buffer().keys.pending, "no zset"), lambda r: None),
    "UNUSED": (lambda r: r.set(buffer().keys.ready, "retired"), lambda r: r.delete(buffer().keys.ready)),
}


@pytest.mark.parametrize("where", ["here", "in a transaction", "in another thread", "by the next write"])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal(ready, alice, bob, other, refusal, where):
    """Whoever notices asks for a recount; in a transaction, only once that is over, because it may be rolled back."""
    refuse, accept = REFUSALS[refusal]
    write_then(lambda: refuse(other), alice)
    assert not RecountRequest.objects.exists()
    if where == "in a transaction":
        with transaction.atomic():
            client_of("default").call("", "PING")  # SQLite counts rows here
            assert late_failures
            transaction.set_rollback(True)
        assert not RecountRequest.objects.exists()
        assert unread.count(alice) == 2
    elif where == "in another thread":
        with OtherConnection() as thread:
            assert thread.run(unread.count, alice) == 2
    elif where == "by the next write":
        write(bob)
    else:
        assert unread.count(alice) == 2
    assert RecountRequest.objects.filter(owner=str(alice.pk)).exists()
    assert not late_failures
    assert_reads(alice, bob)
    accept(other)
    unread.heal()
    assert_heals(alice, bob)


def test_a_refusal_that_is_being_noted_when_a_time_limit_strikes(ready, alice, other, monkeypatch):
    class TimeLimit(BaseException):
        pass

    def note(*_: Any) -> None:
        raise TimeLimit

    write_then(lambda: REFUSALS["WRONGTYPE"][0](other), alice)
    with monkeypatch.context() as patch:
        patch.setattr(client_of("default").troubles, "note", note)
        with pytest.raises(TimeLimit):
            unread.count(alice)
    assert unread.count(alice) == 2
    assert RecountRequest.objects.filter(owner=str(alice.pk)).exists()
    assert_heals(alice)  # deletes the foreign value


def test_memory_that_runs_out(ready, alice, other):
    """A confirmation needs none."""
    write_then(lambda: other.config_set("maxmemory", 1), alice)
    assert_reads(alice)
    other.config_set("maxmemory", 0)
    assert_heals(alice)
