"""Measures the event log and the time-sliced counters against the same work command by command."""

from __future__ import annotations

from functools import partial
from time import time
from typing import Any

from notifications_counter import events
from notifications_counter.timeseries import update_counter

from .bench import OURS, Report, matrix, race
from .rivals import empty, redis

PRECISIONS = (1, 5, 60, 300, 3600, 18000, 86400)


def recipes(report: Report, quick: bool) -> str:
    """Race one call against a bare pipeline with the same commands."""
    times = 100
    event = {"type": "login", "user": 17}

    def record(_: int) -> None:
        events.record_event(event)

    def store(n: int) -> None:
        pipeline = redis.pipeline(transaction=False)
        pipeline.hset(f"bare:event:{n}", mapping=event)  # type: ignore[arg-type]
        pipeline.zadd("bare:events", {str(n): n})
        pipeline.zadd("bare:events:login", {str(n): n})
        pipeline.execute()

    def add(_: int) -> None:
        now = int(time())
        pipeline = redis.pipeline(transaction=False)
        for precision in PRECISIONS:
            pipeline.hincrby(f"bare:{precision}:hits", str(now - now % precision), 1)
        pipeline.execute()

    empty()
    races = {}
    for name, ours, bare in (
        ("`record_event()`", record, store),
        ("`update_counter()`", lambda _: update_counter("hits"), add),
    ):
        ways: dict[str, Any] = {OURS: ours, "a bare pipeline": bare}
        does = {way: lambda do=do: [do(n) for n in range(times)] for way, do in ways.items()}
        races[name] = race(does, rounds=5 if quick else 25, units=times, about=name)
    many = partial(events.record_events, [event] * times)
    races["`record_events()` of 100, each"] = race({OURS: many}, rounds=5 if quick else 25, units=times)
    return matrix(races)
