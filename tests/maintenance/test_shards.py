"""A counter that is split over several shards of one Redis."""

import re
from collections import Counter as Tally
from collections.abc import Iterator
from typing import Any

import pytest

from notifications_counter.counters import unread
from notifications_counter.databases import identity
from notifications_counter.exceptions import DatabaseChanged
from notifications_counter.maintenance import healing, in_force
from notifications_counter.models import CounterShard, DatabaseId, Notification, RecountRequest
from notifications_counter.monitoring.status import look
from tests.maintenance.test_declarations import OtherRelease
from tests.support import assert_exact, assert_heals, assert_reads, entries, notify, stored, unheard

pytestmark = pytest.mark.django_db(transaction=True)

SHARDS = 4


@pytest.fixture(autouse=True)
def _shards():
    with entries(SHARDS=SHARDS):
        yield


@pytest.fixture
def users(make_user) -> list[Any]:
    return [make_user() for _ in range(24)]


def keys_of(users: list[Any]) -> list[Any]:
    return [user.pk for user in users]


def notify_all(users: list[Any]) -> None:
    Notification.objects.bulk_create(Notification(user=user, title="x") for user in users for _ in range(2))


def test_a_first_install_is_no_warning(users, caplog):
    unread.heal()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_users_are_spread_and_every_shard_is_flushed(healed, users):
    notify_all(users)
    waiting = [status.status.pending for status in unread.status()]
    spread = Tally(unread.buffer_of(str(user.pk)).keys.base for user in users)
    assert waiting == [spread[buffer.keys.base] for buffer in unread.buffers]
    assert sum(waiting) == 24
    assert sum(map(bool, waiting)) > 1
    result = unread.flush()
    assert (result.owners, result.net, result.batches) == (24, 48, sum(map(bool, waiting)))
    assert [stored(user) for user in users] == [2] * 24
    assert_exact(*users)


def test_members_of_a_release_with_other_owners_are_put_aside_once(healed, caplog):
    """There, other shards may have had them."""
    for buffer in unread.buffers:
        buffer.mark_dirty(['[7,\t"likes"]'])
    unread.heal(seconds=60)
    assert [status.status.dirty for status in unread.status()] == [0] * SHARDS
    caplog.clear()
    unread.heal()
    assert not caplog.records


def test_keys_of_a_shard_share_one_hash_tag(healed, users, redis_client):
    notify_all(users)
    unread.counts(keys_of(users))
    unread.recount(keys_of(users[:4]), dry_run=True)
    prefix = unread.buffers[0].keys.base.split(":")[0].lstrip("{")
    found = [key.decode() for key in redis_client.scan_iter(match=f"*{prefix}*", count=1000)]
    tags = Tally(re.match(r"\{([^{}]+)\}", key)[1] for key in found if ":unread:" in key)
    assert set(tags) == {f"{prefix}:unread:{shard}of{SHARDS}" for shard in range(SHARDS)}


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (4, 3)])
def test_another_number_of_shards_while_changes_wait(users, caplog, before, after):
    with entries(SHARDS=before):
        unread.heal()
        for _ in range(3):  # batch numbers grow, and must not start again
            notify_all(users)
            unread.flush()
        notify_all(users)
        unread.buffers[0].mark_dirty([str(users[0].pk)])
    with entries(SHARDS=after, DEPLOY_SECONDS=3600):
        assert unread.flush().batches == 0
        unread.heal()
        assert not any(shard.status.ready for shard in unread.status())
        assert_reads(*users)
        notify_all(users)
    caplog.clear()
    with entries(SHARDS=after):
        assert_reads(*users)
        assert_heals(*users)
        assert set(CounterShard.objects.values_list("shards", flat=True)) == {after}
        notify_all(users)
        assert_exact(*users)
    reasons = {record.reason for record in caplog.records if getattr(record, "event", "") == "recovery"}
    assert reasons == {"SHARDS has changed"}


@pytest.fixture
def old(child_environment) -> Iterator[OtherRelease]:
    """A process that goes on with one shard, in force until now, and counts as this one does."""
    process = OtherRelease(child_environment)
    process.run("setattr(unread, 'q', Q(read_at__isnull=True))")
    process.heal()
    yield process
    process.process.kill()
    process.process.communicate()


def test_processes_with_the_old_number_that_go_on(old, users):
    user = users[0]
    old.create(user, "x")
    assert old.count(user) == 1
    unread.heal()
    assert_reads(user)
    for number in (2, 3):
        old.create(user, "x")
        assert old.count(user) == number
        assert RecountRequest.objects.count() == 1
        old.heal()  # its flusher was replaced
        old.flush()
        assert unread.heal().checked == 1
        assert_reads(user)
    Notification.objects.create(user=user, title="x")
    assert old.count(user) == 4
    assert_heals(*users)


def test_processes_with_a_new_number_that_come_before_the_flusher(old, users):
    DatabaseId.objects.update(uid="0" * 32)  # not a test database
    identity._known.clear()
    old.heal()
    user = users[0]
    old.create(user, "x")
    assert old.count(user) == 1
    notify(user, 2)  # does not put the new number in force
    assert_reads(user)
    assert RecountRequest.objects.count() == 1
    old.heal()
    assert old.count(user) == 3
    (problem,) = look([unread]).problems()
    assert (problem.kind, problem.counter) == ("recovering", "unread")
    assert "KEY_PREFIX and SHARDS?" in problem.text
    unread.heal()
    assert look([unread]).problems() == []
    assert_heals(*users)


def test_a_change_that_is_taken_back_while_a_flusher_stands_still(old, users, monkeypatch):
    make_row = in_force.make_row

    def stand_still(counter, shard, **defaults):
        make_row(counter, shard, **defaults)
        if shard == SHARDS - 1:
            monkeypatch.undo()
            old.run("_last_heals.clear()")  # it is started again
            old.heal()

    monkeypatch.setattr(in_force, "make_row", stand_still)
    unread.heal()
    assert set(CounterShard.objects.values_list("shards", flat=True)) == {1}
    old.create(users[0], "x")
    old.heal()
    assert RecountRequest.objects.count() == 0
    assert old.count(users[0]) == 1
    unread.heal()
    assert set(CounterShard.objects.values_list("shards", flat=True)) == {SHARDS}
    assert_heals(*users)


def test_a_flusher_that_is_replaced_during_its_run_adds_no_row(old, users, monkeypatch):
    """Or the other one would take itself for replaced, and nobody would flush."""
    unread.heal()
    find_row = healing.shard_row

    def replaced(*args):
        monkeypatch.undo()
        old.run("_last_heals.clear()")  # it is started again
        old.heal()
        return find_row(*args)

    monkeypatch.setattr(healing, "shard_row", replaced)
    unread.heal()
    assert set(CounterShard.objects.values_list("shards", flat=True)) == {1}
    old.create(users[0], "x")
    old.heal()
    old.flush()
    assert stored(users[0]) == 1


def test_a_transaction_that_is_under_way_when_the_number_changes(users):
    user, owner_key = users[0], str(users[0].pk)
    with entries(SHARDS=1):
        unread.heal()
        (before,) = unread.buffers
        for part in ("part", "other"):
            before.announce(part, [owner_key])
    unread.heal()
    assert unread.buffer_of(owner_key).upkeep.status().intents == 2
    unheard(Notification.objects.create, user=user, title="x")  # then its process is killed
    for call in (
        lambda: before.confirm("other", {owner_key: 1}),
        lambda: before.mark_dirty([owner_key]),
        lambda: before.announce("late", [owner_key]),
    ):
        with pytest.raises(DatabaseChanged):
            call()
    assert_heals(user)


def test_back_to_the_old_number(users):
    """Cached totals of the first time must not come back to life."""
    for number in (1, SHARDS, 1):
        with entries(SHARDS=number):
            unread.heal()
            notify_all(users)
            assert_reads(*users)
            unread.flush()
            assert_exact(*users)


def test_back_to_the_old_number_at_once(users):
    with entries(SHARDS=1):
        unread.heal()
        notify_all(users)
        unread.flush()
        assert_reads(*users)
    with entries(SHARDS=SHARDS):
        unread.flush()
        notify(users[0])
        unread.heal()
        unread.flush()
    with entries(SHARDS=1):
        unread.heal()
        assert_reads(*users)
        assert_heals(*users)


def test_names_of_counters_may_differ_in_case_alone():
    """On MariaDB, too."""
    for name in ("tickets", "Tickets"):
        CounterShard.objects.create(counter=name, shard=0, shards=1)
        RecountRequest.objects.create(counter=name)
    assert CounterShard.objects.filter(counter="tickets").count() == 1
    assert RecountRequest.objects.filter(counter="tickets").count() == 1
