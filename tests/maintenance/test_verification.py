"""The app looks by itself: each run of the flusher compares a few owners with the rows."""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import OperationalError
from django.db.models import F

from notifications_counter import tasks
from notifications_counter.counters import all_counters, unread
from notifications_counter.maintenance import audit, verification
from notifications_counter.maintenance.places import local_counters
from notifications_counter.maintenance.verification import Schedule, Verification, Verifier, verify
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.monitoring.status import look_at
from notifications_counter.writes.requests import request_recounts
from tests.support import OtherConnection, assert_exact, assert_reads, buffer, entries, sent, unheard

pytestmark = [pytest.mark.django_db(transaction=True)]

DAY = 86400


class Clock:
    """Time that passes when a test says so, and while owners are compared."""

    def __init__(self) -> None:
        self.now = time.time()

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(verification, "time", clock)
    monkeypatch.setattr(verification, "schedule", Schedule())
    with entries(VERIFY_SECONDS=DAY):
        yield clock


@pytest.fixture
def compared(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The owners of each page that was compared: ten at most, and each takes three milliseconds."""
    pages: list[list[str]] = []
    recount_page = Verifier.recount_page

    def slow(self: Any, page: Any, buffers: Any) -> Any:
        owners = get_user_model().objects.filter(pk__in=page.keys.values()).order_by("pk")  # a page has no order
        pages.append([str(owner.pk) for owner in owners])
        clock.now += 0.003 * len(page.keys)
        return recount_page(self, page, buffers)

    monkeypatch.setattr(Verifier, "recount_page", slow)
    monkeypatch.setattr(verification, "LARGE_PAGE", 10)
    return pages


@pytest.fixture
def users(healed: None, make_user: Any) -> list[Any]:
    users = [make_user() for _ in range(40)]
    Notification.objects.bulk_create(Notification(user=user, title="x") for user in users)
    unread.flush()
    return list(get_user_model().objects.order_by("pk"))  # databases order UUIDs in different ways


def run(counter: Any = unread) -> None:
    verify(local_counters([counter]))


def run_all(clock: Clock) -> None:
    """Run until a pass is complete."""
    ended = state().last_ended
    while state().last_ended == ended:
        run()
        clock.now += 5


def state() -> Verification:
    return Verification.of(unread.status()[0].verified)


def break_counts(*users: Any) -> None:
    """As raw SQL, a trigger or a restored backup may do."""
    unheard(Notification.objects.bulk_create, [Notification(user=user, title="unheard") for user in users])


@pytest.mark.keys
def test_everyone_is_compared_once_in_the_order_of_keys(users, compared, clock):
    run_all(clock)
    assert [owner for page in compared for owner in page] == [str(user.pk) for user in users]
    assert (state().verified, state().last_compared, state().last_wrong) == (40, 40, 0)


def test_everyone_again_in_verify_seconds_and_evenly(users, compared, clock):
    """The second pass knows how many there are."""
    run_all(clock)
    began, before = state().last_began, len(compared)
    times: list[float] = []
    while len(times) < 8:  # two more passes
        run()
        times += [clock.now - began] * (len(compared) - before - len(times))
        clock.now += 600
    tenths = [round(10 * at / DAY) for at in times]
    assert tenths == [9, 11, 14, 16, 18, 20, 23, 25]
    assert [owner for page in compared[before:] for owner in page] == [str(user.pk) for user in users] * 2


def test_never(users, compared):
    with entries(VERIFY_SECONDS=0):
        run()
    assert compared == []


def test_a_twentieth_of_the_time_and_a_tenth_of_a_second_at_most(users, compared, clock, monkeypatch):
    """However often it runs, and however slow the database is, now and then."""
    recount_page, delays = Verifier.recount_page, cycle([0.015, 0.04])

    def slower(self: Any, page: Any, buffers: Any) -> Any:
        clock.now += next(delays)
        return recount_page(self, page, buffers)

    monkeypatch.setattr(Verifier, "recount_page", slower)
    began, busy = clock.now, 0.0
    with entries(VERIFY_SECONDS=0.001):
        for _ in range(100):
            before = clock.now
            run()
            assert clock.now - before <= verification.LONGEST
            busy += clock.now - before
            clock.now += 0.2
    assert len(compared) > 10
    assert busy <= verification.SHARE * (clock.now - began) + verification.LONGEST


def test_another_process_goes_on(users, compared, clock, monkeypatch):
    run()
    done = [owner for page in compared for owner in page]
    assert 0 < len(done) < 40
    monkeypatch.setattr(verification, "schedule", Schedule())
    run_all(clock)
    assert [owner for page in compared for owner in page] == [str(user.pk) for user in users]


def test_a_clock_that_is_put_back(users, clock, monkeypatch):
    clock.now += 365 * DAY
    for user in users[:2]:
        break_counts(user)
        for _ in range(20):
            run()
            clock.now += 5
        clock.now = time.time()
        monkeypatch.setattr(verification, "schedule", Schedule())
        assert look_at(unread).mismatch_age >= 0
    assert state().mismatched == 2


@pytest.mark.keys
def test_what_is_wrong_is_corrected_logged_and_counted(users, clock, caplog):
    break_counts(*users[3:5])
    unheard(UserNotificationsCount.objects.filter(pk=users[7].pk).update, unread_count=F("unread_count") + 5)
    with caplog.at_level(logging.WARNING, "notifications_counter"):
        run_all(clock)
    found = [record for record in caplog.records if record.event == "mismatched"]
    assert sum(record.wrong for record in found) == 3
    assert f"{users[3].pk}: 1 instead of 2" in found[0].getMessage()
    counter = look_at(unread)
    assert counter.mismatched == 3
    assert counter.mismatch_age < 60
    assert_exact(*users)


def test_owners_without_rows_and_without_totals(users, make_user, clock):
    gone, new = users[0], make_user()
    unheard(Notification.objects.filter(user=gone)._raw_delete, "default")
    break_counts(new)
    run_all(clock)
    assert look_at(unread).mismatched == 2
    assert_exact(gone, new)


def test_whoever_is_right_keeps_a_cached_total(users, clock):
    unread.counts(users)
    run_all(clock)
    with sent() as commands:
        unread.counts(users)
    assert commands == ["MGET"]


@pytest.mark.parametrize(
    "doubt",
    [
        pytest.param(lambda owner_key: buffer().announce("intent", [owner_key]), id="in flight"),
        pytest.param(lambda owner_key: buffer().mark_dirty([owner_key]), id="dirty"),
        pytest.param(lambda owner_key: request_recounts("default", [(unread, owner_key)]), id="requested"),
    ],
)
def test_what_a_heal_is_to_correct_is_no_mismatch(users, clock, doubt):
    """A process was killed, does not know what it has changed, or could not reach Redis."""
    break_counts(users[0])
    doubt(str(users[0].pk))
    run_all(clock)
    assert look_at(unread).mismatched == 0
    break_counts(users[1])
    clock.now += DAY
    with entries(HEAL_AFTER=0, VERIFY_SECONDS=DAY):
        unread.heal()
    run_all(clock)
    assert look_at(unread).mismatched == 1
    assert_reads(*users[:2])


def test_a_redis_that_has_lost_something_is_no_mismatch(users, clock, redis_client):
    """As after a restart from a snapshot."""
    redis_client.hset(buffer().keys.state, "server", "another")
    break_counts(*users)
    run_all(clock)
    assert look_at(unread).mismatched == 0


def test_nobody_is_compared_during_a_recovery(users, compared):
    unread.invalidate()
    run()
    assert compared == []
    assert not state().verified


@pytest.mark.parametrize("shards", [1, 3])
def test_each_shard(make_user, clock, shards):
    with entries(SHARDS=shards, VERIFY_SECONDS=DAY):
        users = [make_user() for _ in range(12)]
        unread.heal()
        break_counts(*users)
        run_all(clock)
        assert look_at(unread).mismatched == 12
        assert_exact(*users)


@pytest.mark.usefixtures("with_kinds")
def test_counters_take_turns(users, compared, clock):
    """Each run of the first pass has time for a part of one only."""
    with entries(COUNTERS=["unread", "unseen"], VERIFY_SECONDS=DAY):
        counters = [local for local in local_counters(all_counters()) if local.name in ("unread", "unseen")]
        for local in counters:
            local.counter.heal()
        turns = []
        for _ in range(2):
            verify(counters)
            turns.append(verification.schedule.last)
            clock.now += 5
    assert turns == ["unread", "unseen"]


def test_flushers_share_the_work(users, compared, clock, monkeypatch):
    """While one compares, another one leaves its owners alone."""
    recount_page = Verifier.recount_page

    def meanwhile(self: Any, page: Any, buffers: Any) -> Any:
        with monkeypatch.context() as patch, OtherConnection() as other:
            patch.setattr(Verifier, "recount_page", recount_page)
            patch.setattr(verification, "schedule", Schedule())
            other.run(run)
        return recount_page(self, page, buffers)

    monkeypatch.setattr(Verifier, "recount_page", meanwhile)
    run_all(clock)
    assert [owner for page in compared for owner in page] == [str(user.pk) for user in users]
    assert state().verified == 40


def test_of_two_flushers_that_claim_at_once_one_compares(users, compared, clock, monkeypatch):
    of, others = Verification.of, []

    def late(text: str) -> Verification:
        if not others:
            others.append(text)
            with monkeypatch.context() as patch, OtherConnection() as other:
                patch.setattr(verification, "schedule", Schedule())
                other.run(run)
        return of(text)

    with monkeypatch.context() as patch:
        patch.setattr(Verification, "of", late)
        run()
    run_all(clock)
    assert [owner for page in compared for owner in page] == [str(user.pk) for user in users]


def test_a_killed_flusher_leaves_its_owners_to_another(users, compared, clock, monkeypatch):
    def die(self: Any, page: Any, *args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Verifier, "recount_page", die)
        with pytest.raises(KeyboardInterrupt):
            run()
    monkeypatch.setattr(verification, "schedule", Schedule())
    run()
    assert compared == []  # it may be alive, and only slow
    clock.now += audit.TAKE_OVER_SECONDS
    run_all(clock)
    assert state().last_compared == 40


def test_an_owner_that_takes_too_long_is_left_out(users, compared, clock, monkeypatch):
    """Whose rows the database does not count within its limit."""
    recount_page = Verifier.recount_page

    def limited(self: Any, page: Any, buffers: Any) -> Any:
        if str(users[5].pk) in page.keys:
            raise OperationalError("canceling statement due to statement timeout")
        return recount_page(self, page, buffers)

    monkeypatch.setattr(Verifier, "recount_page", limited)
    while not state().last_ended:
        with suppress(OperationalError):
            run()
        clock.now += 5
    assert state().last_compared == 39


def test_totals_of_deleted_users_are_removed(users, clock):
    gone = users[2].pk
    users[2].delete()
    unread.flush()
    run_all(clock)
    assert not UserNotificationsCount.objects.filter(pk=gone).exists()
    assert UserNotificationsCount.objects.count() == 39


@pytest.mark.parametrize(
    "flush",
    [
        pytest.param(tasks.flush, id="task"),
        pytest.param(lambda: call_command("flush_counters", verbosity=0), id="command"),
    ],
)
@pytest.mark.usefixtures("few_healed")
def test_each_run_of_the_flusher_compares(users, clock, flush):
    break_counts(users[0])
    flush()
    assert look_at(unread).mismatched == 1
