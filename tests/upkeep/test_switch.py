"""Counting is switched off in an incident, and on again, while the site goes on."""

import io
import multiprocessing
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from notifications_counter.buffer import buffer
from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.models import CounterState, DoubtRequest, Notification
from notifications_counter.redis.calls import command
from notifications_counter.upkeep.findings import Result
from tests.support import (
    assert_exact,
    assert_reads,
    create,
    entries,
    fork,
    is_ready,
    notify,
    redis_out_of_reach,
    rows,
    sent,
    status_of,
    stored,
    unheard,
    wait_until,
)

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600


def switch(state: str, *arguments: str) -> str:
    """What the command says."""
    out = io.StringIO()
    call_command("counting", state, "--counter", "unread", *arguments, stdout=out)
    return out.getvalue()


def is_off() -> bool:
    return unread.buffer.status().ready == "off"


def assert_comes_back(*users: Any) -> None:
    """Counting is on, and exact once all processes know."""
    unread.heal()
    assert not is_ready()
    assert_reads(*users)
    passed = timedelta(seconds=options.DEPLOY_SECONDS + 2 * buffer.OFF_SECONDS)
    CounterState.objects.update(declared_at=F("declared_at") - passed)
    unread.heal()
    assert is_ready()
    unread.buffer.silent_until = 0.0  # time has passed for this process, too
    unread.flush()
    assert_exact(*users)
    with sent() as commands:
        unread.count(users[0])
    assert commands == ["MGET"]


@pytest.fixture(params=["read", "write"])
def silent(request: Any, healed: None, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting is off, and this process takes it for off for a while, since a read or a write has met it."""
    monkeypatch.setattr(buffer, "OFF_SECONDS", HOUR)
    notify(alice)
    assert_reads(alice)
    switch("off")
    if request.param == "read":
        unheard(create, alice)
        assert_reads(alice)
    else:
        create(alice)


def test_while_another_process_writes(healed, alice, bob, caplog):
    caplog.set_level("INFO", "notifications_counter")
    notify(alice)
    is_over = multiprocessing.get_context("fork").Event()

    def write() -> None:
        while not is_over.wait(0.01):
            create(bob)
            assert unread.count(bob) == rows(bob)

    def wait_for_writes() -> None:
        enough = rows(bob) + 3
        wait_until(lambda: rows(bob) >= enough)

    with entries(DEPLOY_SECONDS=HOUR):
        with fork(write):
            wait_for_writes()
            assert switch("off") == "unread: counting is off.\n"
            assert caplog.messages[-1].startswith("unread: counting off")
            assert "off already" in switch("off")
            create(alice)
            wait_for_writes()
            assert_reads(alice)
            assert not DoubtRequest.objects.exists()
            unread.heal()
            assert (unread.flush(), stored(alice), is_off()) == (Result(), 3, True)
            assert "unread: counting is on." in switch("on")
            assert f"{HOUR + 2 * buffer.OFF_SECONDS:.0f} s" in caplog.messages[-1]
            assert "on already" in switch("on")
            create(alice)  # perhaps without a word to Redis
            wait_for_writes()
            is_over.set()
        assert_comes_back(alice, bob)


@pytest.mark.parametrize("inside", [False, True], ids=["autocommit", "transaction"])
def test_a_process_that_takes_counting_for_off_asks_nobody(silent, alice, inside):
    """Statements are those of a site without counters."""
    one = Notification.objects.filter(user=alice)[0]
    with sent() as commands, CaptureQueriesContext(connection) as queries, transaction.atomic() if inside else sent():
        create(alice)
        one.mark_as_read()
        Notification.objects.filter(user=alice).mark_as_seen()
        Notification.objects.filter(pk=one.pk).update(read_at=None)
        assert unread.count(alice) == 5
        assert unread.counts([alice]) == {alice.pk: 5}
    assert commands == []
    assert len([query for query in queries if query["sql"].startswith(("INSERT", "UPDATE", "SELECT"))]) == 7


def test_it_asks_again_after_a_while(silent, alice):
    switch("on")
    unread.buffer.silent_until = 0.0
    with sent() as commands:
        create(alice)
    assert commands == ["announce", "confirm"]
    with sent() as commands:
        assert unread.count(alice) == unread.counts([alice])[alice.pk] == 5
    assert commands == ["MGET", "MGET"]


def test_redis_is_down_when_it_is_switched(healed, alice):
    with redis_out_of_reach():
        assert "Redis is unavailable" in switch("off")
        create(alice)
        assert_reads(alice)
    create(alice)
    assert_reads(alice)
    unread.heal()
    assert is_off()
    create(alice)
    with redis_out_of_reach(), pytest.raises(CommandError, match="unavailable"):
        switch("on")
    unread.heal()
    assert is_off()
    switch("on")
    assert_comes_back(alice)


def test_a_flusher_that_is_at_work_does_not_undo_it(healed, alice):
    """It is switched off between the beginning and the end of a heal."""
    with mock.patch("notifications_counter.upkeep.heal._ground_overdue", side_effect=lambda *_: switch("off")):
        unread.heal()
    unread.heal()
    assert is_off()
    assert CounterState.objects.get(counter="unread").off_since
    switch("on")
    assert_comes_back(alice)


def test_a_counter_that_was_never_flushed_goes_off_but_not_inside_a_transaction(alice):
    for state in ("off", "on"):
        with transaction.atomic(), pytest.raises(CommandError, match="transaction"):
            switch(state)
        for _ in range(2):
            switch(state)
        assert bool(CounterState.objects.get(counter="unread").off_since) == (state == "off")
    assert_comes_back(alice)


def test_counting_that_is_on_stays_on(healed, alice):
    switch("on")
    assert is_ready()
    assert_exact(alice)


def test_a_clock_that_is_ahead_shortens_no_wait(healed, alice):
    """That of the host on which somebody switched it on. Other processes may be silent for a while."""
    switch("off")
    switch("on")
    CounterState.objects.update(declared_at=F("declared_at") + timedelta(seconds=HOUR))
    with entries(DEPLOY_SECONDS=0):
        unread.heal()
    assert not is_ready()
    assert_comes_back(alice)


def test_redis_goes_back_to_when_it_was_off(healed, alice, monkeypatch):
    """Who has met that may be in a transaction for as long as a deployment takes."""
    monkeypatch.setattr(buffer, "OFF_SECONDS", 0)
    create(alice)
    unread.buffer.switch_off()
    mark = CounterState.objects.get(counter="unread").mark
    with entries(DEPLOY_SECONDS=HOUR):
        for _ in range(2):
            unread.heal()
            assert not is_ready()
        assert CounterState.objects.get(counter="unread").mark == mark
        assert not is_off()
        assert_reads(alice)
    unread.heal()
    unread.flush()
    assert_exact(alice)


def test_a_recount_does_not_take_stored_totals_for_wrong(healed, alice):
    notify(alice)
    unread.flush()
    switch("off")
    create(alice)
    assert unread.recount() == Result(1)
    switch("on")
    assert_comes_back(alice)


def test_monitoring_says_so(healed, alice):
    create(alice)
    unread.buffer.client.ask(command("HSET", unread.buffer.key("state"), "pending_since", 1))  # it has waited for long
    switch("off")
    status = status_of(unread)
    (problem,) = status.problems
    since = CounterState.objects.get(counter="unread").off_since.timestamp()
    assert (problem.kind, problem.since, "Counting has been off since" in problem.text) == ("off", since, True)
    assert (status.counters["unread"].phase, status.counters["unread"].off_since) == ("off", since)
    switch("on")
    assert [problem.kind for problem in status_of(unread).warnings] == ["deploying"]  # of nobody who could flush it
