"""A Redis that is not the one that was left is recovered: by one process, and by the next one if that is killed. Those
who are read meanwhile do not wait for it."""

import threading
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from notifications_counter.buffer.several import totals_of
from notifications_counter.buffer.shard import LEASE
from notifications_counter.buffer.upkeep import BATCHES, Upkeep
from notifications_counter.counters import unread
from notifications_counter.declaration.primary_keys import as_bytes
from notifications_counter.maintenance import audit, healing, recount
from notifications_counter.models import CounterShard, Notification, RecountRequest, UserNotificationsCount
from notifications_counter.reader import Reader
from notifications_counter.writes.requests import request_recounts
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_exact,
    assert_heals,
    assert_reads,
    buffer,
    dirty_owners,
    entries,
    notify,
    sent,
    unheard,
)

pytestmark = pytest.mark.django_db(transaction=True)


def epochs() -> tuple[int, int]:
    """In the database and in Redis."""
    return CounterShard.objects.get(counter="unread").epoch, buffer().upkeep.status().epoch


def lose_epoch(redis_client: Any) -> None:
    redis_client.delete(buffer().keys.ready, buffer().keys.state)


def test_a_ready_that_is_lost_alone_starts_an_epoch(healed, alice, bob, redis_client):
    """Under the same one, the totals from before would be trusted again."""
    for user in (alice, bob):
        notify(user)
    assert_reads(alice, bob)
    redis_client.delete(buffer().keys.ready)
    assert unread.status()[0].is_incomplete
    Notification.objects.create(user=alice, title="x")
    unheard(Notification.objects.filter(user=bob)._raw_delete, "default")
    assert unread.flush().batches == 0
    assert_reads(alice, bob)
    unread.heal()
    assert epochs() == (2, 2)
    assert_exact(alice, bob)


def test_an_epoch_is_completed_once(healed, alice, redis_client):
    """Two processes may come to the end of one audit."""
    redis_client.delete(buffer().keys.ready)
    assert not buffer().upkeep.complete(1, buffer().upkeep.server())
    assert totals_of([(buffer(), as_bytes([alice.pk]))]) == [None]
    assert_heals(alice)
    assert not buffer().upkeep.complete(2, buffer().upkeep.server())


def test_two_healers_start_one_epoch(healed, alice, redis_client, monkeypatch):
    notify(alice)
    lose_epoch(redis_client)
    inside, go_on = threading.Event(), threading.Event()
    status, recover = Upkeep.status, Upkeep.recover
    seen: list[str] = []

    def slow(self: Upkeep, epoch: int, server: str) -> bool:
        inside.set()
        go_on.wait(PATIENCE)
        return recover(self, epoch, server)

    def noted(self: Upkeep) -> Any:
        seen.append(threading.current_thread().name)
        if inside.is_set() and seen.count(threading.current_thread().name) == 1:
            go_on.set()  # this one has seen the loss, too
        return status(self)

    monkeypatch.setattr(Upkeep, "recover", slow)
    monkeypatch.setattr(Upkeep, "status", noted)
    with OtherConnection() as one, OtherConnection() as two:
        first = one.start(unread.heal)
        assert inside.wait(PATIENCE)
        two.run(unread.heal)
        first.result(PATIENCE)
    monkeypatch.undo()
    assert epochs() == (2, 2)
    assert_heals(alice)  # of two that recount a user at once, one may leave it to the next


@pytest.mark.parametrize(
    ("step", "found", "left"),
    [
        ("before epoch", (1, 0), (2, 2)),
        ("after recover", (1, 2), (3, 3)),  # Redis knows of the epoch, the database does not
        ("after epoch", (2, 2), (2, 2)),
        ("before complete", (2, 2), (2, 2)),
    ],
)
def test_a_healer_that_is_killed_while_it_starts_an_epoch(healed, alice, redis_client, flusher, step, found, left):
    notify(alice)
    lose_epoch(redis_client)
    child = flusher(step)
    child.reached()
    child.kill()
    assert epochs() == found
    Notification.objects.create(user=alice, title="x")
    assert_reads(alice)
    unread.heal()
    assert epochs() == left
    assert_exact(alice)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of two users."""
    monkeypatch.setattr(recount, "PAGE", 2)
    monkeypatch.setattr(recount, "LARGE_PAGE", 2)


@pytest.fixture
def many(healed: None, make_user: Any) -> list[Any]:
    """Users of whom everyone is to be recounted."""
    users = [make_user() for _ in range(9)]
    unheard(Notification.objects.bulk_create, [Notification(user=user, title="x") for user in users])
    unread.invalidate()
    return users


@pytest.mark.keys
def test_two_share_an_audit(small_pages, many):
    """The second one takes pages between those of the first one, which completes the recovery."""
    others: list[int] = []

    def second(checked: int) -> None:
        with OtherConnection() as other:
            others.append(other.run(unread.heal, 0).checked)

    assert unread.heal(progress=second).checked + sum(others) == 9
    assert others[:2] == [2, 2]
    assert not unread.status()[0].is_incomplete
    assert_exact(*many)


@pytest.mark.keys
def test_a_page_whose_flusher_was_killed_is_taken_over(small_pages, many, monkeypatch):
    def die(self: Any, page: Any, *args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(recount.Recounter, "recount_page", die)
        with pytest.raises(KeyboardInterrupt):
            unread.heal()
    assert unread.heal().checked == 7
    assert unread.status()[0].is_incomplete  # it may be alive, and only slow
    with entries(HEAL_AFTER=0):
        assert unread.heal().checked == 2
    assert not unread.status()[0].is_incomplete
    assert_exact(*many)


@pytest.mark.keys
def test_an_audit_that_another_completes_ends(small_pages, many, monkeypatch):
    """The second one takes over the page of the first one, which does not begin from the start."""
    monkeypatch.setattr(audit, "TAKE_OVER_SECONDS", 0)
    others: list[int] = []

    def second(checked: int) -> None:
        if not others:
            with OtherConnection() as other:
                others.append(other.run(unread.heal).checked)

    assert unread.heal(progress=second).checked == 2
    assert others == [9]
    assert not unread.status()[0].is_incomplete
    assert_exact(*many)


@pytest.mark.keys
def test_an_audit_lets_others_work_in_between(small_pages, many):
    """A heal ends with its time, and says that there is more to do."""
    heals = [unread.heal(0)]
    while heals[-1].unfinished:
        heals.append(unread.heal(0))
        assert len(heals) < 9
    assert [heal.checked for heal in heals] == [2, 2, 2, 2, 1]
    assert not unread.status()[0].is_incomplete
    assert_exact(*many)


@pytest.mark.keys
def test_who_is_requested_is_recounted_once_in_an_audit(many, monkeypatch):
    """Several requests of each, in pages of their own; all are read first, however little time there is."""
    monkeypatch.setattr(healing, "LARGE_PAGE", 4)
    request_recounts("default", [(unread, str(user.pk)) for user in many * 3])
    checked, unfinished = 0, True
    while unfinished:
        result = unread.heal(0)
        checked, unfinished = checked + result.checked, result.unfinished
    assert checked == 9
    assert not RecountRequest.objects.exists()
    assert_exact(*many)


@pytest.mark.once
def test_an_epoch_begins_without_a_look_at_the_totals(healed, alice):
    """There may be millions. The audit looks at them, a page at a time."""
    notify(alice)
    with CaptureQueriesContext(connection) as queries:
        unread.invalidate()
    assert epochs() == (2, 2)
    assert not [query["sql"] for query in queries if UserNotificationsCount._meta.db_table in query["sql"]]


@pytest.mark.keys
def test_totals_from_elsewhere_with_batches_of_several_epochs(small_pages, make_user):
    """The last of them are not on the first page of an audit, and belong to owners without rows."""
    users = sorted((make_user() for _ in range(9)), key=lambda user: str(user.pk))
    for i, user in enumerate(users):
        unheard(UserNotificationsCount.objects.create, pk=user.pk, flushed_batch=i // 3 * 5 * BATCHES + 7)
    assert_heals()
    assert epochs() == (11, 11)
    for user in users:
        Notification.objects.create(user=user, title="x")
    unread.flush()
    assert_exact(*users)


# --------------------------------------------------------------------------------------------------------- read repair
@pytest.fixture
def recovering(healed: None, alice: Any, bob: Any, make_user: Any) -> None:
    """A recovery has begun, and has counted nobody. One row of each user is known to nobody."""
    for user in (alice, bob):
        notify(user)
        unread.count(user)
        unheard(Notification.objects.create, user=user, title="unheard")
    unread.invalidate()
    unread.count(make_user())  # this process knows of the recovery


@pytest.mark.usefixtures("recovering")
def test_the_first_read_counts_the_rows_and_later_ones_cost_a_command(alice, bob, django_assert_num_queries):
    with django_assert_num_queries(2), sent() as commands:
        assert unread.count(alice) == 4
    assert commands == ["MGET", "snapshot", "fix"]
    with django_assert_num_queries(0), sent() as commands:
        assert unread.count(alice) == 4
        assert unread.counts([alice]) == {alice.pk: 4}
    assert commands == ["MGET", "MGET"]
    assert unread.status()[0].is_incomplete
    assert_exact(alice, bob)


@pytest.mark.usefixtures("recovering")
def test_writes_are_added_to_a_repaired_user_and_others_are_recounted(alice, bob, django_assert_num_queries):
    unread.count(alice)
    for user in (alice, bob):
        Notification.objects.create(user=user, title="x")
    with django_assert_num_queries(0):
        assert unread.count(alice) == 5
    assert dirty_owners() == [str(bob.pk)]
    assert unread.count(bob) == 5
    assert_exact(alice, bob)


@pytest.mark.usefixtures("recovering")
def test_repaired_users_stay_so_when_the_recovery_is_complete(alice, bob, django_assert_num_queries):
    unread.count(alice)
    unread.flush()
    unread.heal()
    assert not unread.status()[0].is_incomplete
    with django_assert_num_queries(0):
        assert unread.count(alice) == 4
    Notification.objects.create(user=alice, title="x")
    with django_assert_num_queries(0):
        assert unread.count(alice) == 5
    assert_exact(alice, bob)


@pytest.mark.usefixtures("recovering")
def test_a_reader_leaves_the_leases_of_a_recount_alone(alice, redis_client):
    """Or a busy user would never be recounted."""
    snapshot = buffer().take_leases([str(alice.pk)], "a recount")
    assert unread.count(alice) == 4
    assert totals_of([(buffer(), as_bytes([alice.pk]))]) == [[None]]
    assert 0 < redis_client.ttl(buffer().keys.leases) <= LEASE
    assert buffer().fix(snapshot.epoch, "a recount", {str(alice.pk): 1}) == {str(alice.pk): True}
    assert not redis_client.exists(buffer().keys.leases)
    assert_heals(alice)


@pytest.mark.usefixtures("recovering")
def test_a_change_during_the_count_of_a_repair(alice, monkeypatch):
    """The count may include it or not, so nobody is repaired, and the user is recounted."""
    count_rows = Reader.count_rows

    def change_after(self: Reader, keys: Any) -> Any:
        monkeypatch.setattr(Reader, "count_rows", count_rows)
        found = count_rows(self, keys)
        with OtherConnection() as other:
            other.run(Notification.objects.create, user=alice, title="x")
        return found

    monkeypatch.setattr(Reader, "count_rows", change_after)
    assert unread.count(alice) == 4
    assert unread.count(alice) == 5
    assert_exact(alice)


@pytest.mark.usefixtures("recovering")
def test_nobody_is_repaired_by_what_a_transaction_sees(alice, bob):
    """Its own changes may be rolled back."""
    with transaction.atomic():
        objects = Notification.objects.filter(user=bob)
        unheard(objects._raw_delete, "default")
        assert unread.count(bob) == 0
        transaction.set_rollback(True)
    assert unread.count(bob) == 4
    assert_exact(alice, bob)


@pytest.mark.usefixtures("recovering")
@pytest.mark.skipif(connection.vendor != "postgresql", reason="Only there it is known whether anything was written.")
def test_a_transaction_that_has_written_nothing_repairs(alice, django_assert_num_queries):
    with OtherConnection() as other:  # a test before may have set the isolation of this one
        assert other.run(transaction.atomic(unread.count), alice) == 4
    with django_assert_num_queries(0):
        assert unread.count(alice) == 4
