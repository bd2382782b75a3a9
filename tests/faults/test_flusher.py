"""Flushers that are killed, or stand still, at every step, under traffic."""

import threading

import pytest
from django.db import connection

from notifications_counter.counters import unread

pytestmark = pytest.mark.django_db(transaction=True)

# "transaction" is that of one chunk, "statement" the one in it: so after it, and before the commit.
STEPS = [
    ("before cut", 2),
    ("after cut", 1),
    ("before fetch", 1),
    ("after fetch", 2),
    ("before transaction", 2),
    ("before statement", 1),
    ("after statement", 2),
    ("after transaction", 1),
    ("before finish", 1),
    ("after finish", 1),
]
INSIDE = ("before statement", "after statement")


def finish_everything() -> None:
    """What waits is flushed; nobody is recounted who is not in doubt."""
    for _ in range(2):
        unread.flush()


@pytest.mark.parametrize(("step", "times"), STEPS)
def test_killed(step, times, flusher, traffic, assert_exact):
    child = flusher(step, times)
    with traffic() as here:
        child.reached()
        here.reads()
        child.kill()
        here.writes()
        here.reads()
    finish_everything()
    assert_exact(here.untouched)
    unread.heal()
    finish_everything()
    assert_exact()


@pytest.mark.parametrize(("step", "times"), [s for s in STEPS if s[0] not in INSIDE])
def test_stalled_and_awake_batches_later(step, times, flusher, traffic, assert_exact):
    child = flusher(step, times)
    with traffic() as here:
        child.reached()
        for _ in range(3):
            here.writes()
            unread.flush()
        here.reads()
        child.go_on()
        here.writes()
        here.reads()
    finish_everything()
    assert_exact(here.untouched)
    unread.heal()
    finish_everything()
    assert_exact()


@pytest.mark.parametrize("step", INSIDE)
def test_stalled_inside_its_transaction(step, flusher, traffic, assert_exact):
    """Another flusher waits for it; nobody else does, but for the writers of SQLite, which has one lock for all."""

    def flush() -> None:
        unread.flush()
        connection.close()

    child = flusher(step)
    other = threading.Thread(target=flush)
    with traffic() as here:
        child.reached()
        other.start()
        if connection.vendor != "sqlite":
            here.writes()
        here.reads()
        assert other.is_alive()
        child.go_on()
        other.join()
        here.writes()
    finish_everything()
    assert_exact(here.untouched)
    unread.heal()
    finish_everything()
    assert_exact()


def test_several_at_once(flusher, traffic, assert_exact):
    with traffic() as here:
        children = [flusher() for _ in range(2)]
        for _ in range(10):
            here.writes(8)
            unread.flush()
        for child in children:
            child.go_on()
        here.reads()
    finish_everything()
    assert_exact(here.untouched)
    unread.heal()
    finish_everything()
    assert_exact()
