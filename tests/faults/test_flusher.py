"""Flushers that are killed, or stand still, at every step. Under traffic: tests/torment."""

import os
import signal
import traceback
from typing import Any

import pytest
from django.db import connection, connections

from notifications_counter.counters import unread
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.upkeep import walk
from notifications_counter.writes.transaction import request_recounts
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_heals,
    assert_reads,
    is_walking,
    make_keys,
    rows,
    stored,
    unheard,
)

from .moments import Countdown, Moments, of_a_flush, of_healing

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # pytest-xdist has threads
]

# "transaction" is that of one chunk, "statement" the one in it: so after it, and before the commit.
IN_REDIS = ["before cut", "after cut", "before fetch", "after fetch", "before drop", "after drop"]
IN_THE_DATABASE = ["before transaction", "after transaction", "before statement", "after statement"]
OF_HEALING = ["after doubt", "before generation", "after recover", "after generation", "after claim", "after compare"]


def start(step: str, sent: signal.Signals, times: int = 1) -> int:
    """A flusher that sends itself a signal at a step, for the TIMES-th time. Returns its process id."""
    connections.close_all()
    if pid := os.fork():
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert sent == (os.WSTOPSIG(status) if os.WIFSTOPPED(status) else os.WTERMSIG(status)), status
        return pid
    try:
        countdown = Countdown(step, times)
        Moments(of_a_flush() + of_healing(), lambda moment: countdown.is_over(moment) and os.kill(os.getpid(), sent))
        unread.heal()
        unread.flush(chunk_size=2)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def write(users: list[Any]) -> None:
    Notification.objects.bulk_create(Notification(user_id=user, title="x") for user in users)


@pytest.fixture
def users(healed: None) -> list[Any]:
    """Nine users with changes that wait; some have a cached total."""
    users = make_keys(9)
    write(users)
    unread.counts(users[:5])
    write(users)
    return users


@pytest.mark.parametrize("times", [1, 2], ids=["first chunk", "second chunk"])
@pytest.mark.parametrize("step", [*(pytest.param(step, marks=pytest.mark.once) for step in IN_REDIS), *IN_THE_DATABASE])
def test_killed(step, times, users):
    if times == 2 and not {"fetch", "transaction", "statement"} & set(step.split()):
        pytest.skip("It comes once in a flush.")
    start(step, signal.SIGKILL, times)
    assert_reads(*users)
    write(users[3:])
    unread.flush()
    assert {user: stored(user) for user in users} == {user: rows(user) for user in users}
    assert_heals(*users)


@pytest.mark.parametrize("step", OF_HEALING)
def test_killed_when_everyone_is_in_doubt(step, users, monkeypatch):
    """What it had begun outlives it, although a writer has told Redis nothing."""
    monkeypatch.setattr(walk, "TAKE_OVER_SECONDS", 0)
    unheard(write, users)
    request_recounts("default", [(unread, None)])
    start(step, signal.SIGKILL)
    assert_reads(*users)
    unread.heal()
    assert not RecountRequest.objects.exists()
    assert not is_walking()
    assert_heals(*users)


@pytest.mark.parametrize("step", ["after fetch", "before statement", "after statement"])
def test_stalled(step, users):
    """Inside its transaction, another flusher waits for it, and nobody else. What it holds later is too old."""
    pid = start(step, signal.SIGSTOP)
    with OtherConnection() as other:
        flushing = other.start(unread.flush)
        assert_reads(*users)
        if step == "after fetch":
            flushing.result(PATIENCE)
        if step == "after fetch" or connection.vendor != "sqlite":  # which has one lock for all writers
            write(users)
        assert flushing.done() == (step == "after fetch")
        os.kill(pid, signal.SIGCONT)
        flushing.result(PATIENCE)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert_reads(*users)
    assert_heals(*users)
