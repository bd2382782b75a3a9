"""A counter whose shards live on the masters of a Redis Cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.utils.module_loading import import_string

import servers
from notifications_counter import events
from notifications_counter.buffer.client import client_of
from notifications_counter.counters import unread
from notifications_counter.models import Notification, RecountRequest
from tests.support import CLUSTER, assert_exact, assert_heals, assert_reads, entries, stored, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]

SHARDS = 6


@pytest.fixture
def nodes() -> Iterator[list[servers.Server]]:
    with servers.redis_cluster() as nodes:
        yield nodes


@pytest.fixture
def cluster(nodes, use) -> Iterator[redis.RedisCluster]:
    """The cache is on the cluster."""
    use(nodes[0].url, CONNECTION_FACTORY=CLUSTER)
    with entries(SHARDS=SHARDS, RETRY_AFTER=0):
        client = client_of("default").redis
        yield client
    client.close()


@pytest.fixture
def users(make_user) -> list[Any]:
    return [make_user() for _ in range(40)]


def notify(users: list[Any]) -> None:
    Notification.objects.bulk_create(Notification(user=user, title="x") for user in users for _ in range(2))


def test_everything_is_exact(cluster, nodes, users):
    unread.heal()
    del vars(client_of("default"))["redis"]  # as in a process that does not know the nodes yet
    notify(users)
    assert not RecountRequest.objects.exists()
    assert_reads(*users)
    assert unread.flush().owners == len(users)
    assert {stored(user) for user in users} == {2}
    Notification.objects.filter(user__in=users[:7]).mark_as_read()
    Notification.objects.filter(user=users[8]).first().delete()
    Notification.objects.create(user=users[0], title="x")
    unread.recount()
    events.record_event({"type": "test"})
    assert [event["type"] for event in events.after(0)] == ["test"]
    assert events.count_types() == events.count_types(scan=True) == {"test": 1}
    assert events.trim_events(max_length=0) == 1
    unread.flush()
    assert_exact(*users)
    for node in nodes:
        with redis.Redis.from_url(node.url) as client:
            assert client.dbsize()
            assert not [n for n in client.info("errorstats") if n in ("errorstat_CROSSSLOT", "errorstat_MOVED")]


def move_slots(nodes: list[servers.Server]) -> None:
    """Give every slot of the first master, with its keys, to the second: each key moves, no client is told."""
    first, second = (redis.Redis.from_url(node.url) for node in nodes[:2])
    with first, second:
        ids = [client.execute_command("CLUSTER MYID").decode() for client in (first, second)]
        slots = {first.execute_command("CLUSTER KEYSLOT", key) for key in first.scan_iter(count=1000)}
        assert slots
        for slot in slots:
            second.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[0])
            first.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[1])
            while keys := first.execute_command("CLUSTER GETKEYSINSLOT", slot, 100):
                first.execute_command("MIGRATE", servers.HOST, nodes[1].port, "", 0, 5000, "KEYS", *keys)
            for client in (second, first):
                client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[1])


def test_slots_that_move(cluster, nodes, users):
    """Their shards are now on a server with another run_id, so that they are recovered."""
    unread.heal()
    notify(users)
    unread.flush()
    notify(users)
    move_slots(nodes)
    assert_reads(*users)  # what is refused is answered by the rows
    notify(users)
    assert_reads(*users)
    unread.heal()
    unread.flush()
    assert_heals(*users)
    assert not RecountRequest.objects.exists()
    assert all(shard.is_ready for shard in unread.status())


def test_nodes_that_do_not_answer(nodes, cluster, users, use):
    """Neither for what they are asked, nor where the keys are."""
    unread.heal()
    notify(users)
    assert_reads(*users)
    client = use(nodes[0].url, CONNECTION_FACTORY=CLUSTER, SOCKET_TIMEOUT=0.2, SOCKET_CONNECT_TIMEOUT=0.2)
    assert_reads(*users)
    for node in nodes:
        node.pause()
    with entries(SHARDS=SHARDS, RETRY_AFTER=600):
        for _ in range(2):
            client.breaker.retry_at = 0.0  # as if the time had passed
            notify(users[:1])
            assert_reads(*users)
    for node in nodes:
        node.resume()
    use(nodes[0].url, CONNECTION_FACTORY=CLUSTER)
    assert_heals(*users)


def test_a_process_that_starts_while_the_cluster_is_down(use, users):
    """Nothing can be asked where the shards are."""
    use(f"redis://{servers.HOST}:{servers.free_port()}/0", CONNECTION_FACTORY=CLUSTER)
    with entries(SHARDS=SHARDS):
        notify(users)
        assert_reads(*users)
        assert RecountRequest.objects.count() == len(users)


def test_a_handler_of_a_signal_asks_while_its_thread_learns_of_the_nodes(monkeypatch):
    """There is one client, and no lock for which the thread would wait forever."""
    factory = import_string(CLUSTER)({})
    asked: list[object] = []

    def interrupted(**arguments: Any) -> object:
        if not asked:
            asked.append(None)
            asked[0] = factory.get_connection({"url": "redis://interrupted"})
        return object()

    monkeypatch.setattr(factory, "_clusters", {})
    monkeypatch.setattr(redis.RedisCluster, "from_url", interrupted)
    assert factory.get_connection({"url": "redis://interrupted"}) is asked[0]


def test_a_master_whose_replica_takes_over(nodes, cluster, users):
    with servers.redis("--cluster-enabled", "yes") as replica:
        first, second = redis.Redis.from_url(nodes[0].url), redis.Redis.from_url(replica.url)
        with first, second:
            master = first.execute_command("CLUSTER MYID").decode()
            second.execute_command("CLUSTER MEET", servers.HOST, nodes[0].port)
            wait_until(lambda: replicates(second, master))
            wait_until(lambda: all(seen_by(node, replica) for node in nodes))
            unread.heal()
            notify(users)
            unread.flush()
            assert_reads(*users)
            notify(users)
            wait_until(lambda: second.info("replication")["master_link_status"] == "up")
            first.execute_command("WAIT", 1, 5000)
            nodes[0].kill()
            second.execute_command("CLUSTER FAILOVER", "TAKEOVER")
            wait_until(lambda: all(seen_by(node, replica).get("slots") for node in nodes[1:]))
            wait_until(lambda: second.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        assert_reads(*users)
        notify(users)
        assert_reads(*users)
        unread.heal()
        unread.flush()
        assert_heals(*users)
        assert all(shard.is_ready for shard in unread.status())


def replicates(client: redis.Redis, master: str) -> bool:
    try:
        client.execute_command("CLUSTER REPLICATE", master)
    except redis.ResponseError:
        return False  # they have not met yet
    return True


def seen_by(node: servers.Server, other: servers.Server) -> dict[str, Any]:
    """What a node knows of another."""
    with redis.Redis.from_url(node.url) as client:
        return client.execute_command("CLUSTER NODES").get(f"{servers.HOST}:{other.port}", {})
