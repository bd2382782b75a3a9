"""Two releases that count by different declarations, for as long as a deployment takes, and in whichever order."""

from copy import copy
from datetime import timedelta
from enum import IntEnum
from functools import cached_property
from typing import Any
from unittest import mock

import pytest
from django.db.models import BigAutoField, IntegerField, Q, TextField
from django.db.models.functions import Length
from django.utils import timezone

from notifications_counter.counters import Counter, unread
from notifications_counter.databases.identity import databases
from notifications_counter.exceptions import ConfigurationError
from notifications_counter.models import CounterState, DoubtRequest, Notification
from notifications_counter.upkeep import switch
from notifications_counter.upkeep.findings import Result
from tests.support import (
    assert_exact,
    assert_reads,
    be_a_new_process,
    entries,
    is_ready,
    notify,
    sent,
    status_of,
    stored,
    unheard,
)

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600


def release(condition: Q = unread.q, **changed: Any) -> Counter:
    """A counter like `unread`, but for what is changed."""
    one = copy(unread)
    for name in list(vars(one)):
        if isinstance(getattr(type(one), name, None), cached_property):
            delattr(one, name)
    vars(one).update(q=condition, **changed)
    return one


def create(user: Any, kind: str = "") -> None:
    Notification.objects.create(user=user, title="x", kind=kind)


@pytest.fixture(autouse=True)
def _starts(db: Any) -> None:
    be_a_new_process()


def in_force() -> set[str]:
    return set(CounterState.objects.filter(counter="unread").values_list("fingerprint", flat=True))


# -------------------------------------------------------------------------------------------------------- declarations
def test_a_deployment(alice, bob, caplog):
    """Until now, a release has counted one of two notifications. Processes of both work for a while."""
    old = release(Q(read_at=None, kind="task"))
    create(alice)
    create(alice, "task")
    old.heal()
    old.flush()
    assert old.count(alice) == stored(alice) == 1
    assert in_force() == {old.fingerprint} != {unread.fingerprint}
    assert_reads(alice)  # by a process that comes before its flusher
    create(alice)
    with entries(DEPLOY_SECONDS=HOUR):
        unread.heal()  # the first run of the new flusher
        assert in_force() == {unread.fingerprint}
        assert [record.wait for record in caplog.records if getattr(record, "event", "") == "declared"] == [HOUR]
        with mock.patch.dict(switch._in_force, clear=True):  # in an old process of the site, somebody flushes
            assert old.flush() == Result()
            with pytest.raises(ConfigurationError, match="Restart this process"):
                old.recount()
        unheard(create, bob)  # by an old process, which tells nobody
        for _ in range(2):
            assert_reads(alice, bob)
            old.heal()
            old.flush()
            with pytest.raises(ConfigurationError, match="Restart this process"):
                old.invalidate()
            unread.heal()
            assert unread.flush() == Result()
            assert not is_ready()
            (problem,) = status_of(unread).problems
            assert (problem.kind, "Rows are counted for DEPLOY_SECONDS" in problem.text) == ("declared", True)
        assert [record.levelname for record in caplog.records if getattr(record, "event", "") == "replaced"] == [
            "ERROR"
        ]
        CounterState.objects.update(declared_at=timezone.now() - timedelta(seconds=HOUR))
        unread.heal()
    assert is_ready()
    unread.flush()
    assert_exact(alice, bob)
    with sent() as commands:
        unread.count(alice)
    assert commands == ["MGET"]
    with entries(DEPLOY_SECONDS=HOUR):  # a generation of the same release does not wait
        unread.invalidate()
        unread.heal()
        assert is_ready()


def test_a_process_with_another_redis_tells_the_database(alice):
    """It starts right after the first flusher, only writes, and its settings name an empty Redis."""
    with entries(DEPLOY_SECONDS=HOUR):
        unread.heal()
    databases.clear()
    create(alice)
    assert not DoubtRequest.objects.exists()
    with entries(KEY_PREFIX="another"):
        create(alice)
    assert DoubtRequest.objects.get().owner_key == str(alice.pk)


@pytest.mark.parametrize("debug", [True, False])
def test_only_development_does_not_wait_by_default(alice, settings, debug):
    given = settings.NOTIFICATIONS_COUNTER
    settings.DEBUG = debug
    settings.NOTIFICATIONS_COUNTER = {name: value for name, value in given.items() if name != "DEPLOY_SECONDS"}
    unread.heal()
    assert is_ready() is debug


@pytest.mark.parametrize("is_new", [True, False], ids=["a new counter", "a changed one"])
def test_two_flushers_that_start_at_once(alice, is_new, caplog, monkeypatch):
    """One puts the declaration in force, and begins a generation, before the other is about to."""
    caplog.set_level("INFO", "notifications_counter")
    if not is_new:
        unread.heal()
        CounterState.objects.update(fingerprint="another")
        be_a_new_process()
        caplog.clear()
    declare = switch.declare

    def be_second(*args: Any) -> Any:
        monkeypatch.undo()
        unread.heal()
        notify(alice)
        return declare(*args)

    monkeypatch.setattr(switch, "declare", be_second)
    unread.heal()
    assert [record.event for record in caplog.records].count("declared") == 1
    assert is_ready()
    unread.flush()
    assert_exact(alice)


# -------------------------------------------------------------------------------------------------------- fingerprints
def status(value: int) -> IntEnum:
    """An owner key that keeps its name while its value changes."""
    return IntEnum("Status", {"OPEN": value}).OPEN


def test_what_a_fingerprint_is_made_of():
    def fingerprint(*condition: Q, **changed: Any) -> str:
        return release(*condition, **changed).fingerprint

    assert fingerprint() == unread.fingerprint
    others = [
        fingerprint(Q()),
        fingerprint(~unread.q),
        fingerprint(Q(kind=Length("title"))),
        fingerprint(Q(pk=status(1))),
        fingerprint(~Q(Q(pk__in=[status(2)]))),
        fingerprint(pk_fields=(TextField(),)),
        fingerprint(sum="id"),
        fingerprint(field="unseen_count"),
        fingerprint(totals_label="tasks.ProjectTaskCount", field="open_count"),
        fingerprint(Q(), source_label="tasks.Transfer", owner="sender"),
        fingerprint(Q(), source_label="tasks.Transfer", owner="receiver"),
    ]
    assert len({fingerprint(), *others}) == 1 + len(others)
    assert len({fingerprint(pk_fields=(kind(),)) for kind in (IntegerField, BigAutoField)}) == 1


def test_a_flusher_that_starts_while_counting_is_off_is_not_replaced(alice):
    """Counting is switched on by a process of the old release."""
    old = release(Q(read_at=None, kind="task"))
    with mock.patch.dict(switch._in_force, clear=True):
        old.heal()
    switch.switch_off(old)
    unread.heal()
    switch.switch_on(old)
    unread.heal()
    assert in_force() == {unread.fingerprint}
