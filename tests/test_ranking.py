"""The largest counts: exact, in one statement, whatever waits in Redis."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.db.models import Count, Sum

from notifications_counter import ranking
from notifications_counter.counters import Counter, unread
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.sql.largest import Largest
from notifications_counter.writes.requests import mark_dirty
from tests.composite_owners.counters import points, unread_by_app, votes
from tests.composite_owners.models import CourseNotification, Vote
from tests.faults.history import History
from tests.support import PATIENCE, OtherConnection, assert_reads, entries, notify, sent, unheard
from tests.tasks.counters import visible_posts
from tests.tasks.models import Post, Topic

pytestmark = pytest.mark.django_db(transaction=True)


def by_rows(counter: Counter, number: int, **within: Any) -> list[tuple[Any, int]]:
    """The largest numbers of rows, or their sums, asked for without anything of the app but the condition."""
    names = counter.owner_attnames
    rows = counter.source._base_manager.filter(counter.q, **{f"{name}__isnull": False for name in names}, **within)
    counted = rows.values_list(*names).annotate(n=Sum(counter.sum, default=0) if counter.sum else Count("pk"))
    counted = counted.exclude(n=0).order_by("-n", *names)[:number]
    return [(tuple(owner) if counter.has_several_columns else owner[0], n) for *owner, n in counted]


def assert_largest(counter: Counter = unread, within: Any = None, **where: Any) -> None:
    for number in (1, 3, 100):
        assert counter.top(number, within) == by_rows(counter, number, **where)


@pytest.fixture
def users(healed: None, make_user: Callable[..., Any]) -> list[Any]:
    """With 1 to 5 unread notifications, all flushed."""
    users = [make_user() for _ in range(5)]
    for number, user in enumerate(users, start=1):
        notify(user, number)
    return users


@pytest.mark.keys
def test_the_largest_with_ties_in_the_order_of_keys(users, make_user):
    notify(make_user(), 5)
    make_user()
    found = unread.top(3)
    assert [count for _, count in found] == [5, 5, 4]
    assert_largest()


def test_what_it_costs(users, django_assert_num_queries):
    """Whatever waits."""
    Notification.objects.bulk_create(Notification(user=user, title="x") for user in users)
    mark_dirty([(unread, str(users[0].pk))])
    with sent() as commands, django_assert_num_queries(1):
        unread.top(3)
    assert commands == ["everything"]


@pytest.mark.keys
def test_what_waits_lifts_one_into_the_top_and_sinks_another(users, make_user):
    new = make_user()
    Notification.objects.bulk_create(Notification(user=new, title="x") for _ in range(7))
    Notification.objects.filter(user=users[4]).mark_as_read()
    assert unread.top(2) == [(new.pk, 7), (users[3].pk, 4)]
    assert_largest()


@pytest.mark.keys
def test_owners_in_doubt_are_counted(users):
    """Dirty ones, and those whose process was killed between its COMMIT and its message."""
    unread.buffers[0].announce("killed", [str(users[0].pk)])
    mark_dirty([(unread, str(users[1].pk))])
    for user in users[:2]:
        unheard(Notification.objects.bulk_create, [Notification(user=user, title="x") for _ in range(9)])
    assert unread.top(2) == [(users[1].pk, 11), (users[0].pk, 10)]
    assert_largest()


def test_in_a_transaction(users):
    with transaction.atomic():
        Notification.objects.bulk_create(Notification(user=users[0], title="x") for _ in range(9))
        assert unread.top(1) == [(users[0].pk, 10)]
        assert_largest()
        transaction.set_rollback(True)
    assert async_to_sync(unread.atop)(1) == [(users[4].pk, 5)]


def test_without_redis_rows_are_counted(users, unreachable_redis):
    assert_largest()


def test_during_a_recovery_rows_are_counted(users):
    unheard(UserNotificationsCount.objects.update, unread_count=7)
    unread.invalidate()
    assert_largest()


def test_if_too_much_waits_rows_are_counted(users, monkeypatch):
    monkeypatch.setattr(ranking, "MOST", 1)
    for user in users:
        Notification.objects.create(user=user, title="x")
    with sent() as commands:
        assert_largest()
    assert set(commands) == {"everything"}


@pytest.mark.parametrize("times", [1, 2])
def test_a_flush_in_between(users, monkeypatch, times):
    """The snapshot tells nothing of what is in a later batch."""
    of_totals, left = Largest.of_totals, [None] * times

    def late(self: Largest, *args: Any) -> Any:
        if left:
            left.pop()
            with OtherConnection() as other:
                other.run(Notification.objects.filter(user=users[4]).mark_as_read)
                other.run(Notification.objects.bulk_create, [Notification(user=users[4], title="x")] * len(left))
                other.run(unread.flush)
        return of_totals(self, *args)

    monkeypatch.setattr(Largest, "of_totals", late)
    assert_largest()


def test_a_count_below_zero_is_counted(users, redis_client):
    redis_client.zincrby(unread.buffers[0].keys.pending, -9, str(users[4].pk))
    assert_largest()
    assert_reads(users[4])


@pytest.mark.once
@pytest.mark.parametrize("number", [0, -1, True, 1.5, "3", None])
def test_what_is_no_number(number):
    with pytest.raises(ValueError, match="Pass the number of owners, not"):
        unread.top(number)


@pytest.mark.once
def test_within_is_for_owners_of_several_columns(users):
    with pytest.raises(ValueError, match="Owners of counter 'unread' have one column"):
        unread.top(3, users[0])


# ------------------------------------------------------------------------------------------------------ any history
def of_users(chance: random.Random, users: list[Any]) -> tuple[Counter, Callable[[], Any], dict[Any, dict[str, Any]]]:
    return unread, lambda: Notification(user=chance.choice(users), title="x"), {None: {}}


def of_topics(chance: random.Random, users: list[Any]) -> tuple[Counter, Callable[[], Any], dict[Any, dict[str, Any]]]:
    topics = [Topic.objects.create(id=name) for name in ("a", "B", "é", "Z", " x", 'q"', "10", "9")]
    return visible_posts, lambda: Post(topic=chance.choice(topics)), {None: {}}


def of_apps(chance: random.Random, users: list[Any]) -> tuple[Counter, Callable[[], Any], dict[Any, dict[str, Any]]]:
    def make() -> CourseNotification:
        return CourseNotification(user=chance.choice(users), app_name=chance.choice(["a", "B", "b", "é", "Z"]))

    return unread_by_app, make, {None: {}, users[0].pk: {"user": users[0]}}


def of_votes(chance: random.Random, users: list[Any]) -> tuple[Counter, Callable[[], Any], dict[Any, dict[str, Any]]]:
    def make() -> Vote:
        item, points = chance.choice([1, 10, 9]), chance.choice([None, -3, 0, 5])
        return Vote(shop=chance.choice([1, 2]), item=item, stars=chance.randrange(4), points=points)

    return votes, make, {None: {}, (1, 10): {"shop": 1, "item": 10}}


def of_points(chance: random.Random, users: list[Any]) -> tuple[Counter, Callable[[], Any], dict[Any, dict[str, Any]]]:
    return points, *of_votes(chance, users)[1:]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("about", [of_users, of_topics, of_apps, of_votes, of_points])
@pytest.mark.parametrize("seed", range(3))
def test_any_history(make_user, about, shards, seed):
    """Rows come and go, before and after flushes; some owners are in doubt."""
    chance = random.Random(seed)
    with entries(SHARDS=shards):
        counter, make, places = about(chance, [make_user() for _ in range(7)])
        counter.heal()
        objects = counter.source._base_manager
        for _ in range(12):
            objects.bulk_create(make() for _ in range(chance.randrange(6)))
            some = list(objects.values_list("pk", flat=True))
            objects.filter(pk__in=chance.sample(some, len(some) // 4)).delete()
            if chance.random() < 0.3:
                counter.flush()
            owners = [owner for owner, _ in by_rows(counter, 100)]
            for owner in chance.sample(owners, len(owners) // 4):
                doubted = str(counter.key(owner))
                if chance.random() < 0.5:
                    mark_dirty([(counter, doubted)])
                else:
                    counter.buffer_of(doubted).announce(f"intent {chance.random()}", [doubted])
                unheard(objects.bulk_create, [make_for(counter, make, owner)])
            for within, where in places.items():
                assert_largest(counter, within, **where)


def make_for(counter: Counter, make: Callable[[], Any], owner: Any) -> Any:
    """A row of an owner."""
    row = make()
    values = owner if counter.has_several_columns else (owner,)
    for name, value in zip(counter.owner_attnames, values, strict=True):
        setattr(row, name, value)
    return row


def test_while_others_write_and_flush(healed, make_user):
    """Each count is the number of rows at a moment between the start and the end of the read."""
    users, history = [make_user() for _ in range(4)], History()
    everyone = {user.pk: 0 for user in users}

    def write(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            user, number = chance.choice(users), chance.randrange(1, 4)
            new = [Notification(user=user, title="x") for _ in range(number)]
            history.write(lambda new=new, user=user: {user.pk: len(Notification.objects.bulk_create(new))})

    with OtherConnection() as writer, OtherConnection() as flusher:
        writing = writer.start(write, 1)
        while not writing.done():
            flushing = flusher.start(unread.flush)
            while not flushing.done():
                history.read(lambda: everyone | dict(unread.top(10)))
            flushing.result(PATIENCE)
        writing.result(PATIENCE)
    assert len(history.reads) > 10
    assert history.impossible() == []
