"""Who this Redis is: the server of the last recovery, with all that it held. Whatever shows that it is not starts an
epoch, in one run of the flusher."""

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import redis

import servers
from notifications_counter import checks
from notifications_counter.buffer.upkeep import BATCHES, NAMELESS
from notifications_counter.counters import unread
from notifications_counter.databases import identity
from notifications_counter.models import CounterShard, DatabaseId, Notification, RecountRequest
from notifications_counter.monitoring.status import look
from servers.relay import Relay
from tests.support import (
    assert_exact,
    assert_heals,
    assert_reads,
    buffer,
    entries,
    notify,
    sent,
    stored,
    wait_until,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def use(settings) -> Iterator[Callable[[str], None]]:
    """A function that puts the cache on another server."""
    before = settings.CACHES

    def put(location: str) -> None:
        settings.CACHES = {"default": {**before["default"], "LOCATION": location}}

    yield put
    settings.CACHES = before  # the keys of the test are deleted there


def follows(client: redis.Redis, port: int) -> None:
    """The server becomes a replica of another one, and waits until it has all of it."""
    client.replicaof(servers.HOST, port)
    wait_until(lambda: client.info("replication")["master_link_status"] == "up")


# ----------------------------------------------------------------------------------------------------------- the server
def test_a_failover_there_and_back_between_two_runs(use, alice):
    """The first server has its run_id still, and the second one's data: it lacks what was not replicated."""
    with servers.redis() as first, servers.redis(replica_of=first) as second:
        a, b = redis.Redis.from_url(first.url), redis.Redis.from_url(second.url)
        with a, b:
            use(first.url)
            unread.heal()
            notify(alice)
            assert_reads(alice)
            before = buffer().upkeep.server()
            wait_until(lambda: b.info("replication")["master_link_status"] == "up")
            a.execute_command("WAIT", 1, 5000)
            b.replicaof("NO", "ONE")  # it takes over, before it has heard of the next change
            Notification.objects.create(user=alice, title="x")
            follows(a, second.port)
            a.replicaof("NO", "ONE")
            assert buffer().upkeep.server().split()[0] == before.split()[0]
            assert unread.status()[0].is_incomplete
            assert_heals(alice)
            assert stored(alice) == 4
            assert CounterShard.objects.get(counter="unread").epoch == 2


def test_a_server_that_forbids_info(use, alice, caplog):
    with servers.redis() as server, redis.Redis.from_url(server.url) as client:
        client.acl_setuser("app", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"],
                           commands=["+@all", "-info"])  # fmt: skip
        use(server.url.replace("://", "://app:secret@"))
        assert_works_without_a_name(alice, client)
        assert "its run_id and master_replid" in warning()
        assert not [record for record in caplog.records if "Redis (cache" in record.message]


def test_a_server_that_has_no_run_id(use, alice):
    with servers.redis() as server, redis.Redis.from_url(server.url) as client:
        way = Way(server, {b"run_id:": b"no_one:", b"master_replid:": b"master_nobody:"})
        use(way.url)
        assert_works_without_a_name(alice, client)
        assert "its run_id and master_replid" in warning()
        way.replaced.popitem()
        assert buffer().upkeep.server() == client.info()["master_replid"]
        assert "its run_id, so" in warning()
        way.socket.close()


def warning() -> str:
    return {message.id: message.msg for message in checks.servers.check_redis_servers(databases=["default"])}[
        "notifications_counter.W005"
    ]


def assert_works_without_a_name(alice: Any, client: redis.Redis) -> None:
    """Everything is exact, and the number of a batch that goes back shows a rollback."""
    unread.heal()
    assert buffer().upkeep.server() == buffer().upkeep.status().server == NAMELESS
    notify(alice)
    assert_exact(alice)
    Notification.objects.create(user=alice, title="x")
    copies = [(key, client.dump(key)) for key in client.scan_iter(match=f"{buffer().keys.base}*")]
    notify(alice, 2)
    for key, copy in copies:
        if copy is not None:  # an intent that was confirmed just then
            client.restore(key, 0, copy, replace=True)
    assert unread.status()[0].epoch == 1
    assert_heals(alice)
    assert stored(alice) == 6
    assert unread.status()[0].epoch == 2


class Way(Relay):
    """On the way back, texts are replaced."""

    def __init__(self, server: servers.Server, replaced: dict[bytes, bytes]):
        self.replaced = replaced
        super().__init__(server)

    def pass_on(self, data: bytes, is_reply: bool, to: socket.socket) -> bool:
        for old, new in self.replaced.items() if is_reply else ():
            data = data.replace(old, new)
        return super().pass_on(data, is_reply, to)


def test_the_name_is_asked_before_the_recovery_and_before_its_end(alice):
    """Asked after it, it could be the name of a server that has just taken over, without what was recovered."""
    with sent() as commands:
        unread.heal()
    named = [command for command in commands if command in ("INFO", "recover", "complete")]
    assert named[-4:] == ["INFO", "recover", "INFO", "complete"]


# ------------------------------------------------------------------------------------------------------------- its keys
@pytest.mark.parametrize("traffic", [False, True], ids=["at rest", "under traffic"])
@pytest.mark.parametrize("key", ["pending", "flushing", "dirty"])
def test_a_key_that_is_lost_alone(healed, alice, bob, redis_client, key, traffic):
    notify(alice)
    Notification.objects.create(user=alice, title="x")
    if key == "flushing":
        buffer().upkeep.cut(1)
    if key == "dirty":
        buffer().mark_dirty([str(alice.pk)])
    assert redis_client.delete(getattr(buffer().keys, key)) == 1
    if traffic:
        Notification.objects.create(user=bob, title="x")
        buffer().mark_dirty([str(bob.pk)])
    unread.flush()
    assert_heals(alice, bob)
    assert stored(alice) == 4
    assert unread.status()[0].epoch == 2


def test_a_correction_does_not_hide_that_pending_is_lost(healed, alice, bob, redis_client):
    notify(alice)
    Notification.objects.create(user=alice, title="x")
    assert redis_client.delete(buffer().keys.pending) == 1
    unread.recount([bob, alice])
    assert buffer().upkeep.status().lost_key == "pending"
    assert_heals(alice, bob)


def test_dirty_users_are_counted(healed, alice, bob, redis_client):
    """However they get in and out."""
    owner_keys = [str(alice.pk), str(bob.pk), "nobody"]
    for _ in range(2):
        buffer().mark_dirty(owner_keys)
    assert buffer().upkeep.status().counted_dirty == 3
    unread.recount([alice])
    assert buffer().upkeep.status().counted_dirty == buffer().upkeep.status().dirty == 2
    unread.invalidate()
    assert buffer().upkeep.status().counted_dirty == 2
    unread.heal()
    assert buffer().upkeep.status().counted_dirty == buffer().upkeep.status().dirty == 0
    assert unread.status()[0].epoch == 2


def test_batches_of_an_epoch_that_has_not_begun_are_refused(healed, alice, redis_client):
    """Something else wrote the number, or the epoch has no more of them."""
    last = 2 * BATCHES - 1
    redis_client.hset(buffer().keys.state, "batch", last)
    CounterShard.objects.filter(counter="unread").update(finished=last)
    notify(alice)
    assert unread.flush().owners == 0
    assert_heals(alice)
    assert (unread.status()[0].epoch, stored(alice)) == (2, 3)


def test_a_key_prefix_that_is_changed_and_changed_back(healed, alice, settings, redis_client):
    notify(alice)
    assert_reads(alice)
    with entries(KEY_PREFIX=settings.NOTIFICATIONS_COUNTER["KEY_PREFIX"] + "-other"):
        unread.heal()
        notify(alice, 2)
        assert_reads(alice)
        redis_client.delete(*redis_client.keys(f"{buffer().keys.base}*"))
    assert_heals(alice)
    assert stored(alice) == 5


@pytest.fixture
def other_redis(use: Callable[[str], None], settings: Any) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Work as a process whose settings name another Redis."""
    here = settings.CACHES["default"]["LOCATION"]
    DatabaseId.objects.update(uid="0" * 32)  # not a test database
    with servers.redis() as server:

        @contextmanager
        def other() -> Iterator[None]:
            identity._known.clear()
            use(server.url)
            yield
            identity._known.clear()
            use(here)

        yield other


def test_writes_to_another_redis_that_nobody_flushes(other_redis, alice, caplog):
    """The web server has one URL, and the flusher another one; or the URL was changed and changed back."""
    identity._known.clear()
    unread.heal()
    notify(alice, 3)
    assert_reads(alice)
    with other_redis():
        notify(alice, 2)
        assert_reads(alice)
        notify(alice)
        assert_reads(alice)
        assert RecountRequest.objects.count() == 2
        assert [record.event for record in caplog.records if record.levelname == "WARNING"] == ["redis_behind"]
        (problem,) = look([unread]).problems()
        assert "Is flush_counters running, with the same CACHES" in problem.text
    unread.heal()
    unread.flush()
    assert_exact(alice)


@pytest.mark.parametrize("is_older", [False, True], ids=["", "than the first epoch"])
def test_an_address_that_leads_to_another_redis_for_a_while(use, alice, caplog, is_older):
    """As while two masters are alive. The process has used the first one before."""
    DatabaseId.objects.update(uid="0" * 32)  # not a test database
    with servers.redis() as first, servers.redis() as other:
        address = Relay(first)
        use(address.url)
        identity._known.clear()
        unread.heal()
        if not is_older:
            identity._known.clear()  # a process that starts now knows the epoch
        notify(alice, 3)
        assert_reads(alice)

        address.server = other
        buffer().client.pool("").disconnect()
        notify(alice, 2)
        assert_reads(alice)
        notify(alice)
        assert RecountRequest.objects.count() == 2
        assert [record.event for record in caplog.records if record.levelname == "WARNING"] == ["redis_behind"]

        address.server = first
        buffer().client.pool("").disconnect()
        unread.heal()
        unread.flush()
        assert_exact(alice)


def test_a_redis_of_an_earlier_epoch_is_not_read(other_redis, alice):
    """The URL is changed back, and the flusher has not run yet."""
    identity._known.clear()
    unread.heal()
    notify(alice, 3)
    assert_reads(alice)
    with other_redis():
        unread.heal()
        notify(alice, 2)
        unread.flush()
        assert_exact(alice)
        assert not RecountRequest.objects.exists()
    assert_reads(alice)
    assert_heals(alice)
