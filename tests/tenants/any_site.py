"""What is true of tenants with a schema each as of those with a database each. Run by ``test_tenants.py``."""

import random
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from notifications_counter import events, tasks
from notifications_counter.counters import all_counters
from notifications_counter.events import EventLog
from notifications_counter.timeseries import TimeSeries, get_counter, update_counter
from notifications_counter.upkeep.history import history
from tests.support import entries

from .common import HAS_SCHEMAS, NAMES, at, change, check, notify, tenants, users  # noqa: F401
from .streams import each_hears_its_own, listen, short_waits

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=list(connections)),
    pytest.mark.usefixtures("tenants"),
]


def test_random_histories() -> None:
    chance = random.Random()
    for step in range(90):
        with at(chance.choice(NAMES)):
            change(chance)
        if step % 15 == 10:
            call_command("flush_counters", verbosity=0)
    call_command("flush_counters", verbosity=0)
    call_command("flush_counters", check=True, verbosity=0)
    for name in NAMES:
        check(name)


def test_commands_go_through_all_tenants_or_one(capsys: Any) -> None:
    call_command("flush_counters", verbosity=0)
    one, two, three = NAMES
    for number, name in enumerate(NAMES, 1):
        with at(name):
            notify(number)
    call_command("flush_counters", **{"schema" if HAS_SCHEMAS else "database": two})
    assert "unread: flushed 1 owner, " in capsys.readouterr().out
    call_command("flush_counters")
    out = capsys.readouterr().out
    assert f"unread ({one}): flushed 1 owner, " in out
    assert f"unread ({two}): nothing to flush." in out
    assert f"unread ({three}): flushed 1 owner, " in out
    call_command("recount_counters")
    out = capsys.readouterr().out
    assert all(f"unread ({name}): compared 1 owner, 0 wrong" in out for name in NAMES)


def test_logs_belong_to_a_tenant() -> None:
    shared_log, shared_series = EventLog("audit", shared=True), TimeSeries(name="all", shared=True)
    with entries(RECORD_ACTIVITY=True):
        call_command("flush_counters", verbosity=0)
        for number, name in enumerate(NAMES, 1):
            with at(name):
                notify(number)
                events.record_events([{"type": "login", "tenant": name}] * number)
                shared_log.record_event({"type": "login", "tenant": name})
                for series in (update_counter, shared_series.update_counter):
                    series("hits", number)
    for number, name in enumerate(NAMES, 1):
        with at(name):
            assert history.count_type("walked") == len(all_counters())
            assert [event["tenant"] for event in events.latest()] == [name] * number
            for series in ("hits", "unread:added"):
                assert sum(count for _, count in get_counter(series, 86400)) == number
    assert [event["tenant"] for event in shared_log.oldest()] == [*NAMES]
    assert sum(count for _, count in shared_series.get_counter("hits", 86400)) == 6


def test_old_slices_of_all_tenants_are_cleaned() -> None:
    for name in NAMES:
        with at(name):
            update_counter("hits", now=1_700_000_000)
    assert tasks.clean() == 3 * 7


def test_streams_tell_of_their_own_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_waits(monkeypatch):
        listen(at, ["blue", "green"], each_hears_its_own)
