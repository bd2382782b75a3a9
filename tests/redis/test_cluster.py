"""A counter that lives on one of the masters of a Redis Cluster."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import redis

import servers
from notifications_counter import events, timeseries
from notifications_counter.counters import unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import DoubtRequest, Notification
from notifications_counter.redis.client import client_of
from tests.support import CLUSTER, assert_exact, assert_heals, assert_reads, create, entries, stored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def nodes(use) -> Iterator[list[servers.Server]]:
    """The masters of the cluster that the cache is on. The counter is on the first."""
    with servers.redis_cluster() as nodes, entries(RETRY_AFTER=0):
        client = use(nodes[0].url, CONNECTION_FACTORY=CLUSTER)
        port = client.redis.get_node_from_key(unread.buffer.key("state")).port
        yield sorted(nodes, key=lambda node: node.port != port)
        client_of("default").redis.close()


@pytest.fixture
def users(make_user) -> list[Any]:
    return [make_user() for _ in range(40)]


def notify(users: list[Any]) -> None:
    Notification.objects.bulk_create(Notification(user=user, title="x") for user in users for _ in range(2))


def test_an_interrupt_before_a_reply(nodes, users):
    """Nobody takes that reply for the one to the next command."""
    unread.heal()
    notify(users[:1])
    unread.counts(users[:2])  # cached
    with redis.Redis.from_url(nodes[0].url) as server:
        server.client_pause(300)
        interrupted = mock.patch.object(redis.Connection, "read_response", side_effect=KeyboardInterrupt)
        with interrupted, pytest.raises(KeyboardInterrupt):
            unread.buffer.server()
        assert [unread.count(user) for user in users[:2] * 2] == [2, 0, 2, 0]


def test_a_user_who_may_not_ask_for_info(nodes, users):
    """Managed servers may forbid it. Then a failover may not be noticed, and all else works."""
    client = client_of("default")
    for node in client.redis.get_primaries():
        client.redis.execute_command("ACL SETUSER", "default", "-info", target_nodes=node)
    assert client.infos() == [{}]
    unread.heal()
    notify(users)
    assert_exact(*users)


def test_everything_is_exact(nodes, users):
    unread.heal()
    del vars(client_of("default"))["redis"]  # as in a process that does not know the nodes yet
    notify(users)
    assert not DoubtRequest.objects.exists()
    assert_reads(*users)
    assert unread.flush().owners == len(users)
    assert {stored(user) for user in users} == {2}
    Notification.objects.filter(user__in=users[:7]).mark_as_read()
    Notification.objects.filter(user=users[8]).first().delete()
    Notification.objects.create(user=users[0], title="x")
    unread.recount()
    events.record_event({"type": "test"})
    assert [event["type"] for event in events.oldest(after=0)] == ["test"]
    assert events.count_types() == {"test": 1}
    assert events.trim_events(max_length=0) == 1
    timeseries.update_counters({"hits": 2, "other": 1})
    assert timeseries.get_counter("hits", 86400)[0][1] == 2
    assert timeseries.clean_counters().counters == 21
    unread.flush()
    assert_exact(*users)
    for node in nodes:
        with redis.Redis.from_url(node.url) as client:
            assert not [n for n in client.info("errorstats") if n in ("errorstat_CROSSSLOT", "errorstat_MOVED")]


@contextmanager
def moving(nodes: list[servers.Server], first: str) -> Iterator[None]:
    """The slot of this key is handed over to another node: the key at first, and the others after the block."""
    with ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis.from_url(node.url, decode_responses=True)) for node in nodes]
        slot = clients[0].execute_command("CLUSTER KEYSLOT", first)
        clients.sort(key=lambda client: not client.execute_command("CLUSTER GETKEYSINSLOT", slot, 1))
        source, target, *_ = clients
        old, new = (client.execute_command("CLUSTER MYID") for client in (source, target))
        target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", old)
        source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", new)
        at = servers.HOST, target.connection_pool.connection_kwargs["port"]
        source.migrate(*at, first, 0, 5000)
        yield
        while keys := source.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
            source.migrate(*at, keys, 0, 5000)
        for client in (target, source, *clients[2:]):
            client.execute_command("CLUSTER SETSLOT", slot, "NODE", new)


def test_a_slot_that_moves(nodes, users):
    """No script runs where half of the keys are: what it wrote would be in the way of the others."""
    unread.heal()
    notify(users)
    assert_reads(*users)
    ids = [events.record_event({"type": "before"})]
    with moving(nodes, unread.buffer.key("ready")), moving(nodes, f"{events._log.base}:events"):
        create(users[0])
        with pytest.raises(BufferUnavailable):
            events.record_event({"type": "meanwhile"})
    ids.append(events.record_event({"type": "after"}))
    assert (ids, events.count_types()) == ([1, 2], {"before": 1, "after": 1})
    unread.heal()
    assert not DoubtRequest.objects.exists()
    assert_heals(*users)


def test_a_node_refuses_a_call_and_is_lost(nodes, users):
    """The first is no outage."""
    unread.heal()
    breaker = client_of("default").breaker
    with redis.Redis.from_url(nodes[0].url) as client:
        client.set(unread.buffer.key("intents"), "something else has written it")
    notify(users)
    assert_reads(*users)
    assert breaker.reason == ""
    nodes[0].stop()
    assert_reads(*users)
    assert breaker.down_since is not None


def test_a_node_does_not_answer(use, nodes, users):
    unread.heal()
    notify(users)
    client = use(nodes[0].url, CONNECTION_FACTORY=CLUSTER, SOCKET_TIMEOUT=0.5)
    assert_reads(*users)
    nodes[0].pause()
    with entries(RETRY_AFTER=3600):
        assert_reads(*users)
    nodes[0].resume()
    assert client.breaker.down_since is not None


def test_a_process_that_starts_while_the_cluster_is_down(use, users):
    """Nothing can be asked where the keys are."""
    use(f"redis://{servers.HOST}:{servers.free_port()}/0", CONNECTION_FACTORY=CLUSTER)
    notify(users)
    assert_reads(*users)
    assert DoubtRequest.objects.count() == len(users)
