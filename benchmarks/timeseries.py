"""python -m benchmarks.timeseries [--quick]: time-sliced counters, beside the same done command by command."""

import argparse
from bisect import bisect_right
from contextlib import suppress
from time import time

from .bench import Result, compare, machine, stage, table

PRECISIONS = (1, 5, 60, 300, 3600, 18000, 86400)
SAMPLES = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; noisier figures")
    arguments = parser.parse_args()
    with stage():
        results = [update(arguments.quick), *clean(arguments.quick)]
        print("", machine(), "", table([result.row() for result in results]), sep="\n")


def client():  # type: ignore
    from django_redis import get_redis_connection

    return get_redis_connection("default")


def update(quick: bool) -> Result:
    """Against a pipeline that adds to the seven hashes and does nothing else."""
    from notifications_counter.timeseries import update_counter

    redis, calls = client(), 200

    def counted() -> None:
        for _ in range(calls):
            update_counter("hits")

    def bare() -> None:
        for _ in range(calls):
            now = int(time())
            pipeline = redis.pipeline(transaction=False)
            for precision in PRECISIONS:
                pipeline.hincrby(f"bare:{precision}:hits", now - now % precision, 1)
            pipeline.execute()

    name = "update_counter() at 7 precisions ÷ a pipeline of 7 HINCRBY"
    return compare(name, "≤ 1.3", counted, bare, rounds=10 if quick else 40, units=(calls, calls), unit="a call")


def clean(quick: bool) -> list[Result]:
    """One pass over counters of slices of a minute, of each of which the oldest slices are too old."""
    return [
        _clean("1 to 60 slices, most few", "≥ 20", 10_000, lambda n: 1 + 60 * 20 // (20 + n % 1000), quick),
        _clean("126 slices", "", 10_000, lambda n: SAMPLES + 6, quick),
    ]


def _clean(what, target, counters, slices, quick) -> Result:  # type: ignore
    from notifications_counter.timeseries import TimeSeries

    redis = client()
    series = TimeSeries(precisions=[60], samples=SAMPLES, prefix="benchmark")
    known, base = f"{series.base}:known", series.base
    minute = int(time()) // 60 * 60

    def fill() -> None:
        """The newest slices of a counter are as new as they can be; one counter in ten has only old ones."""
        for first in range(0, counters, 1000):
            pipeline = redis.pipeline(transaction=False)
            for n in range(first, first + 1000):
                size = slices(n)
                old = size if n % 10 == 0 else max(size // 10, size - SAMPLES)
                oldest = minute - 60 * (SAMPLES + old - 1)
                starts = [oldest + 60 * i for i in range(old)] + [minute - 60 * i for i in range(size - old)]
                pipeline.delete(f"{base}:60:n{n}")
                pipeline.hset(f"{base}:60:n{n}", mapping=dict.fromkeys(starts, 1))
                pipeline.zadd(known, {f"60:n{n}": 0})
            pipeline.execute()

    def book() -> None:
        """Redis in Action, listing 5.5, but for what it does between two passes."""
        from redis.exceptions import WatchError

        pipeline = redis.pipeline(True)
        index = 0
        while index < redis.zcard(known):
            found = redis.zrange(known, index, index)
            index += 1
            if not found:
                break
            member = found[0].decode()
            precision = int(member.partition(":")[0])
            key = f"{base}:{member}"
            cutoff = minute - SAMPLES * precision
            samples = sorted(map(int, redis.hkeys(key)))
            remove = bisect_right(samples, cutoff)
            if remove:
                redis.hdel(key, *samples[:remove])
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

    left = []
    for do in (book, ours):
        fill()
        do()
        left.append((redis.zrange(known, 0, -1), sorted(redis.hkeys(f"{base}:60:n1"))))
    assert left[0] == left[1]

    name = f"clean_counters() of {counters:,} counters with {what} ÷ the loop of the book"
    rounds = 2 if quick else 5
    return compare(
        name, target, ours, book, rounds=rounds, units=(counters, counters), unit="a counter", faster=True, prepare=fill
    )


if __name__ == "__main__":
    main()
