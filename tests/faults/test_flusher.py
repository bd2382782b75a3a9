"""Flushers that are killed, or stand still, at every step, under traffic."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from notifications_counter.counters import unread
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.upkeep import walk
from notifications_counter.writes.transaction import request_recounts
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_heals,
    assert_reads,
    buffer,
    is_walking,
    rows,
    stored,
    unheard,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

# "transaction" is that of one chunk, "statement" the one in it: so after it, and before the commit.
IN_REDIS = [
    pytest.param(step, times, marks=pytest.mark.once)
    for step, times in [
        ("before cut", 2),
        ("after cut", 1),
        ("before fetch", 1),
        ("after fetch", 2),
        ("before drop", 1),
        ("after drop", 1),
    ]
]
AROUND = [("before transaction", 2), ("after transaction", 1)]
INSIDE = [("before statement", 1), ("after statement", 2)]


def check(traffic: Any, others: Sequence[Any] = ()) -> None:
    """Has everything reached the database once?"""
    unread.flush()
    assert {user: stored(user) for user in traffic.users} == {user: rows(user) for user in traffic.users}
    assert_reads(*traffic.users)
    assert_heals(*traffic.users, *others)


def cut_and_die(users: list[Any]) -> None:
    Notification.objects.bulk_create(Notification(user_id=user, title="x") for user in users)
    row = unread.status()[0].row
    assert buffer().cut(row.mark, uuid4().hex)[1] > len(users)


@pytest.mark.parametrize(("step", "times"), [*IN_REDIS, *AROUND, *INSIDE])
def test_killed(step, times, flusher, traffic):
    child = flusher(step, times)
    with traffic() as here:
        child.reached()
        here.reads()
        child.kill()
        here.writes()
        here.reads()
    check(here)


@pytest.mark.parametrize(
    "step", ["after doubt", "before generation", "after recover", "after generation", "after claim", "after compare"]
)
def test_killed_when_everyone_is_in_doubt(step, flusher, users, healed, monkeypatch):
    """What it had begun outlives it, although a writer has told Redis nothing."""
    monkeypatch.setattr(walk, "TAKE_OVER_SECONDS", 0)
    unheard(Notification.objects.bulk_create, (Notification(user_id=user, title="x") for user in users))
    request_recounts("default", [(unread, None)])
    child = flusher(step)
    child.reached()
    child.kill()

    assert_reads(*users)
    unread.heal()
    assert not RecountRequest.objects.exists()
    assert not is_walking()
    assert_heals(*users)


@pytest.mark.parametrize(("step", "times"), [*IN_REDIS, *AROUND])
def test_stalled_and_awake_batches_later(step, times, flusher, traffic, users):
    """What it holds by then is old, and what is in Redis is the batch of another, which died, with new users."""
    child = flusher(step, times)
    with traffic(users[:-3]) as here:
        child.reached()
        for _ in range(3):
            here.writes()
            unread.flush()
        cut_and_die(users[-3:])
        here.reads()
        child.go_on()
        here.writes()
        here.reads()
    check(here, users[-3:])


@pytest.mark.parametrize(("step", "times"), INSIDE)
def test_stalled_inside_its_transaction(step, times, flusher, traffic):
    """Another flusher waits for it; nobody else does, but for the writers of SQLite, which has one lock for all."""

    child = flusher(step, times)
    with traffic() as here, OtherConnection() as other:
        child.reached()
        child.freeze()
        flushing = other.start(unread.flush)
        if connection.vendor != "sqlite":
            here.writes()
        here.reads()
        assert not flushing.done()
        child.go_on()
        flushing.result(PATIENCE)
        here.writes()
    check(here)
