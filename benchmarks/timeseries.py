"""Measures time-sliced counters against the same work command by command."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from time import time

from redis.exceptions import WatchError

from notifications_counter.timeseries import TimeSeries, update_counter

from .bench import OURS, Report, race, size
from .rivals import empty, redis

PRECISIONS = (1, 5, 60, 300, 3600, 18000, 86400)
SAMPLES = 120


def update(report: Report, quick: bool) -> str:
    """Race against a pipeline that only adds to the seven hashes."""
    calls = 100

    def counted() -> None:
        for _ in range(calls):
            update_counter("hits")

    def bare() -> None:
        for _ in range(calls):
            now = int(time())
            pipeline = redis.pipeline(transaction=False)
            for precision in PRECISIONS:
                pipeline.hincrby(f"bare:{precision}:hits", str(now - now % precision), 1)
            pipeline.execute()

    empty()
    does = {OURS: counted, "a bare pipeline of seven `HINCRBY`": bare}
    return report.matrix(
        "update_counter()", {"": race(does, rounds=8 if quick else 40, units=calls, about="update_counter()")}
    )


def clean(report: Report, quick: bool) -> str:
    """Measure one pass over counters with slices of a minute, where each counter has slices to drop."""
    few: Callable[[int], int] = lambda n: 1 + 60 * 20 // (20 + n % 1000)  # noqa: E731
    many: Callable[[int], int] = lambda n: SAMPLES + 6  # noqa: E731
    races = {}
    for counters in (300, 1_000, 3_000) if quick else (1_000, 10_000, 100_000):
        found = _clean(counters, few, quick)
        if len(found.rounds) > 1:  # with the loop
            races[f"{size(counters)}, 1 to 60 slices"] = found
        report.grew("cleaning, by counters", counters, found.median() * counters)
    counters = 300 if quick else 1_000
    races[f"{size(counters)}, 126 slices"] = _clean(counters, many, quick)
    return report.matrix("clean_counters()", races, "for each counter, counters:")


def _clean(counters: int, slices: Callable[[int], int], quick: bool):  # type: ignore[no-untyped-def]
    empty()
    series = TimeSeries(precisions=[60], samples=SAMPLES, name="benchmark")
    known, base = f"{series.base}:known", series.base
    minute = int(time()) // 60 * 60
    step = 1000

    def fill() -> None:
        """Fill counters with slices up to now; one counter in ten has only old slices."""
        for first in range(0, counters, step):
            pipeline = redis.pipeline(transaction=False)
            for n in range(first, min(first + step, counters)):
                most = slices(n)
                old = most if n % 10 == 0 else max(most // 10, most - SAMPLES)
                oldest = minute - 60 * (SAMPLES + old - 1)
                starts = [oldest + 60 * i for i in range(old)] + [minute - 60 * i for i in range(most - old)]
                pipeline.delete(f"{base}:60:n{n}")
                pipeline.hset(f"{base}:60:n{n}", mapping=dict.fromkeys(map(str, starts), 1))
                pipeline.zadd(known, {f"60:n{n}": 0})
            pipeline.execute()

    def book() -> None:
        """Listing 5.5 of Redis in Action, without its pauses between two passes."""
        pipeline = redis.pipeline(True)
        index = 0
        while index < redis.zcard(known):  # type: ignore[operator]
            found = redis.zrange(known, index, index)
            index += 1
            if not found:
                break
            member = found[0]  # type: ignore[index]
            precision = int(member.partition(":")[0])
            key = f"{base}:{member}"
            cutoff = minute - SAMPLES * precision
            samples = sorted(map(int, redis.hkeys(key)))  # type: ignore[arg-type]
            remove = bisect_right(samples, cutoff)
            if remove:
                redis.hdel(key, *map(str, samples[:remove]))
                if remove == len(samples):
                    with suppress(WatchError):
                        pipeline.watch(key)
                        if not pipeline.hlen(key):
                            pipeline.multi()
                            pipeline.zrem(known, member)
                            pipeline.execute()
                            index -= 1
                        else:
                            pipeline.unwatch()

    def ours() -> None:
        series.clean_counters(now=minute)

    contestants = {OURS: ours}
    if counters <= (1_000 if quick else 10_000):  # with more, the loop takes minutes
        contestants["the loop of the book"] = book
    left = []
    for do in contestants.values():
        fill()
        do()
        left.append((redis.zrange(known, 0, -1), sorted(redis.hkeys(f"{base}:60:n1"))))  # type: ignore[arg-type, type-var]
    assert left[0] == left[-1]
    return race(
        contestants,
        rounds=2 if quick else 3,
        warm=False,  # both have just run
        units=counters,
        prepare=fill,
        about=f"clean {size(counters)}",
    )
