import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from notifications_counter import timeseries
from notifications_counter.exceptions import BufferUnavailable
from tests.support import redis_out_of_reach

from .support import LONG_AGO, known, redis_clock

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def test_times():
    before = redis_clock()
    timeseries.update_counter("now")
    ((start, count),) = timeseries.get_counter("now", 1)
    assert before <= start <= redis_clock()
    assert count == 1
    for now in (LONG_AGO, LONG_AGO + 59.999, datetime.fromtimestamp(LONG_AGO + 59, ZoneInfo("Europe/Berlin"))):
        timeseries.update_counter("hits", now=now)
    assert timeseries.get_counter("hits", 60) == [(LONG_AGO, 3)]


def test_many_counters_at_once():
    counts = {f"name {n}": n for n in range(1, 131)} | {"a:b": 1, "60:a": 2, "名前": 3, "*": 4}
    timeseries.update_counters(counts, now=LONG_AGO)
    timeseries.update_counters(counts, now=LONG_AGO)
    found = {name: timeseries.get_counter(name, 300)[0][1] for name in counts}
    assert found == {name: 2 * n for name, n in counts.items()}
    with pytest.raises(ValueError, match="count=0"):
        timeseries.update_counters({"right": 1, "wrong": 0})
    assert timeseries.list_counters() == sorted(counts, key=str.encode)


def test_bad_arguments():
    for name in ("", None, 7, ["a"], "a{b", "a\nb", "\ud800", "x" * 201):
        for call in (timeseries.update_counter, lambda name: timeseries.get_counter(name, 60)):
            with pytest.raises(ValueError, match="pass a string|pass one"):
                call(name)
    for counts in (["a"], [("a", 1)], "a", None):
        with pytest.raises(ValueError, match="pass one of names and counts"):
            timeseries.update_counters(counts)
    for precisions in ([], 60, [60, 60], [0], [[60]], [True]):
        with pytest.raises(ValueError, match="pass a list of distinct integers"):
            timeseries.TimeSeries(precisions)
    for count in (0, 1.0, "1", None, True, 10**15):
        with pytest.raises(ValueError, match="pass an integer"):
            timeseries.update_counter("hits", count)
    for now in (datetime(2026, 1, 1), -1, LONG_AGO * 1000, float("nan"), "2026-01-01", True):
        for call in (timeseries.update_counter, lambda name, now: timeseries.get_counter(name, 60, start=now)):
            with pytest.raises(ValueError, match=r"pass (an aware one|seconds)"):
                call("hits", now=now)


def test_counters_are_listed_by_pages():
    timeseries.update_counters({f"n{n}": 1 for n in range(25)})
    client = timeseries._default.client.redis
    client.delete(*[f"{timeseries._default.base}:86400:n{n}" for n in (1, 5)])  # as if the server had expired them
    pages, after = [], ""
    while page := timeseries.list_counters(after, limit=10):
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [10, 10, 3]
    assert [name for page in pages for name in page] == sorted(f"n{n}" for n in range(25) if n not in (1, 5))


def test_a_family_of_its_own():
    family = timeseries.TimeSeries(precisions=[10], samples=3, name="b", alias="default")
    for n in range(5):
        family.update_counter("hits", now=LONG_AGO + 10 * n)
    assert family.get_counter("hits", 10) == [(LONG_AGO + 10 * n, 1) for n in (2, 3, 4)]
    assert timeseries.get_counter("hits", 60) == timeseries.list_counters() == []
    assert family.list_counters() == ["hits"]
    family.clean_counters()
    assert known(family) == set()


def test_async():
    async def use():
        await timeseries.aupdate_counter("hits", 2, now=LONG_AGO)
        await timeseries.aupdate_counters({"hits": 1, "other": 1}, now=LONG_AGO)
        filled = await timeseries.aget_counter("hits", 60, start=LONG_AGO, end=LONG_AGO + 120, fill=True)
        return filled, await timeseries.alist_counters(limit=1)

    assert asyncio.run(use()) == ([(LONG_AGO, 3), (LONG_AGO + 60, 0)], ["hits"])


def test_redis_out_of_reach():
    with redis_out_of_reach():
        for call in (lambda: timeseries.update_counter("hits"), timeseries.list_counters, timeseries.clean_counters):
            with pytest.raises(BufferUnavailable):
                call()
