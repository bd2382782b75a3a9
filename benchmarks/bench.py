"""Servers of their own, alternating rounds, one table: what every benchmark needs.

Two things are timed in turn, many times, in one run, and the medians of their ratios are shown: a machine that is
busy meanwhile slows both. No figure passes or fails anything; targets are printed for the reader.
"""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import django

from demo_project import servers

PACKAGES = ("django", "django-redis", "redis", "hiredis", "psycopg", "psycopg-binary")


@contextmanager
def stage() -> Iterator[None]:
    """A fresh PostgreSQL and Redis, and Django set up to use them. PostgreSQL keeps what it commits, as sites have it;
    it vacuums when it is told to, not in a round."""
    durable = ("--fsync=on", "--full_page_writes=on", "--synchronous_commit=on")
    with servers.postgresql("--autovacuum=off", *durable) as database, servers.redis() as redis:
        os.environ["BENCHMARK_DATABASE_PORT"] = str(database.port)
        os.environ["BENCHMARK_REDIS_URL"] = redis.url
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        django.setup()

        from django.core.management import call_command
        from django.db import connections

        call_command("migrate", verbosity=0)
        call_command("migrate", run_syncdb=True, verbosity=0)  # models without migrations, which would have come first
        try:
            yield
        finally:
            connections.close_all()


@dataclass
class Result:
    """One line of the table: the ratio of each round, and what one unit took on either side, in seconds."""

    name: str
    target: str
    unit: str = ""
    ratios: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def row(self) -> tuple[str, ...]:
        low, _, high = quantiles(self.ratios, n=4) if len(self.ratios) > 1 else self.ratios * 3
        sides = f"{_time(median(self.ours))} : {_time(median(self.theirs))}"
        spread = f"{low:.3g} – {high:.3g}"
        return self.name, f"{median(self.ratios):.3g}", self.target, spread, f"{sides} {self.unit}".rstrip()


def compare(
    name: str,
    target: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    *,
    rounds: int,
    units: tuple[int, int] = (1, 1),
    unit: str = "",
    faster: bool = False,
    prepare: Callable[[], object] = lambda: None,
) -> Result:
    """Time two things in turn. ``units``: how many of ``unit`` each does; the ratio is that of the times of one,
    or with ``faster`` its inverse. ``prepare`` comes before each, and is not timed."""
    result = Result(name, target, unit)
    sides = ((ours, result.ours, units[0]), (theirs, result.theirs, units[1]))
    for number in range(rounds + 1):
        for do, seconds, count in sides if number % 2 else sides[::-1]:
            prepare()
            started = perf_counter()
            do()
            if number:  # the first round fills caches
                seconds.append((perf_counter() - started) / count)
    result.ratios = [t / o if faster else o / t for o, t in zip(result.ours, result.theirs, strict=True)]
    print(f"{name}: {median(result.ratios):.3g}", flush=True)
    return result


def table(results: list[tuple[str, ...]]) -> str:
    """Rows under their headings, as text that is also Markdown."""
    rows = [("what ÷ compared with what", "median", "target", "middle half", "time of each"), *results]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def machine() -> str:
    """What the figures were measured on."""
    from django.db import connection
    from django_redis import get_redis_connection

    versions = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"without {package}")
    redis = get_redis_connection("default").info("server")
    postgresql = ".".join(map(str, divmod(connection.pg_version, 10000)))
    versions += [f"PostgreSQL {postgresql}", f"Redis {redis.get('valkey_version') or redis['redis_version']}"]
    return f"{_cpu()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n{', '.join(versions)}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _time(seconds: float) -> str:
    for limit, factor, name in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {name}"
    return f"{seconds:.3g} s"
