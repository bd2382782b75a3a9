import io
import itertools
from unittest import mock

import pytest
from django.core.management import call_command

from notifications_counter import timeseries
from notifications_counter.management.commands import clean_counters as clean_counters_command
from notifications_counter.redis.client import client_of
from notifications_counter.timeseries import TimeSeries, clean_counters, get_counter, list_counters, update_counter

from .support import LONG_AGO, MONTH, known, redis_clock, slices

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def test_an_emptied_counter_is_no_longer_known():
    TimeSeries(precisions=[7]).update_counter("hits")  # this precision has left the settings
    update_counter("old", now=LONG_AGO)
    update_counter("new")
    assert clean_counters(lambda precision: precision < 100).gone == 3
    clean_counters()
    assert known(TimeSeries()) == {"7:hits", *(f"{precision}:new" for precision in TimeSeries().precisions)}
    assert get_counter("old", 60) == []
    update_counter("old", now=LONG_AGO)
    assert list_counters() == ["new", "old"]


def test_no_script_works_for_long(monkeypatch):
    """A counter takes as long as 20 slices."""
    monkeypatch.setattr(timeseries, "SLICES_PER_CALL", 100)
    series, done = TimeSeries(precisions=[1], samples=100), []
    for second in range(60):
        series.update_counters(dict.fromkeys("abcde", 1), now=LONG_AGO + second)
    series.clean_counters(progress=lambda number, _: done.append(number))
    assert done == [2, 4, 5]


def test_the_command_says_what_it_did():
    def run() -> str:
        out = io.StringIO()
        call_command("clean_counters", stdout=out)
        return out.getvalue()

    update_counter("old", now=LONG_AGO)
    update_counter("old", now=LONG_AGO + 1)
    update_counter("new")
    assert run().startswith("Looked at 14 counters, removed 8 slices and 7 empty counters, 0.")
    assert run() == "Nothing to clean in 7 counters.\n"


def test_the_command_rests_after_a_pass_that_took_longer_than_a_minute(monkeypatch):
    monkeypatch.setattr(clean_counters_command, "monotonic", itertools.count(0, 70).__next__)
    sleep = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(clean_counters_command, "sleep", sleep)
    call_command("clean_counters", "--loop", stdout=io.StringIO())
    assert sleep.call_args.args == (1,)


# ------------------------------------------------------------------------------------------------- without a cleaner
def expires_at(key: str) -> int:
    """Seconds. EXPIRETIME is for Redis 7; time stands still in a script."""
    script = "local time = redis.call('TIME') return time[1] * 1000 + time[2] / 1000 + redis.call('PTTL', KEYS[1])"
    return round(client_of("default").redis.eval(script, 1, key) / 1000)


def test_everything_says_when_it_ends():
    series = TimeSeries(precisions=[MONTH], samples=3)
    redis = series.client.redis
    key, known_key = f"{series.base}:{MONTH}:hits", f"{series.base}:known"
    month = redis_clock() // MONTH * MONTH
    for ago in (1, -1, 0, 2):
        series.update_counter("hits", now=month - ago * MONTH)
    series.update_counter("hits")
    assert expires_at(key) == expires_at(known_key) == month + 4 * MONTH
    update_counter("past", now=LONG_AGO)  # a clock of its own
    assert 60 * 119 - 5 < redis.ttl(f"{TimeSeries().base}:60:past") <= 60 * 120


@pytest.mark.parametrize(("start", "step"), [(LONG_AGO, 1), (LONG_AGO, -1)])
def test_a_counter_stays_small_when_nobody_cleans(start, step):
    """Also one whose past is counted later."""
    series = TimeSeries(precisions=[1], samples=5)
    times = [start + second * step for second in range(40)]
    for time in times:
        series.update_counter("hits", now=time)
        assert len(slices(series, "hits", 1)) <= 10
    assert series.get_counter("hits", 1) == [(time, 1) for time in sorted(times)[-5:]]
