"""Writers and flushers that are killed, or stand still, at a step of their work. Under traffic: tests/torment."""

import os
import signal
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db import connection, connections, transaction

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_heals,
    assert_reads,
    buffer,
    give_to,
    make_keys,
    rows,
    status_of,
    stored,
    wait_until,
)

from .moments import OF_A_FLUSH, OF_A_WRITE, Countdown, Moments

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # pytest-xdist has threads
]


def start(work: Callable[[], object], step: str, sent: signal.Signals, times: int = 1) -> int:
    """A process that sends itself a signal at a step, for the TIMES-th time. Returns its id."""
    connections.close_all()
    if pid := os.fork():
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert sent == (os.WSTOPSIG(status) if os.WIFSTOPPED(status) else os.WTERMSIG(status)), status
        return pid
    try:
        countdown, calls = Countdown(step, times), OF_A_WRITE + OF_A_FLUSH
        Moments(calls, lambda moment: countdown.is_over(moment) and os.kill(os.getpid(), sent))
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def write(users: list[Any]) -> None:
    Notification.objects.bulk_create(Notification(user_id=user, title="x") for user in users)


def flush() -> None:
    unread.heal()
    with mock.patch("notifications_counter.upkeep.flush.OWNERS_PER_CHUNK", 2):
        unread.flush()


@pytest.fixture
def users(healed: None) -> list[Any]:
    """Nine users with changes that wait; some have a cached total."""
    users = make_keys(9)
    write(users)
    unread.counts(users[:5])
    write(users)
    return users


# ------------------------------------------------------------------------------------------------------------- writers
def create_for(users: list[Any]) -> None:
    with transaction.atomic():
        write(users)
        Notification.objects.create(user_id=users[0], title="x")


def give_away(users: list[Any]) -> None:
    """Nothing says whose counts this changes."""
    give_to(users[1], Notification.objects.filter(user=users[0])[0])


@pytest.mark.parametrize("step", ["before announce", "after announce", "after COMMIT", "after confirm"])
@pytest.mark.parametrize("work", [create_for, give_away])
def test_a_writer_is_killed_and_each_read_is_right_at_once(work, step, users):
    unread.counts(users)
    before = rows(users[1])
    start(partial(work, users), step, signal.SIGKILL)
    assert_reads(*users)
    assert (rows(users[1]) > before) == (step in ("after COMMIT", "after confirm"))
    assert_heals(*users)


# ------------------------------------------------------------------------------------------------------------ flushers
@pytest.mark.parametrize(
    ("step", "times"),
    [
        ("after cut", 1),
        ("after statement", 2),  # it stores a chunk: this is before the COMMIT, and "transaction" after it
        ("after transaction", 1),
    ],
)
def test_a_flusher_is_killed(step, times, users):
    start(flush, step, signal.SIGKILL, times)
    assert_reads(*users)
    write(users[3:])
    unread.flush()
    assert {user: stored(user) for user in users} == {user: rows(user) for user in users}
    assert_heals(*users)


@pytest.mark.parametrize("step", ["after fetch", "after statement"])
def test_a_flusher_stands_still(step, users):
    """Inside its transaction, another flusher waits for it, and nobody else. What it holds later is too old."""
    pid = start(flush, step, signal.SIGSTOP)
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


@pytest.mark.parametrize("step", ["after cut", "after statement"])
def test_monitoring_tells_of_a_flusher_that_stands_still(step, users):
    """Its batch is as old as the changes in it, not as the cut."""
    written = buffer().status().now
    wait_until(lambda: buffer().status().now > written + 2)
    pid = start(flush, step, signal.SIGSTOP)
    status = status_of(unread, max_age=2)
    os.kill(pid, signal.SIGCONT)
    os.waitpid(pid, 0)
    assert [problem.kind for problem in status.problems] == ["backlog"]
    assert status_of(unread, max_age=2).problems == ()
