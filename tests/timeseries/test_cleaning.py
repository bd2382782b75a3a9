import pytest

from notifications_counter.buffer.client import client_of
from notifications_counter.timeseries import (
    TimeSeries,
    clean_counters,
    get_counter,
    list_counters,
    update_counter,
)

from .support import LONG_AGO, MONTH, known, redis_clock, slices

pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.usefixtures("server")]


def test_an_emptied_counter_is_no_longer_known():
    update_counter("old", now=LONG_AGO)
    update_counter("new")
    clean_counters()
    assert known(TimeSeries()) == {f"{precision}:new" for precision in TimeSeries().precisions}
    assert get_counter("old", 60) == []
    update_counter("old", now=LONG_AGO)
    assert list_counters() == ["new", "old"]


def test_only_what_is_due():
    for name in ("a", "b"):
        update_counter(name, now=LONG_AGO)
    seen = []
    result = clean_counters(lambda precision: precision < 100, progress=lambda *done: seen.append(done))
    assert (result.counters, result.gone) == (6, 6)
    assert seen == [(2, 6), (4, 6), (6, 6)]
    assert {member.partition(":")[0] for member in known(TimeSeries())} == {"300", "3600", "18000", "86400"}


def test_a_precision_that_left_the_settings_is_cleaned():
    TimeSeries(precisions=[7]).update_counter("hits", now=LONG_AGO)
    update_counter("hits")
    assert clean_counters().gone == 1
    assert "7:hits" not in known(TimeSeries())


def test_a_page_ends_early_when_its_counters_are_long():
    series = TimeSeries(precisions=[1], samples=10_000)
    names = [f"n{n}" for n in range(4)]
    with series._client.redis.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.hset(f"{series.base}:1:{name}", mapping={str(LONG_AGO + n): 1 for n in range(9000)})
            pipeline.zadd(f"{series.base}:known", {f"1:{name}": 0})
        pipeline.execute()
    pages = []
    assert series.clean_counters(now=LONG_AGO + 10_999, progress=lambda done, total: pages.append(done)).slices == 4000
    assert pages == [2, 4]
    assert series.clean_counters().gone == 4


# ------------------------------------------------------------------------------------------------- without a cleaner
def expires_at(key: str) -> int:
    """Seconds. EXPIRETIME is for Redis 7; time stands still in a script."""
    script = "local time = redis.call('TIME') return time[1] * 1000 + time[2] / 1000 + redis.call('PTTL', KEYS[1])"
    return round(client_of("default").redis.eval(script, 1, key) / 1000)


def test_everything_says_when_it_ends(server):
    series = TimeSeries(precisions=[MONTH], samples=3)
    redis = series._client.redis
    key, known_key = f"{series.base}:{MONTH}:hits", f"{series.base}:known"
    month = redis_clock() // MONTH * MONTH
    for ago in (1, 0, 2):
        series.update_counter("hits", now=month - ago * MONTH)
    series.update_counter("hits")
    assert expires_at(key) == expires_at(known_key) == month + 3 * MONTH
    update_counter("past", now=LONG_AGO)  # a clock of its own
    assert 60 * 119 - 5 < redis.ttl(f"{TimeSeries().base}:60:past") <= 60 * 120
    can_expire_fields = series._client.call("COMMAND", "INFO", "HEXPIREAT")[0] is not None
    first_version = {"Redis": [7, 4], "Valkey": [9]}[server.name]
    assert can_expire_fields == ([int(part) for part in server.version.split(".")] >= first_version)
    if can_expire_fields:
        for ago in (0, 1, 2):
            start = month - ago * MONTH
            assert redis.execute_command("HEXPIRETIME", key, "FIELDS", 1, start) == [start + 3 * MONTH]


def test_updates_make_forget_what_has_gone():
    idle, busy = TimeSeries(precisions=[60]), TimeSeries(precisions=[1], samples=10_000)
    idle.update_counters({f"n{n}": 1 for n in range(30)})
    idle._client.redis.delete(*[f"{idle.base}:60:n{n}" for n in range(30)])  # as if the server had expired them
    now = redis_clock()
    for ago in range(2000):
        busy.update_counter("busy", now=now - ago)
        if known(busy) == {"1:busy"}:
            break
    assert known(busy) == {"1:busy"}


@pytest.mark.parametrize(("start", "step"), [(LONG_AGO, 1), (LONG_AGO, -1), (2 * LONG_AGO, 1)])
def test_a_counter_stays_small_when_nobody_cleans(start, step):
    """Also one whose past is counted later, from either end, and one whose clock is ahead."""
    series = TimeSeries(precisions=[1], samples=5)
    times = [start + second * step for second in range(40)]
    for time in times:
        series.update_counter("hits", now=time)
        assert len(slices(series, "hits", 1)) <= 10
    assert series.get_counter("hits", 1) == [(time, 1) for time in sorted(times)[-5:]]
