"""Walks over everyone: at full speed after a loss, on demand, and gently, once in a while. Whatever is wrong is found
and corrected, whatever is right is left alone."""

import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.utils import timezone

from notifications_counter.buffer.types import EVERYONE
from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.models import CounterState, DoubtRequest, Notification, UserNotificationsCount
from notifications_counter.monitoring.status import read_counter
from notifications_counter.signals import event_reported
from notifications_counter.upkeep import walk
from notifications_counter.upkeep.findings import Difference, Result
from notifications_counter.upkeep.walk import Walker
from tests.support import (
    PATIENCE,
    announce,
    assert_exact,
    assert_heals,
    assert_reads,
    buffer,
    confirm,
    create,
    doubted,
    entries,
    is_ready,
    notify,
    sent,
    total_key,
    unheard,
)

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 86400


def state() -> CounterState:
    return CounterState.objects.get(counter="unread")


def create_unheard(*users: Any) -> None:
    """As raw SQL, or a trigger."""
    keys = [getattr(user, "pk", user) for user in users]
    unheard(Notification.objects.bulk_create, [Notification(user_id=key, title="unheard") for key in keys])


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of two owners."""
    monkeypatch.setattr(walk, "OWNERS_PER_CALL", 2)


@pytest.fixture
def users(healed: None, small_pages: None, make_user: Any) -> list[Any]:
    """Nine users with a notification each, in the order of keys."""
    for _ in range(9):
        notify(make_user(), 1)
    return list(get_user_model().objects.order_by("pk"))


@pytest.fixture
def restored(users: list[Any]) -> list[Any]:
    """A generation that has just begun, and one notification of each that nobody has heard of."""
    create_unheard(*users)
    unread.invalidate()
    return users


# -------------------------------------------------------------------------------------------------------- at full speed
def test_a_walk_lets_others_work_in_between(restored, caplog):
    """A heal ends with its time, and says that there is more to do. Reads never wait for it."""
    caplog.set_level(logging.INFO, "notifications_counter")
    heals = [unread.heal(0)]
    assert read_counter(unread).phase == "walking"
    assert_reads(*restored)
    while heals[-1].unfinished:
        heals.append(unread.heal(0))
        assert len(heals) < 9
    assert [heal.owners for heal in heals] == [2, 2, 2, 2, 1, 0][: len(heals)]
    assert read_counter(unread).phase == "normal"
    assert [r.event for r in caplog.records if r.name == "notifications_counter"][-1] == "walked"
    assert unread.flush() == Result(9)
    assert_exact(*restored)


def test_a_walk_at_full_speed_waits_for_no_clock(restored):
    """The flusher of the last page has a clock that is ahead, or was."""
    CounterState.objects.update(walk_resumes_at=timezone.now() + timedelta(hours=1))
    with entries(WALK_SECONDS=DAY):
        assert unread.heal(PATIENCE).owners == 9
    assert_heals(*restored)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many owners were compared so far, as each page says."""
    found: list[int] = []

    def note(event: str, fields: Any, **_: Any) -> None:
        found.extend([fields["owners"]] if event == "compared" else [])

    event_reported.connect(note)
    yield found
    event_reported.disconnect(note)


def test_a_site_may_follow_each_page(restored, compared):
    unread.heal(PATIENCE)
    assert compared == [2, 4, 6, 8, 9]
    compared.clear()
    unread.recount()
    assert compared == [2, 4, 6, 8, 9]


# --------------------------------------------------------------------------------------------------------------- gently
class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.seconds: float = int(time.time()) + 2 * DAY

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


@pytest.fixture
def clock(users: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two days after everyone was compared, counting and comparing a page takes a second."""
    clock = Clock()

    def slow(work: Callable[..., Any]) -> Callable[..., Any]:
        def slower(*args: Any) -> Any:
            clock.seconds += 0.5
            return work(*args)

        return slower

    unread.flush()
    monkeypatch.setattr(walk, "time", clock)
    monkeypatch.setattr(walk, "timezone", clock)
    monkeypatch.setattr("notifications_counter.upkeep.generations.timezone", clock)
    for name in ("_page", "compare_page"):
        monkeypatch.setattr(Walker, name, slow(getattr(Walker, name)))
    with entries(WALK_SECONDS=DAY):
        yield clock


def test_a_gentle_walk_compares_a_page_in_a_heal_and_rests(users, clock, compared):
    """It takes a twentieth of the time at most, and comes once in WALK_SECONDS. What is wrong is reported, and what is
    right keeps a cached total."""
    unread.counts(users)
    create_unheard(users[3])
    unheard(UserNotificationsCount.objects.filter(pk=users[7].pk).update, unread_count=6)
    unheard(UserNotificationsCount.objects.filter(pk=users[8].pk)._raw_delete, "default")
    began, found, seen = clock.seconds, list[int](), list[Difference]()
    while not found or state().walk_speed:
        healed = unread.heal()
        found.append(healed.owners)
        seen += healed.differences
        clock.seconds += 5
        assert len(found) < 100
    assert found == [2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]
    assert compared == [2, 2, 2, 2, 1]
    assert seen == [
        Difference(users[3].pk, 1, 2),
        Difference(users[7].pk, 6, 1),
        Difference(users[8].pk, 0, 1),
    ]
    assert read_counter(unread).wrong == 3
    with sent() as commands:
        unread.counts([user for i, user in enumerate(users) if i not in (3, 7, 8)])
    assert commands == ["MGET"]
    unread.flush()
    assert state().walk_began_at.timestamp() == began
    clock.seconds = began + DAY - 1
    assert unread.heal() == Result()
    clock.seconds = began + DAY
    assert unread.heal() == Result(2)
    with entries(WALK_SECONDS=0):
        clock.seconds += 10 * DAY
        assert state().walk_speed
    clock.seconds -= 20 * DAY  # the clock is set back
    assert unread.heal() == Result(2)


# ------------------------------------------------------------------------------------------------------------ on demand
WRONG: dict[str, Callable[[Any, Any], Any]] = {
    "stored": lambda redis, user: unheard(UserNotificationsCount.objects.filter(pk=user.pk).update, unread_count=-7),
    "not stored": lambda redis, user: unheard(UserNotificationsCount.objects.filter(pk=user.pk)._raw_delete, "default"),
    "cached": lambda redis, user: redis.set(total_key(user), 9),
    "rows created": lambda redis, user: create_unheard(user, user),
}


@pytest.mark.keys
@pytest.mark.parametrize("everyone", [False, True], ids=["some", "everyone"])
def test_a_recount_finds_and_corrects(healed, alice, make_user, redis_client, everyone):
    users = [make_user() for _ in WRONG]
    for user in (alice, *users):
        notify(user)
        unread.count(user)
    for user, spoil in zip(users, WRONG.values(), strict=True):
        spoil(redis_client, user)
    owners = None if everyone else [*users, users[0]]
    result = Result(len(users) + everyone, wrong=len(users))

    def everything() -> Any:
        keys = redis_client.scan_iter(match=f"{{{options.KEY_PREFIX}:*")
        totals = UserNotificationsCount.objects.order_by("pk")
        return {key: redis_client.dump(key) for key in keys}, list(totals.values()), list(CounterState.objects.values())

    before = everything()
    tried = unread.recount(owners, dry_run=True)
    assert (tried, everything()) == (result, before)
    done = unread.recount(owners)
    assert (done, done.differences) == (result, tried.differences)
    assert sorted(doubted()) == sorted(str(user.pk) for user in users)
    warned = len(users) if everyone else 0  # the site has named the others, as after raw SQL
    assert read_counter(unread).wrong == warned
    assert sorted(found.owner for found in done.differences) == sorted(user.pk for user in users)
    assert_reads(alice, *users)
    assert unread.flush() == Result(len(users))
    assert_exact(alice, *users, wrong=warned)


@pytest.mark.parametrize("everyone", [False, True], ids=["one", "everyone"])
def test_a_commit_that_is_on_its_way_is_not_reported(healed, alice, everyone):
    """The database has the row, and Redis does not know yet; or it is known that it has missed one."""
    notify(alice)
    owners = None if everyone else [alice]
    announce(buffer(), "other", [str(alice.pk)])
    create_unheard(alice)
    for dry_run in (True, False):
        assert unread.recount(owners, dry_run) == Result(1)
    assert_reads(alice)
    confirm(buffer(), "other", {str(alice.pk): 1})
    assert unread.recount(owners) == Result(1)
    unread.flush()
    create_unheard(alice)
    DoubtRequest.objects.create(counter="unread", owner_key=str(alice.pk))
    assert unread.recount(owners) == Result(1)
    DoubtRequest.objects.all().delete()
    unread.flush()
    assert_exact(alice)


def test_a_commit_that_may_change_everyone_is_not_reported(healed, alice):
    notify(alice)
    announce(buffer(), "other", [EVERYONE])
    unread.heal()
    create_unheard(alice)
    assert unread.recount([alice]) == Result(1)
    confirm(buffer(), "other", {EVERYONE: None})
    assert_heals(alice)


def test_a_count_that_waits_to_be_stored_is_not_reported(healed, alice):
    """For a flush, or for the end of one that has cut it."""
    create(alice)
    for _ in range(2):
        assert unread.recount([alice]) == Result(1)
        buffer().cut(state().mark, "", "another's")
    assert buffer().status().flushing == 1
    assert_exact(alice)


def test_a_recount_ends_after_a_page_when_its_time_is_over(users):
    create_unheard(*users)
    assert unread.recount(seconds=0) == Result(2, 2, unfinished=True)
    assert unread.recount() == Result(9, 7)
    assert_exact(*users, in_doubt=9, wrong=9)


@pytest.mark.skipif(
    connection.vendor != "sqlite" or get_user_model()._meta.pk.get_internal_type() != "CharField",
    reason="Other databases refuse a key that is too long.",
)
def test_a_key_that_is_too_long_for_its_column_ends_no_walk(users):
    last = get_user_model().objects.create(pk="z" * 200, username="last")
    create_unheard(last)
    assert unread.recount().owners == 10


@pytest.mark.skipif(
    connection.vendor == "postgresql" or get_user_model()._meta.pk.get_internal_type() != "CharField",
    reason="PostgreSQL cannot store this key.",
)
def test_who_has_the_key_that_stands_for_everyone_is_skipped(users):
    """Nobody can ask for such a count, and everyone else's stay cached."""
    nobody = get_user_model().objects.create(pk=EVERYONE, username="nobody")
    create(nobody)
    Notification.objects.filter(user=nobody).delete()
    assert is_ready()
    create_unheard(nobody)
    assert unread.recount() == Result(10, skipped=1)
    assert is_ready()
    unread.invalidate()
    assert unread.heal(PATIENCE).owners == 10
    assert is_ready()
    assert read_counter(unread).skipped == 2
    assert_exact(*users)
