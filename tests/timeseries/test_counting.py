import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
import redis

import servers
from notifications_counter import timeseries
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.timeseries import (
    TimeSeries,
    aget_counter,
    alist_counters,
    aupdate_counter,
    aupdate_counters,
    get_counter,
    list_counters,
    update_counter,
    update_counters,
)
from tests.support import CLUSTER, redis_out_of_reach

from .support import LONG_AGO, known, redis_clock

pytestmark = [pytest.mark.django_db, pytest.mark.once]

BERLIN = ZoneInfo("Europe/Berlin")


# ------------------------------------------------------------------------------------------------------ counting
def test_now_is_the_time_of_the_server():
    before = redis_clock()
    update_counter("hits")
    ((start, count),) = get_counter("hits", 1)
    assert before <= start <= redis_clock()
    assert count == 1


@pytest.mark.parametrize("now", [LONG_AGO, LONG_AGO + 59.999, datetime.fromtimestamp(LONG_AGO + 59, BERLIN)])
def test_times(now):
    update_counter("hits", now=now)
    assert get_counter("hits", 60) == [(LONG_AGO, 1)]


def test_many_counters_at_once():
    counts = {f"name {n}": n for n in range(1, 131)}
    update_counters(counts, now=LONG_AGO)
    update_counters(counts, now=LONG_AGO)
    assert {name: get_counter(name, 300)[0][1] for name in counts} == {name: 2 * n for name, n in counts.items()}
    assert len(known(TimeSeries())) == 7 * 130
    update_counters({})
    with pytest.raises(ValueError, match="count=0"):
        update_counters({"right": 1, "wrong": 0})
    assert "right" not in list_counters()


def test_names_are_kept_apart():
    names = ["a", "a:b", "60:a", "ä", "名前", "a b", "*", "x" * 200]
    for number, name in enumerate(names):
        update_counter(name, number + 1, now=LONG_AGO)
    assert [get_counter(name, 60) for name in names] == [[(LONG_AGO, n + 1)] for n in range(len(names))]
    assert list_counters() == sorted(names, key=str.encode)


def test_bad_arguments():
    for name in ("", None, 7, b"hits", "a{b", "a}b", "a\nb", "a\x00b", "a\x7fb", "\ud800", "x" * 201):
        for call in (update_counter, lambda name: get_counter(name, 60)):
            with pytest.raises(ValueError, match="pass a string|pass one"):
                call(name)
    for count in (0, 1.0, "1", None, True, 10**15, -(10**15)):
        with pytest.raises(ValueError, match="pass an integer"):
            update_counter("hits", count)


@pytest.mark.parametrize(
    ("now", "hint"),
    [
        (datetime(2026, 1, 1), "pass an aware one"),
        (-1, "seconds, not milliseconds"),
        (LONG_AGO * 1000, "seconds, not milliseconds"),
        (float("nan"), "seconds"),
        (float("inf"), "seconds"),
        ("2026-01-01", "pass seconds"),
        (True, "pass seconds"),
    ],
)
def test_bad_times(now, hint):
    for call in (
        lambda: update_counter("hits", now=now),
        lambda: get_counter("hits", 60, start=now),
        lambda: timeseries.clean_counters(now=now),
    ):
        with pytest.raises(ValueError, match=hint):
            call()


def test_a_count_too_large_for_redis_is_refused_whole():
    most = int("9" * 15)  # the most digits that the page promises
    key = f"{TimeSeries().base}:86400:hits"
    update_counter("hits", most, now=LONG_AGO)
    client = timeseries._default._client
    client.redis.hincrby(key, LONG_AGO // 86400 * 86400, 2**63 - 1 - most)
    with pytest.raises(BufferUnavailable):
        update_counter("hits", now=LONG_AGO)
    client.breaker.reset()
    assert get_counter("hits", 60) == [(LONG_AGO, most)]


# ------------------------------------------------------------------------------------------------------- listing
def test_counters_are_listed_by_pages():
    update_counters({f"n{n}": 1 for n in range(25)})
    pages, after = [], ""
    while page := list_counters(after, limit=10):
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [name for page in pages for name in page] == sorted(f"n{n}" for n in range(25))
    assert list_counters(precision=1) == list_counters()


def test_expired_counters_are_not_listed():
    brief = TimeSeries(precisions=[1000], samples=1)
    brief.update_counters(dict.fromkeys("abcdef", 1))
    for name in "abde":
        brief._client.redis.delete(f"{brief.base}:1000:{name}")
    assert brief.list_counters(limit=1) == ["c"]
    assert brief.list_counters(after="c", limit=2) == ["f"]


# ------------------------------------------------------------------------------------------------------ families


def test_a_family_of_its_own():
    family = TimeSeries(precisions=[10], samples=3, name="b", alias="default")
    for n in range(5):
        family.update_counter("hits", now=LONG_AGO + 10 * n)
    assert family.get_counter("hits", 10) == [(LONG_AGO + 10 * n, 1) for n in (2, 3, 4)]
    assert get_counter("hits", 60) == list_counters() == []
    assert family.list_counters() == ["hits"]
    family.clean_counters()
    assert known(family) == set()


# ---------------------------------------------------------------------------------------------- async and outages
def test_async():
    async def use():
        await aupdate_counter("hits", 2, now=LONG_AGO)
        await aupdate_counters({"hits": 1, "other": 1}, now=LONG_AGO)
        return (
            await aget_counter("hits", 60),
            await aget_counter("hits", 60, start=LONG_AGO, end=LONG_AGO + 120, fill=True),
            await alist_counters(limit=1),
        )

    filled = [(LONG_AGO, 3), (LONG_AGO + 60, 0)]
    assert asyncio.run(use()) == ([(LONG_AGO, 3)], filled, ["hits"])


def test_redis_out_of_reach():
    with redis_out_of_reach():
        for call in (
            lambda: update_counter("hits"),
            lambda: get_counter("hits", 60),
            list_counters,
            timeseries.clean_counters,
        ):
            with pytest.raises(BufferUnavailable):
                call()


def test_on_a_cluster(use):
    with servers.redis_cluster() as nodes:
        client = use(nodes[0].url, CONNECTION_FACTORY=CLUSTER)
        for name in "abcdef":
            series = TimeSeries(name=name)
            series.update_counters({"hits": 2, "other": 1}, now=LONG_AGO)
            series.update_counter("new")
            assert series.get_counter("hits", 60) == [(LONG_AGO, 2)]
            assert series.list_counters() == ["hits", "new", "other"]
            assert series.clean_counters().gone == 14
            assert series.list_counters() == ["new"]
        assert all(redis.Redis.from_url(node.url).dbsize() for node in nodes)
        client.redis.close()
