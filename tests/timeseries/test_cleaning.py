import subprocess
import sys
from contextlib import ExitStack

import pytest
import redis

import servers
from notifications_counter.buffer.client import client_of
from notifications_counter.timeseries import (
    TimeSeries,
    clean_counters,
    get_counter,
    list_counters,
    update_counter,
)
from tests.support import PATIENCE, wait_until

from . import actor
from .support import LONG_AGO, MONTH, known, redis_clock, slices

pytestmark = [pytest.mark.django_db, pytest.mark.once]


# -------------------------------------------------------------------------------------------------- by the cleaner
def test_cleaning_keeps_exactly_the_newest_samples():
    series = TimeSeries(precisions=[60], samples=120)
    for minute in range(150):
        series.update_counter("hits", now=LONG_AGO + 60 * minute)
    assert len(slices(series, "hits", 60)) == 150
    newest = LONG_AGO + 60 * 149
    result = series.clean_counters(now=newest + 59)
    assert slices(series, "hits", 60) == list(range(newest - 60 * 119, newest + 1, 60))
    assert (result.counters, result.slices, result.gone) == (1, 30, 0)
    assert series.clean_counters(now=newest + 59).slices == 0
    assert series.clean_counters(now=newest + 60).slices == 1


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


@pytest.mark.slow
def test_updates_and_cleaners_in_many_processes_lose_nothing(child_environment):
    series = actor.series

    def counted(name):
        return sum(count for _, count in series.get_counter(name, MONTH))

    with ExitStack() as stack:

        def start(role):
            return stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.timeseries.actor", role],
                    env=child_environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

        updating, cleaning = [start("update"), start("update")], [start("clean"), start("clean")]
        try:
            for child in (*updating, *cleaning):
                assert child.stdout.readline() == "begins\n"
            wait_until(lambda: counted(actor.NAMES[0]) > 500)
            updated = [int(child.communicate(timeout=PATIENCE)[0]) for child in updating]
            gone = [int(child.communicate(timeout=PATIENCE)[0]) for child in cleaning]
        finally:
            for child in (*updating, *cleaning):
                child.kill()
    assert all(gone)
    assert {name: counted(name) for name in actor.NAMES} == dict.fromkeys(actor.NAMES, sum(updated))
    # Nothing exists that is not known.
    existing = {
        key.decode().removeprefix(f"{series.base}:")
        for key in series._client.redis.scan_iter(match=f"{series.base}:[0-9]*")
    }
    assert existing <= known(series)


# ------------------------------------------------------------------------------------------------- without a cleaner
def test_reads_never_show_what_is_too_old():
    series = TimeSeries(precisions=[MONTH], samples=3)
    month = redis_clock() // MONTH * MONTH
    for ago in range(5):  # some of them are too old already
        series.update_counter("hits", now=month - ago * MONTH)
    kept = [(month - ago * MONTH, 1) for ago in (2, 1, 0)]
    assert series.get_counter("hits", MONTH) == kept
    series.clean_counters()
    assert series.get_counter("hits", MONTH) == kept
    assert slices(series, "hits", MONTH) == [start for start, _ in kept]


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
    can_expire_fields = series._client.call("COMMAND", "INFO", "HEXPIREAT")[0] is not None
    first_version = {"Redis": [7, 4], "Valkey": [9]}[server.name]
    assert can_expire_fields == ([int(part) for part in server.version.split(".")] >= first_version)
    if can_expire_fields:
        for ago in (0, 1, 2):
            start = month - ago * MONTH
            assert redis.execute_command("HEXPIRETIME", key, "FIELDS", 1, start) == [start + 3 * MONTH]


def test_a_counter_with_a_clock_of_its_own_goes_by_itself():
    update_counter("hits", now=LONG_AGO)
    series = TimeSeries()
    assert 60 * 119 - 5 < series._client.redis.ttl(f"{series.base}:60:hits") <= 60 * 120


def test_slices_and_counters_go_by_themselves():
    series = TimeSeries(precisions=[1], samples=2)
    series.update_counter("hits")
    start = slices(series, "hits", 1)[0]
    wait_until(lambda: redis_clock() > start)
    series.update_counter("hits")
    # Where fields cannot expire, the key goes up to a second after its last slice, and shows all of them till then.
    wait_until(lambda: start not in dict(series.get_counter("hits", 1)))
    wait_until(lambda: series.get_counter("hits", 1) == [])
    wait_until(lambda: not series._client.redis.exists(f"{series.base}:1:hits", f"{series.base}:known"))


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


@pytest.mark.parametrize("step", [1, -1])
def test_a_counter_stays_small_when_nobody_cleans(step):
    """Also one whose past is counted later, from either end."""
    series = TimeSeries(precisions=[1], samples=5)
    times = [LONG_AGO + second * step for second in range(40)]
    for time in times:
        series.update_counter("hits", now=time)
        assert len(slices(series, "hits", 1)) <= 10
    assert series.get_counter("hits", 1) == [(time, 1) for time in sorted(times)[-5:]]


# ----------------------------------------------------------------------------------------------------------- cluster
def test_on_a_cluster(settings, request):
    kind = request.node.callspec.params["server"]
    with servers.redis_cluster(kind=kind) as nodes:
        options = {"CONNECTION_FACTORY": "notifications_counter.contrib.redis_cluster.ClusterConnectionFactory"}
        cluster = {**settings.CACHES["default"], "LOCATION": nodes[0].url, "OPTIONS": options}
        settings.CACHES = {**settings.CACHES, "cluster": cluster}
        for name in "abcdef":
            series = TimeSeries(name=name, alias="cluster")
            series.update_counters({"hits": 2, "other": 1}, now=LONG_AGO)
            series.update_counter("new")
            assert series.get_counter("hits", 60) == [(LONG_AGO, 2)]
            assert series.list_counters() == ["hits", "new", "other"]
            assert series.clean_counters().gone == 14
            assert series.list_counters() == ["new"]
        assert all(redis.Redis.from_url(node.url).dbsize() for node in nodes)
        client_of("cluster").redis.close()
