"""A heal takes no longer than it may: the flush that follows is not to wait."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection

from notifications_counter import tasks
from notifications_counter.buffer import Buffer
from notifications_counter.counters import unread
from notifications_counter.maintenance.flush import Flusher
from notifications_counter.maintenance.healing import Healer
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.reader import Reader
from tests.support import (
    OtherConnection,
    assert_exact,
    assert_heals,
    assert_reads,
    buffer,
    dirty_owners,
    entries,
    notify,
    stored,
    unheard,
    wait_until,
)

pytestmark = pytest.mark.django_db(transaction=True)


def dirty() -> int:
    return buffer().upkeep.status().dirty


@pytest.fixture
def users(healed, make_user) -> list[Any]:
    return [make_user() for _ in range(150)]


@pytest.fixture
def slow(monkeypatch) -> None:
    """Rows that take 20 ms a user to count."""
    rows = Reader.count_rows

    def slowly(self: Reader, keys: Any) -> dict[Any, int]:
        time.sleep(0.02 * len(keys))
        return rows(self, keys)

    monkeypatch.setattr(Reader, "count_rows", slowly)


def test_users_who_are_slow_to_count(users, slow):
    buffer().mark_dirty([str(user.pk) for user in users])
    unread.heal(0.5)  # all of them take three seconds
    assert 0 < dirty() < len(users)
    while left := dirty():
        unread.heal(0.5)
        assert dirty() < left


def test_a_heal_without_time_makes_progress(users):
    buffer().mark_dirty([str(user.pk) for user in users])
    assert unread.heal(0).checked == 10


def test_a_transaction_of_users_who_are_slow_to_count(users, slow):
    owner_keys = [str(user.pk) for user in users]
    buffer().announce("a part of a process that was killed", owner_keys)
    RecountRequest.objects.bulk_create(RecountRequest(counter="unread", owner=owner_key) for owner_key in owner_keys)
    with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0):
        unread.heal(0.5)
    assert 0 < dirty() < len(users)
    assert not RecountRequest.objects.exists()
    assert buffer().upkeep.status().intents == 0


def test_many_users(healed):
    """Who are gone, so that nothing but the number matters."""
    owner_keys = [str(n) for n in range(10**9, 10**9 + 20_000)]
    if unread.key_fields[0].get_internal_type() == "UUIDField":
        owner_keys = [f"00000000-0000-0000-0000-{n:012}" for n in range(20_000)]
    buffer().mark_dirty(owner_keys)
    looks = 0
    while left := dirty():
        unread.heal(0.2)
        assert dirty() < left
        looks += 1
    assert looks > 1


def test_two_flushers_share_users_in_doubt(users, monkeypatch):
    """While one of them counts, the other begins, and counts others."""
    buffer().mark_dirty([str(user.pk) for user in users])
    count_rows, this = Reader.count_rows, threading.current_thread()
    counted: dict[bool, list[Any]] = {True: [], False: []}
    with OtherConnection() as other:

        def count(self: Reader, keys: Any) -> dict[Any, int]:
            is_this = threading.current_thread() is this
            counted[is_this] += keys
            if is_this:
                other.run(unread.heal, 0)
            return count_rows(self, keys)

        monkeypatch.setattr(Reader, "count_rows", count)
        unread.heal()
    assert dirty() == 0
    assert all(counted.values())
    assert sorted(counted[True] + counted[False]) == sorted(user.pk for user in users)


@pytest.mark.once
def test_a_flusher_finds_users_behind_those_of_others(healed):
    owner_keys = {str(n) for n in range(3500)}
    buffer().mark_dirty(list(owner_keys))
    takings = [buffer().upkeep.take_dirty(0, number) for number in (1000, 1000, 10, 1500)]
    assert [len(taken) for taken in takings] == [1000, 1000, 10, 1490]
    assert {owner_key for taken in takings for owner_key in taken} == owner_keys


@pytest.mark.slow
def test_a_flusher_that_is_killed_while_it_counts(users, flusher):
    """Others leave its users alone until its leases are old. Meanwhile, reads count their rows."""
    unheard(Notification.objects.bulk_create, [Notification(user=user, title="x") for user in users])
    buffer().mark_dirty([str(user.pk) for user in users])
    child = flusher("after look")
    child.reached()
    child.kill()
    result = unread.heal()
    assert (result.checked, result.unfinished) == (len(users) - 10, False)
    assert dirty() == 10
    assert_reads(*users)
    with entries(HEAL_AFTER=1):
        wait_until(lambda: unread.heal().checked)
    assert dirty() == 0
    assert_heals(*users)


def test_users_who_are_active_do_not_keep_others_waiting(healed, alice, bob, monkeypatch):
    """They have waited longest, and so come first."""
    fix = Buffer.fix

    def busy(self: Buffer, epoch: int, lease: str, corrections: dict[str, int]) -> Any:
        if str(alice.pk) in corrections:
            Notification.objects.create(user=alice, title="busy")
        return fix(self, epoch, lease, corrections)

    notify(bob)
    buffer().mark_dirty([str(alice.pk)])
    buffer().mark_dirty([str(bob.pk)])
    monkeypatch.setattr(Buffer, "fix", busy)
    monkeypatch.setattr("notifications_counter.maintenance.healing.FIRST_SIZE", 1)
    assert not unread.heal().unfinished
    assert dirty_owners() == [str(alice.pk)]
    unread.flush()
    assert stored(bob) == 3
    monkeypatch.undo()
    assert_heals(alice, bob)


def test_a_transaction_that_began_before_the_clock_was_set_back(healed, alice, redis_client):
    """Its process was killed, and by the clock it begins tomorrow."""
    buffer().announce("part", [str(alice.pk)])
    unheard(Notification.objects.create, user=alice, title="x")
    part = json.loads(redis_client.hget(buffer().keys.intents, "part"))
    began = part["began"] + 86400
    tomorrow = json.dumps({**part, "began": began, "checked": began}, separators=(",", ":"))
    redis_client.hset(buffer().keys.intents, "part", tomorrow)
    assert buffer().upkeep.monitor(60).overdue == 1
    assert unread.heal().corrected == 1
    assert_reads(alice)
    [part] = buffer().upkeep.intents()
    assert part.began < began
    assert unread.heal().checked == 0  # from here on its age is that of any other
    with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0):
        unread.heal()
    assert buffer().upkeep.status().intents == 0


@contextmanager
def uncountable(user: Any) -> Iterator[None]:
    """This user's rows take longer to count than the database allows."""
    table = connection.ops.quote_name(Notification._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA slow")
        cursor.execute(  # so expensive that it is only called for rows that match all else
            "CREATE FUNCTION slow.wait() RETURNS bool LANGUAGE plpgsql COST 1000000"
            " AS 'BEGIN PERFORM pg_sleep(600); RETURN TRUE; END'"
        )
        cursor.execute(
            f"CREATE VIEW slow.{table} AS SELECT * FROM {table} WHERE user_id <> %s OR slow.wait()", [user.pk]
        )
        cursor.execute("SET search_path = slow, public; SET statement_timeout = 2000")
    yield
    with connection.cursor() as cursor:
        cursor.execute("SET search_path = public; SET statement_timeout = 0; DROP SCHEMA slow CASCADE")


FLUSHES = [tasks.flush, partial(call_command, "flush_counters", verbosity=0)]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="The view is PostgreSQL's.")
@pytest.mark.parametrize("flush", FLUSHES)
def test_a_user_who_cannot_be_counted_keeps_nobody_waiting(users, alice, bob, flush):
    unheard(Notification.objects.bulk_create, [Notification(user=user, title="x") for user in (alice, *users)])
    notify(alice, 1)
    Notification.objects.create(user=bob, title="x")
    for user in (alice, *users):
        buffer().mark_dirty([str(user.pk)])
    with uncountable(alice), pytest.raises((OperationalError, CommandError), match="statement timeout"):
        flush()
    assert dirty_owners() == [str(alice.pk)]
    assert [stored(user) for user in (bob, *users)] == [1] * 151
    flush()
    assert_heals(alice)


def test_a_database_that_can_count_nobody(users, alice, monkeypatch):
    """As while a migration locks the table. Each look may last as long as the database's time limit."""
    looks: list[Any] = []

    def fail(self: Reader, keys: Any) -> None:
        looks.append(keys)
        raise OperationalError("lock timeout")

    Notification.objects.create(user=alice, title="x")
    buffer().mark_dirty([str(user.pk) for user in users])
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "count_rows", fail)
        with pytest.raises(OperationalError):
            tasks.flush()
    assert len(looks) <= 11
    assert stored(alice) == 1
    assert dirty() == len(users)
    assert unread.heal().checked == len(users)


@pytest.mark.parametrize("flush", FLUSHES)
def test_a_connection_that_is_lost_in_a_heal(healed, monkeypatch, flush):
    """Its error says why, and that of the flush only that it is lost."""

    def fail(text: str, *args: Any) -> None:
        raise OperationalError(text)

    monkeypatch.setattr(Healer, "heal", partial(fail, "the server is shutting down"))
    monkeypatch.setattr(Flusher, "flush", partial(fail, "the connection is closed"))
    with pytest.raises((OperationalError, CommandError), match="shutting down"):
        flush()


def test_the_next_run_comes_back_to_a_user_who_was_in_flight(healed, alice):
    buffer().announce("part", [str(alice.pk)])
    buffer().mark_dirty([str(alice.pk)])
    assert unread.heal().postponed == 1
    buffer().confirm("part", {})
    unread.heal()
    assert_exact(alice)


def test_users_who_were_in_flight_when_redis_lost_all_intents(healed, alice, bob, redis_client):
    for name, user in ("p", alice), ("q", bob):
        buffer().announce(name, [str(user.pk)])
        redis_client.delete(buffer().keys.intents)
        unheard(Notification.objects.create, user=user, title="x")
        assert buffer().confirm(name, {str(user.pk): 1}) == 1
    buffer().announce("r", [str(bob.pk)])  # while somebody else is in flight, too
    unread.heal()
    assert_reads(alice)
    assert buffer().upkeep.status().dirty == 1
    buffer().confirm("r", {})
    assert_heals(alice, bob)
