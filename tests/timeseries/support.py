from notifications_counter.redis.client import client_of
from notifications_counter.timeseries import TimeSeries

MONTH = 2_678_400
"""The longest precision: the real clock does not reach the next slice while a test runs."""
LONG_AGO = 1_700_000_040
"""Seconds; a multiple of 60. Counters of then have a clock of their own."""


def redis_clock() -> int:
    return int(client_of("default").redis.time()[0])


def known(series: TimeSeries) -> set[str]:
    return {member.decode() for member in client_of("default").redis.zrange(f"{series.base}:known", 0, -1)}


def slices(series: TimeSeries, name: str, precision: int) -> list[int]:
    """What the hash really holds."""
    return sorted(map(int, client_of("default").redis.hkeys(f"{series.base}:{precision}:{name}")))
