"""What is below the first column, from one key of Redis."""

from dataclasses import replace
from functools import partial

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.template import Context
from django.test.utils import CaptureQueriesContext
from django_redis import get_redis_connection

from notifications_counter.buffer import buffer as buffer_module
from notifications_counter.buffer.commands import OWNERS_PER_CALL
from notifications_counter.counters import Counter, unread
from notifications_counter.reader import Reader
from notifications_counter.signals import redis_called
from notifications_counter.templatetags.notifications_counter import show_badge
from tests.support import OtherConnection, buffer, redis_out_of_reach, sent, together, unheard

from .counters import unread_by_app, votes
from .models import CourseNotification, Vote
from .support import TEXTS, assert_counted

OWNER, MEMBER = (1, 1), "[1,\t1,\t5]"


def vote(number: int = 1, stars: int = 5) -> None:
    Vote.objects.bulk_create(Vote(shop=1, item=1, stars=stars) for _ in range(number))


def is_kept(counter: Counter = votes, group: str = "[1,\t1,\t") -> bool:
    return buffer(counter).group(group) is not None


def test_values_appear_and_vanish_by_themselves():
    assert votes.breakdown(OWNER) == {}
    vote(2)
    vote(stars=3)
    assert votes.breakdown(OWNER) == {5: 2, 3: 1}
    Vote.objects.filter(stars=3).update(hidden=True)
    assert votes.breakdown(OWNER) == {5: 2}
    Vote.objects.all().delete()
    assert votes.breakdown(OWNER) == {}
    assert is_kept()  # through all that
    vote()
    assert async_to_sync(votes.abreakdown)(list(OWNER)) == {5: 1}
    assert votes.breakdown((1, 11)) == votes.breakdown((11, 1)) == {}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Elsewhere a transaction caches nothing.")
def test_a_transaction_that_sees_old_rows_keeps_nothing():
    vote()
    with OtherConnection() as other, transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert Vote.objects.count() == 1
        other.run(vote)
        assert votes.breakdown(OWNER) == {5: 1}
    assert votes.breakdown(OWNER) == {5: 2}


def test_texts_are_told_apart(alice, bob):
    CourseNotification.objects.bulk_create(
        CourseNotification(user=alice, app_name=text) for i, text in enumerate(TEXTS) for _ in range(i + 1)
    )
    right = {text: i + 1 for i, text in enumerate(TEXTS)}
    for _ in range(2):
        assert unread_by_app.breakdown(alice) == unread_by_app.breakdown(alice.pk) == right
        assert unread_by_app.breakdown(bob) == {}
    CourseNotification.objects.filter(app_name="tab\there").delete()
    del right["tab\there"]
    assert unread_by_app.breakdown(alice) == right


def test_it_takes_two_round_trips_and_no_statement():
    vote()
    votes.breakdown(OWNER)
    with sent() as commands, CaptureQueriesContext(connection) as statements:
        assert votes.breakdown(OWNER) == {5: 1}
    assert (commands, len(statements)) == (["HGETALL", "GET"], 0)


def test_rows_of_many_are_counted_together():
    vote(2)
    Vote.objects.create(shop=1, item=2, stars=4)
    right = {(1, 1): {5: 2}, (1, 2): {4: 1}, (2, 2): {}}
    with CaptureQueriesContext(connection) as statements:
        assert Reader(votes).breakdowns(list(right)) == right
        assert is_kept(group="[1,\t2,\t")
        assert Reader(votes).breakdowns([*right, (3, 3)]) == {**right, (3, 3): {}}
    assert [("shop" in each["sql"], each["sql"].count(" OR ")) for each in statements] == [(True, 2), (True, 0)]


def test_many_values_are_kept_in_several_calls(alice):
    names = [f"app {i}" for i in range(2 * OWNERS_PER_CALL + 1)]
    CourseNotification.objects.bulk_create(CourseNotification(user=alice, app_name=name) for name in names)
    with sent() as commands:
        assert unread_by_app.breakdown(alice) == dict.fromkeys(names, 1)
    assert commands.count("keep") == 3
    with sent() as commands:
        assert unread_by_app.breakdown(alice) == dict.fromkeys(names, 1)
    assert len(commands) == 2


def test_what_a_process_has_kept_that_was_killed_before_the_last_call_is_dropped():
    vote()
    shard = buffer(votes)
    key = shard.keys.group(shard.upkeep.status().ready, "[1,\t1,\t")
    shard.client.call(key, "HSET", key, "9]", 3)
    for _ in range(2):
        assert votes.breakdown(OWNER) == {5: 1}
    assert is_kept()


def test_a_transaction_sees_its_own_changes_and_no_other_does():
    vote()
    votes.breakdown(OWNER)
    with transaction.atomic():
        vote(stars=4)
        assert votes.breakdown(OWNER) == {5: 1, 4: 1}
        assert votes.breakdown((1, 2)) == {}
        if connection.vendor != "sqlite":  # others wait for the whole database
            with OtherConnection() as other:
                assert other.run(votes.breakdown, OWNER) == {5: 1}
        transaction.set_rollback(True)
    assert votes.breakdown(OWNER) == {5: 1}


def test_what_a_transaction_reads_is_kept_for_nobody():
    with transaction.atomic():
        unheard(vote)
        votes.breakdown(OWNER)
        assert not is_kept()


def test_counts_of_which_one_is_in_flight_are_not_used():
    vote()
    votes.breakdown(OWNER)
    for intent in "pq":
        buffer(votes).announce(intent, [MEMBER])
    unheard(vote)  # committed, and not confirmed yet
    assert votes.breakdown(OWNER) == {5: 2}
    buffer(votes).confirm("q", {})  # rolled back
    assert votes.breakdown(OWNER) == {5: 2}
    buffer(votes).confirm("p", {MEMBER: 1})
    with sent() as commands:
        assert votes.breakdown(OWNER) == {5: 2}
    assert commands == ["HGETALL", "GET"]


def test_an_announcement_stops_counts_that_are_being_kept():
    shard, group = buffer(votes), "[1,\t1,\t"
    seen = shard.take_free_leases([group], "a")
    shard.announce("p", [MEMBER])
    assert not shard.keep_group(seen, "a", group, {"5]": 0})
    assert shard.take_free_leases([group], "a").owners[group].needs_rows
    shard.confirm("p", {MEMBER: 0})
    seen = shard.take_free_leases([group], "a")
    assert not shard.keep_group(replace(seen, epoch=7), "a", group, {"5]": 0})
    assert not is_kept()
    assert shard.keep_group(seen, "a", group, {"5]": 0})
    assert is_kept()


def test_counts_of_which_redis_loses_the_first_before_the_last_are_not_kept(monkeypatch):
    monkeypatch.setattr(buffer_module, "OWNERS_PER_CALL", 1)
    only, group = buffer(votes), "[1,\t1,\t"
    seen = only.take_free_leases([group], "a")
    key = only.keys.group(only.upkeep.status().ready, group)

    def evict(name, **about):
        if name == "keep":
            get_redis_connection("default").delete(key)

    redis_called.connect(evict)
    try:
        assert not only.keep_group(seen, "a", group, {"1]": 1, "2]": 2})
    finally:
        redis_called.disconnect(evict)
    assert not is_kept()
    votes.breakdown(OWNER)  # whose lease nobody holds up
    assert is_kept()


def test_counts_are_dropped_by_a_doubt_and_not_kept_as_long_as_it_lasts():
    vote()
    votes.breakdown(OWNER)
    buffer(votes).mark_dirty([MEMBER])
    unheard(vote)
    assert votes.breakdown(OWNER) == {5: 2}
    unheard(vote)
    assert votes.breakdown(OWNER) == {5: 3}
    assert votes.breakdown((2, 2)) == {}
    assert is_kept(group="[2,\t2,\t")  # nobody there is in doubt
    votes.heal()
    votes.breakdown(OWNER)
    assert is_kept()


def test_nothing_is_kept_while_many_are_in_doubt():
    buffer(votes).mark_dirty([f"[9,\t9,\t{i}]" for i in range(OWNERS_PER_CALL + 1)])
    votes.breakdown(OWNER)
    assert not is_kept()


def test_a_recount_drops_counts():
    vote()
    votes.breakdown(OWNER)
    unheard(vote)
    assert votes.recount([(1, 1, 5)]).corrected == 1
    assert votes.breakdown(OWNER) == {5: 2}


def test_a_count_below_zero_is_recounted():
    vote(2)
    votes.breakdown(OWNER)
    buffer(votes).announce("p", [MEMBER])
    buffer(votes).confirm("p", {MEMBER: -3})
    assert votes.breakdown(OWNER) == {5: 2}
    assert votes.status()[0].status.dirty == 1
    votes.heal()
    assert_counted(votes)


def test_a_recovery_is_another_beginning():
    vote()
    votes.breakdown(OWNER)
    votes.invalidate()
    unheard(vote)
    assert votes.breakdown(OWNER) == {5: 2}
    votes.heal()
    assert_counted(votes)


def test_without_redis_rows_are_counted():
    vote()
    votes.breakdown(OWNER)
    with redis_out_of_reach():
        vote()
        assert votes.breakdown(OWNER) == {5: 2}
    votes.heal()
    assert votes.breakdown(OWNER) == {5: 2}


def test_resp3(use):
    use(CONNECTION_POOL_KWARGS={"protocol": 3})
    vote()
    assert votes.breakdown(OWNER) == votes.breakdown(OWNER) == {5: 1}
    assert is_kept()


@pytest.mark.parametrize("owner", [None, 1, (1,), (1, 2, 3), ("x", 1)])
def test_what_is_no_owner_is_an_error(owner):
    with pytest.raises(ValueError, match="needs|not a primary key"):
        votes.breakdown(owner)


def test_an_owner_of_one_column_has_nothing_below_it(alice):
    with pytest.raises(ValueError, match="have one column, user. Use count"):
        unread.breakdown(alice)


def test_a_badge_without_one_of_its_columns_is_empty():
    for owner in ((1, None, 5), [None, 1, 5]):
        assert show_badge(Context(), counter="votes", owner=owner) == {}
    vote(2)
    assert show_badge(Context(), counter="votes", owner=[1, 1, 5])["count"] == "2"


def test_readers_and_writers_at_once():
    """Nobody waits for anybody, and nothing is recounted."""

    def write(stars: int) -> None:
        for i in range(15):
            vote(2, stars)
            Vote.objects.filter(stars=stars).order_by("pk")[i : i + 1].get().delete()

    def read() -> None:
        for _ in range(60):
            assert all(0 < count <= 30 for count in votes.breakdown(OWNER).values())

    together(partial(write, 1), partial(write, 2), read, read)
    assert votes.breakdown(OWNER) == {1: 15, 2: 15}
    assert_counted(votes)
