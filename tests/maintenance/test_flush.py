"""The flusher on real servers: what reaches the database, in which order, and what is kept away from it."""

import logging
import threading
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import DataError, connection, transaction

from notifications_counter.buffer import Buffer
from notifications_counter.buffer.upkeep import BATCHES, Upkeep
from notifications_counter.counters import unread
from notifications_counter.exceptions import ConfigurationError, NotInTransaction
from notifications_counter.maintenance.flush import Flusher, FlushResult
from notifications_counter.models import CounterShard, Notification, UserNotificationsCount
from notifications_counter.sql import dialect
from notifications_counter.sql.target import Chunk, Target
from tests.support import OtherConnection, entries, make_keys

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.keys]

NOBODY = {
    "User": ["zwölf", "1.5", "01", "9" * 19, "9" * 30],
    "UUIDUser": ["zwölf", "12", "0123456789ABCDEF0123456789ABCDEF"],
    "StringUser": ["x" * 101, "a\0b"],
}
LARGEST = 2**31 - 1  # that unread_count can hold, where the database cares


@pytest.fixture
def buffer(healed: None) -> Buffer:
    return unread.buffers[0]


def apply(*args: Any) -> None:
    dialect(connection.vendor).apply(*args)


def notify(tallies: dict[Any, int]) -> None:
    keys = [key for key, number in tallies.items() for _ in range(number)]
    Notification.objects.bulk_create(Notification(user_id=key, title="x") for key in keys)


def stored() -> dict[Any, int]:
    return dict(UserNotificationsCount.objects.values_list("pk", "unread_count"))


def wait_in_redis(buffer: Buffer, deltas: dict[str, Any]) -> None:
    """Put owner keys and deltas among those to flush, whatever they are."""
    for owner_key, delta in deltas.items():
        buffer.client.call(buffer.keys.pending, "ZADD", buffer.keys.pending, delta, owner_key)


def rejected(buffer: Buffer) -> dict[str, str]:
    found = buffer.client.redis.hgetall(buffer.keys.rejected)
    return {owner_key.decode(): delta.decode() for owner_key, delta in found.items()}


def assert_exact(keys: list[Any]) -> None:
    rows = {key: Notification.objects.unread().for_user(key).count() for key in keys}
    assert unread.counts(keys) == rows
    assert {key: stored().get(key, 0) for key in keys} == rows
    assert unread.recount(dry_run=True).wrong == 0


# ----------------------------------------------------------------- cut, fetch, apply, finish
def test_new_users_get_a_row_and_known_ones_are_added_to(buffer):
    a, b, c = keys = make_keys(3)
    notify({a: 1, b: 2})
    first = unread.flush()
    assert (first.owners, first.net, first.batches, first.rejected) == (2, 3, 1, 0)
    assert stored() == {a: 1, b: 2}

    notify({b: 1, c: 5})
    assert Notification.objects.for_user(a).mark_as_read() == 1
    second = unread.flush()
    assert (second.owners, second.net, second.batches, second.rejected) == (3, 5, 1, 0)
    assert second.seconds > 0
    assert stored() == {a: 0, b: 3, c: 5}
    assert_exact(keys)


def test_many_chunks(healed):
    keys = make_keys(23)
    notify({key: 1 + i % 3 for i, key in enumerate(keys)})
    progress = []
    with entries(FLUSH_CHUNK=5):
        result = unread.flush(progress=lambda done, of: progress.append((done, of)))
    assert progress == [(5, 23), (10, 23), (15, 23), (20, 23), (23, 23)]
    assert (result.owners, result.net, result.batches) == (23, sum(1 + i % 3 for i in range(23)), 1)
    assert_exact(keys)


@pytest.mark.parametrize(("users", "chunk"), [(7, 5), (10, 10), (13, 20)])
def test_a_chunk_is_fetched_in_parts_that_do_not_hold_redis_for_long(healed, monkeypatch, users, chunk):
    monkeypatch.setattr("notifications_counter.buffer.upkeep.OWNERS_PER_CALL", 3)
    keys = make_keys(users)
    notify({key: 1 + i % 3 for i, key in enumerate(keys)})
    progress = []
    result = unread.flush(progress=lambda done, of: progress.append(done), chunk_size=chunk)
    assert (result.owners, progress[0], progress[-1]) == (users, min(users, chunk), users)
    assert_exact(keys)


def test_a_batch_is_applied_to_a_row_only_once(buffer):
    a, b = make_keys(2)
    target = Target(unread, connection)
    batch = BATCHES + 1
    apply(target, batch, Chunk([[a]], [3]))
    apply(target, batch, Chunk([[a, b]], [3, 4]))  # a stalled flusher brings it again, with more
    assert stored() == {a: 3, b: 4}
    apply(target, batch - 1, Chunk([[a, b]], [100, 100]))
    assert stored() == {a: 3, b: 4}
    before = UserNotificationsCount.objects.get(pk=a).updated_at
    apply(target, batch + 1, Chunk([[a, b]], [-1, 0]))
    assert stored() == {a: 2, b: 4}
    assert set(UserNotificationsCount.objects.values_list("flushed_batch", flat=True)) == {batch + 1}
    assert UserNotificationsCount.objects.get(pk=a).updated_at > before


@pytest.mark.parametrize("name", ["owner", "delta", "key", "value"])
def test_a_count_may_be_called_like_a_column_of_the_chunk(name):
    (key,) = make_keys(1)
    target = Target(unread, connection)
    target.table, target.count = "totals", connection.ops.quote_name(name)
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TEMPORARY TABLE totals ({target.owner} {unread.key_fields[0].rel_db_type(connection)} PRIMARY KEY,"
            f" {target.count} integer, {target.batch} bigint, {target.updated} timestamp)"
        )
        for batch in (1, 1, 2):
            apply(target, batch, Chunk([[key]], [3]))
        cursor.execute(f"SELECT {target.count} FROM totals")
        assert cursor.fetchall() in ([(6,)], ((6,),))
        cursor.execute("DROP TABLE totals")


# --------------------------------------------------------------------- unfinished batches
def test_an_unfinished_batch_comes_first(buffer):
    a, b = keys = make_keys(2)
    notify({a: 1})
    batch, size, _ = buffer.upkeep.cut(buffer.upkeep.status().epoch)  # by a flusher that died at once
    assert size == 1
    notify({a: 1, b: 1})
    assert unread.counts(keys) == {a: 2, b: 1}
    result = unread.flush()
    assert (result.owners, result.net, result.batches) == (3, 3, 2)
    assert UserNotificationsCount.objects.get(pk=a).flushed_batch == batch + 1
    assert_exact(keys)


def test_stopped_between_chunks_and_resumed(healed):
    keys = make_keys(9)
    notify(dict.fromkeys(keys, 2))
    done: list[int] = []
    with entries(FLUSH_CHUNK=2):
        result = unread.flush(progress=lambda n, of: done.append(n), stopped=lambda: len(done) == 2)
        assert done == [2, 4]
        assert (result.owners, result.batches) == (4, 0)
        assert len(stored()) == 4
        notify(dict.fromkeys(keys, 1))
        assert unread.counts(keys) == dict.fromkeys(keys, 3)
        assert unread.flush().batches == 2
    assert_exact(keys)


def test_stopped_before_anything(buffer):
    notify(dict.fromkeys(make_keys(2), 1))
    assert unread.flush(stopped=lambda: True).batches == 0
    assert buffer.upkeep.status().flushing == 0
    assert buffer.upkeep.status().pending == 2


def test_a_batch_of_another_epoch_is_refused_and_stays_in_redis(buffer, monkeypatch):
    """Between cut and apply another process notices that this Redis is not the one we left."""
    (key,) = make_keys(1)
    notify({key: 2})
    cut = Upkeep.cut

    def cut_and_raise(self: Upkeep, epoch: int, finished: int) -> Any:
        CounterShard.objects.filter(counter="unread").update(epoch=epoch + 1)
        return cut(self, epoch, finished)

    with monkeypatch.context() as patch:
        patch.setattr(Upkeep, "cut", cut_and_raise)
        result = unread.flush()
    assert (result.owners, result.batches) == (0, 0)
    assert stored() == {}
    assert buffer.upkeep.status().flushing == 1
    unread.heal()
    unread.flush()
    assert_exact([key])


def test_a_batch_that_another_flusher_finishes_meanwhile(buffer, monkeypatch):
    keys = make_keys(6)
    notify(dict.fromkeys(keys, 1))
    others: list[threading.Thread] = []

    def slow(name: str) -> Callable[..., Any]:
        method = getattr(Upkeep, name)

        def fetch_late(self: Upkeep, *args: Any) -> Any:
            if not others and args[1] > 0:  # the second chunk
                others.append(threading.Thread(target=finish_it))
                others[0].start()
                others[0].join()
            return method(self, *args)

        return fetch_late

    def finish_it() -> None:
        try:
            unread.flush()
            notify({keys[0]: 1})
        finally:
            connection.close()

    with entries(FLUSH_CHUNK=2), monkeypatch.context() as patch:
        patch.setattr(Upkeep, "fetch", slow("fetch"))
        patch.setattr(Upkeep, "fetch_joined", slow("fetch_joined"))
        unread.flush()
    assert len(others) == 1
    unread.flush()
    assert_exact(keys)


def test_the_number_of_an_earlier_batch_gets_nothing_and_drops_nothing(buffer):
    a, b = keys = make_keys(2)
    notify({a: 1})
    epoch = buffer.upkeep.status().epoch
    batch, *_ = buffer.upkeep.cut(epoch)
    unread.flush()
    notify({b: 1})
    cut = buffer.upkeep.cut(epoch)
    assert (cut.batch, cut.size) == (batch + 1, 1)
    assert buffer.upkeep.cut(epoch) == cut
    assert buffer.upkeep.fetch(batch, 0, 9) == []
    assert buffer.upkeep.fetch_joined(batch, 0, 9) is None
    assert not buffer.upkeep.finish(batch, "mark")
    assert buffer.upkeep.fetch(batch + 1, 0, 9) == [(str(b), "1")]
    assert buffer.upkeep.cut(epoch + 1) is None
    assert buffer.upkeep.cut(epoch, batch + 2) is None  # a Redis that is behind the database
    unread.flush()
    assert_exact(keys)


def test_a_new_counter_is_healed_first():
    """As in a test of a site, whose database starts empty."""
    (key,) = make_keys(1)
    notify({key: 3})
    with entries(DEPLOY_SECONDS=3600):
        assert unread.flush().batches == 0
        assert unread.count(key) == 3
    assert unread.flush().owners == 1
    assert stored() == {key: 3}
    assert_exact([key])


def test_a_redis_that_is_new_is_left_to_healing(redis_client):
    """It may be the wrong one."""
    (key,) = make_keys(1)
    unread.heal()
    redis_client.delete(*astuple(unread.buffers[0].keys))
    notify({key: 3})
    assert unread.flush().batches == 0
    assert stored() == {}
    assert unread.count(key) == 3
    unread.heal()
    assert unread.flush().net == 3
    assert_exact([key])


# ---------------------------------------------------------------------- what cannot be stored
def test_members_that_no_user_can_be_made_of(buffer, caplog):
    (key,) = make_keys(1)
    notify({key: 1})
    owner_keys = NOBODY[get_user_model().__name__]
    wait_in_redis(buffer, dict.fromkeys(owner_keys, 2))
    with caplog.at_level(logging.ERROR, "notifications_counter"):
        result = unread.flush()
    assert (result.owners, result.net, result.batches, result.rejected) == (1, 1, 1, len(owner_keys))
    assert len(caplog.records) == len(owner_keys)
    assert rejected(buffer) == dict.fromkeys(owner_keys, "2")
    assert stored() == {key: 1}
    unread.heal()
    unread.flush()
    assert buffer.upkeep.status().dirty == 0
    assert_exact([key])


@pytest.mark.parametrize("owner_key", [str(2**63), str(-(2**63) - 1), "1,5"])
def test_what_looks_like_the_keys_of_the_fast_path(buffer, owner_key):
    if get_user_model().__name__ != "User":
        pytest.skip("keys are no integers")
    keys = make_keys(2)
    notify(dict.fromkeys(keys, 1))
    wait_in_redis(buffer, {owner_key: 1})
    assert unread.flush().rejected == 1
    assert stored() == dict.fromkeys(keys, 1)
    unread.heal()
    assert buffer.upkeep.status().dirty == 0


@pytest.mark.parametrize("delta", [10**12, -(10**12), 1.5, 2.0**70, "inf"])
def test_deltas_that_no_column_holds(buffer, delta):
    sound, poisoned = keys = make_keys(2)
    notify({sound: 1, poisoned: 4})
    wait_in_redis(buffer, {str(poisoned): delta})
    result = unread.flush()
    assert (result.owners, result.rejected) == (1, 1)
    assert stored() == {sound: 1}
    assert list(rejected(buffer)) == [str(poisoned)]
    assert unread.count(poisoned) == 4  # it is dirty, so its rows are counted
    unread.heal()
    unread.flush()
    assert_exact(keys)


def flush_late(monkeypatch: pytest.MonkeyPatch) -> FlushResult:
    """Flush, but have another flusher write each chunk before."""
    apply = Flusher._apply

    def late(self: Flusher, *args: Any) -> bool:
        with monkeypatch.context() as patch, OtherConnection() as other:
            patch.setattr(Flusher, "_apply", apply)
            other.run(unread.flush)
        return apply(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Flusher, "_apply", late)
        return unread.flush()


def test_a_flush_does_not_count_what_another_has_written(buffer, monkeypatch):
    keys = make_keys(2)
    notify(dict.fromkeys(keys, 1))
    result = flush_late(monkeypatch)
    assert (result.owners, result.net, result.batches) == (0, 0, 0)
    assert_exact(keys)


def test_a_user_is_not_taken_off_the_recount_by_a_stalled_flusher(buffer, monkeypatch):
    """The other one has finished the batch, and sent the user whose delta no column holds to a recount."""
    (key,) = make_keys(1)
    notify({key: 3})
    wait_in_redis(buffer, {str(key): 10**12})
    assert flush_late(monkeypatch).batches == 0
    assert buffer.upkeep.status().dirty == 1
    unread.heal()
    unread.flush()
    assert_exact([key])


def test_a_delta_that_overflows_together_with_the_stored_value(buffer):
    keys = make_keys(9)
    full = keys[4]
    notify(dict.fromkeys(keys, 2))
    UserNotificationsCount.objects.create(pk=full, unread_count=LARGEST - 1)
    result = unread.flush()
    if connection.vendor == "sqlite":  # which stores any integer of 64 bits
        assert stored()[full] == LARGEST + 1
    else:
        assert (result.owners, result.net, result.rejected, result.batches) == (8, 16, 1, 1)
        assert rejected(buffer) == {str(full): "2"}
        assert unread.count(full) == 2
        unread.heal()
    assert unread.recount([full]).wrong == int(connection.vendor == "sqlite")
    unread.flush()
    assert_exact(keys)


# ------------------------------------------------------------------------- around the flusher
def test_the_fetching_thread_ends_when_apply_fails(healed, monkeypatch):
    keys = make_keys(6)
    notify(dict.fromkeys(keys, 1))

    def broken(*args: Any) -> None:
        raise RuntimeError("the database went away")

    with entries(FLUSH_CHUNK=2), monkeypatch.context() as patch:
        patch.setattr(dialect(connection.vendor), "apply", broken)
        with pytest.raises(RuntimeError, match="went away"):
            unread.flush()
    assert not [t for t in threading.enumerate() if t.name.startswith("fetch")]
    assert unread.counts(keys) == dict.fromkeys(keys, 1)
    unread.flush()
    assert_exact(keys)


def test_a_flush_inside_a_transaction_is_refused(buffer):
    """Its batch would be dropped from Redis before the database has committed it."""
    (key,) = make_keys(1)
    notify({key: 1})
    with transaction.atomic(), pytest.raises(NotInTransaction):
        unread.flush()
    transaction.set_autocommit(False)
    try:
        with pytest.raises(NotInTransaction):
            unread.flush()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert buffer.upkeep.status().pending == 1
    unread.flush()
    assert_exact([key])


def test_data_errors_are_data_errors(buffer):
    """What splits a chunk: without it, one bad row would stop every flush."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite stores any integer of 64 bits")
    (key,) = make_keys(1)
    target = Target(unread, connection)
    apply(target, BATCHES + 1, Chunk([[key]], [LARGEST]))
    with pytest.raises(DataError):
        apply(target, BATCHES + 2, Chunk([[key]], [LARGEST]))


@pytest.mark.once
def test_another_database_is_refused():
    with pytest.raises(ConfigurationError, match="not a database of 'oracle'"):
        dialect("oracle")


@pytest.mark.once
def test_a_chunk_of_nobody_is_refused():
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"chunk_size must be at least 1, not {size}"):
            unread.flush(chunk_size=size)
