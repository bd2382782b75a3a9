"""An estimate of what a very large site would need, from what was measured in this run, step by step."""

from __future__ import annotations

import math

from .bench import Report, number, size, table

USERS = 10**8
WRITES = 10**5  # notifications a second
INTERVAL = 60  # seconds between two flushes
LOAD = 0.5  # of a server's time, at most


def capacity(report: Report, quick: bool) -> str:
    costs = report.costs
    missing = {"redis_write", "waiting", "warm", "flush", "fan_out", "recount"} - costs.keys()
    if missing:
        raise RuntimeError(f"not measured in this run: {', '.join(sorted(missing))}")
    each = INTERVAL * WRITES
    waiting = min(USERS, each)
    work = WRITES * costs["redis_write"]
    shards = math.ceil(work / LOAD)
    flushing = waiting * costs["flush"]
    flushers = math.ceil(flushing / INTERVAL / LOAD)
    inserting = WRITES * costs["fan_out"]
    gib = 2**30
    micro = 1e6
    lines = [
        [
            "Redis: its own time for writes",
            f"{size(WRITES)} a second × {number(costs['redis_write'] * micro)} µs",
            f"{number(work)} s each second; at a load of {LOAD:.0%}: {shards} shards",
        ],
        [
            "Redis: memory, if every user is warm",
            f"{size(USERS)} × {number(costs['warm'])} bytes",
            f"{number(USERS * costs['warm'] / gib)} GiB; {number(USERS * costs['warm'] / gib / shards)} GiB a shard",
        ],
        [
            f"Redis: memory of what waits, flushed every {INTERVAL} s",
            f"min({size(USERS)}, {INTERVAL} × {size(WRITES)}) users × {number(costs['waiting'])} bytes, twice",
            f"{number(2 * waiting * costs['waiting'] / gib)} GiB",
        ],
        [
            "database: rows of totals that are written",
            f"at most {size(waiting)} every {INTERVAL} s",
            f"{size(waiting / INTERVAL)} a second if each is for another user, fewer otherwise",
        ],
        [
            "database: time of the flushes",
            f"{size(waiting)} × {number(costs['flush'] * micro)} µs",
            f"{number(flushing)} s of {INTERVAL} s; at a load of {LOAD:.0%}: {flushers} databases like this one",
        ],
        [
            "database: the notifications themselves, in calls of many",
            f"{size(WRITES)} a second × {number(costs['fan_out'] * micro)} µs",
            f"{number(inserting)} s each second: {math.ceil(inserting)} processes that write"
            + (f"; by `COPY`, {number(WRITES * costs['copy'])}" if "copy" in costs else ""),
        ],
        [
            "a full recount, in one process",
            f"{size(USERS)} × {number(costs['recount'] * micro)} µs",
            f"{number(USERS * costs['recount'] / 3600)} hours",
        ],
    ]
    return table([f"{size(USERS)} users, {size(WRITES)} notifications a second", "arithmetic", "comes to"], lines)
