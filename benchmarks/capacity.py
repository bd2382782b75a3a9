"""Estimates the needs of a very large site from the figures of this run, step by step."""

from __future__ import annotations

import math

from .bench import Report, number, size, table, time

USERS = 10**8
WRITES = 10**5  # notifications a second
READS = 10**6  # badges a second
INTERVAL = 60  # seconds between two flushes
LOAD = 0.5  # of a server's time, at most
SHARDS = f"shards at {LOAD:.0%} load"
PROCESSES = "processes"


def capacity(report: Report, quick: bool) -> str:
    costs = report.costs
    measured = {
        "redis_create",
        "redis_fan_out",
        "redis_read",
        "waiting",
        "warm",
        "flush",
        "create",
        "fan_out",
        "recount",
    }
    if missing := measured - costs.keys():
        raise RuntimeError(f"not measured in this run: {', '.join(sorted(missing))}")
    waiting = min(USERS, INTERVAL * WRITES)
    gib = 2**30

    def busy(times: int, what: str, comes_to: str) -> list[str]:
        """Describe the load of this number of calls a second."""
        seconds = times * costs[what]
        most = LOAD if comes_to == SHARDS else 1
        return [
            f"{size(times)} a second × {time(costs[what])}",
            f"{number(seconds)} s, {comes_to}: {math.ceil(seconds / most)}",
        ]

    flushing = waiting * costs["flush"]
    lines = [
        ["Redis: badges", *busy(READS, "redis_read", SHARDS)],
        ["Redis: notifications, one by one", *busy(WRITES, "redis_create", SHARDS)],
        ["… in calls of many", *busy(WRITES, "redis_fan_out", SHARDS)],
        [
            "Redis: memory of everyone's total",
            f"{size(USERS)} × {number(costs['warm'])} bytes",
            f"{number(USERS * costs['warm'] / gib)} GiB",
        ],
        [
            "Redis: memory of what waits",
            f"{size(waiting)} × {number(costs['waiting'])} bytes, twice",
            f"{number(2 * waiting * costs['waiting'] / gib)} GiB",
        ],
        [
            f"database: a flush every {INTERVAL} s",
            f"{size(waiting)} × {time(costs['flush'])}",
            f"{number(flushing)} s of {INTERVAL} s",
        ],
        ["database: notifications, one by one", *busy(WRITES, "create", PROCESSES)],
        ["… in calls of many", *busy(WRITES, "fan_out", PROCESSES)],
    ]
    lines.append(
        [
            "a full recount, in one process",
            f"{size(USERS)} × {time(costs['recount'])}",
            f"{number(USERS * costs['recount'] / 3600)} hours",
        ]
    )
    heading = f"{size(USERS)} users, {size(WRITES)} notifications and {size(READS)} badges a second"
    return table([heading, "arithmetic", "comes to"], lines)
