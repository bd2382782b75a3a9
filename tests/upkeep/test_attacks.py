"""Histories that others found, and that went wrong once."""

import time
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError
from django.utils import timezone

from notifications_counter.buffer import Buffer
from notifications_counter.counters import unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import CounterShard, Notification
from notifications_counter.sql.everyone import Everyone
from notifications_counter.upkeep import heal, walk
from notifications_counter.upkeep.walk import Walker
from notifications_counter.writes.intents import Intents
from tests.support import entries, notify, stored, unheard

pytestmark = pytest.mark.django_db(transaction=True)


def is_walking() -> bool:
    return bool(walk.WalkState.of(CounterShard.objects.get(counter="unread").walk).speed)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has two owners."""
    page = Everyone.page
    monkeypatch.setattr(Everyone, "page", lambda self, after, last=None, size=2: page(self, after, last, min(size, 2)))


def heal_later() -> None:
    """Heal after claims can be taken over."""
    with mock.patch.object(walk.time, "time", return_value=time.time() + 60):
        for _ in range(5):
            unread.heal(60)
            unread.flush()


def test_a_flusher_is_killed_while_it_declares_other_shards_and_the_deployment_is_taken_back(healed, alice):
    notify(alice, 1)
    with (
        entries(SHARDS=2),
        mock.patch.object(Buffer, "reset", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        unread.heal()
    heal._seen.clear()  # as in another process
    Notification.objects.create(user=alice, title="x")  # its keys are out of use, so it leaves a request
    unread.heal()
    unread.flush()
    assert stored(alice) == 2


def test_owners_come_into_a_page_that_is_taken_over(healed, small_pages, make_user):
    first, second, third, fourth = sorted((make_user() for _ in range(4)), key=lambda user: user.pk)
    for user in (first, third, fourth):
        notify(user, 1)
    unheard(Notification.objects.bulk_create, [Notification(user=third, title="lost")])
    unread.invalidate()
    assert Walker(unread)._claim()  # by a flusher that is killed
    Notification.objects.create(user=second, title="new")
    heal_later()
    assert not is_walking()
    assert stored(third) == 2


def test_two_flushers_take_over_the_same_slow_page_in_turn(healed, alice):
    notify(alice, 1)
    unread.invalidate()
    holder, other = Walker(unread), Walker(unread)
    now = time.time() + 1
    with mock.patch.object(walk.time, "time", side_effect=lambda: now):
        token = holder._claim()[0]
        for _ in range(3):
            now += 10.5
            claimed = other._claim()
            holder._release(token, 11)
            if claimed:
                holder, other, token = other, holder, claimed[0]
        holder._claim()
    assert not is_walking()


def test_everyone_is_doubted_in_the_shards_that_can_be_reached(healed, make_user):
    users = [make_user() for _ in range(6)]
    with entries(SHARDS=2):
        for user in users:
            notify(user, 1)
        unread.heal()
        for user in users * 2:
            assert unread.count(user) == 1
        unheard(Notification.objects.bulk_create, [Notification(user=user, title="x") for user in users])
        forget = Buffer.forget

        def only_one(self: Buffer) -> None:
            if self.shard == 0:
                raise BufferUnavailable("It is down.")
            forget(self)

        with mock.patch.object(Buffer, "forget", only_one):
            assert not unread.doubt_everyone()
        counts = {unread.by_shard([str(user.pk)])[0][0].shard: unread.count(user) for user in users}
    assert counts == {0: 1, 1: 2}


def test_the_clock_of_who_declared_was_ahead(healed, alice):
    notify(alice, 1)
    later = timezone.now() + timedelta(seconds=1)
    CounterShard.objects.filter(counter="unread").update(mark="", declared_at=later)
    with entries(DEPLOY_SECONDS=600):
        assert not heal.put_in_force(unread)


def test_a_doubt_between_the_cut_and_the_fetch_is_no_mismatch(healed, alice):
    notify(alice, 1)
    assert unread.count(alice) == 1
    Notification.objects.create(user=alice, title="x")
    fetch, is_done = Buffer.fetch, False

    def late(self: Buffer, *args: Any) -> Any:
        nonlocal is_done
        if not is_done:
            is_done = True
            Notification.objects.create(user=alice, title="y")
            unread.doubt([str(alice.pk)])
            assert unread.count(alice) == 3
        return fetch(self, *args)

    with mock.patch.object(Buffer, "fetch", late):
        assert unread.flush().wrong == 0


def test_a_page_that_is_taken_over_takes_too_long(healed, make_user, monkeypatch):
    for _ in range(3):
        notify(make_user(), 1)
    unread.invalidate()
    assert Walker(unread)._claim()  # by a flusher that is killed
    page = Everyone.page

    def limited(self: Everyone, after: Any, last: Any = None, size: int = 1000) -> Any:
        if size > 1:
            raise OperationalError("canceling statement due to statement timeout")
        return page(self, after, last, size)

    monkeypatch.setattr(Everyone, "page", limited)
    heal_later()
    assert not is_walking()


def test_a_row_is_deleted_whose_writer_was_killed_before_it_told_redis(healed, alice):
    assert unread.count(alice) == unread.count(alice) == 0
    with mock.patch.object(Intents, "confirm", return_value=[]):
        row = Notification.objects.create(user=alice, title="x")
    row.delete()
    assert unread.flush().aside == 0
    assert stored(alice) == 0
