"""The tools of the benchmarks: servers, races in rounds, tables.

Contestants are timed in turn, many times, in one run. The figures are medians of the ratios in each round, because a
busy machine slows down all of them. No figure passes or fails anything.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import django

import servers
from servers.relay import Relay

OURS = "this app"
LIMIT = "limit: "
"""The beginning of the names of contestants that no counter can beat."""

PACKAGES = ("django", "django-redis", "redis", "hiredis", "psycopg", "PyMySQL")
INNODB = ("--innodb-flush-method=fsync", "--innodb-flush-log-at-trx-commit=1", "--innodb-doublewrite=1")
DURABLE = {  # as on sites
    "postgresql": ("--fsync=on", "--full_page_writes=on", "--synchronous_commit=on"),
    "mariadb": INNODB,
    "mysql": INNODB,
}
Do = Callable[[], object]
running: list[servers.Server] = []
"""The servers of this stage."""
relays: list[int] = []
"""The processes that relay to them."""


class Stage(NamedTuple):
    """A database and a Redis, each ``latency`` milliseconds away. None: Redis, or Valkey if only that is installed."""

    database: str
    redis: str | None = None
    latency: float = 0
    answers_all: bool = False

    def __str__(self) -> str:
        return f"{self.database}, {self.redis or 'redis or valkey'}{self.where}"

    @property
    def where(self) -> str:
        return f", each {self.latency:g} ms away" if self.latency else ""


@contextmanager
def servers_for(stage: Stage) -> Iterator[str]:
    """Run a fresh database and Redis, set up Django to use both, and yield their versions. Commits are durable."""

    def port(server: servers.Server) -> str:
        running.append(server)
        return str(stack.enter_context(distant(server, stage.latency)) if stage.latency else server.port)

    with ExitStack() as stack:
        os.environ["BENCHMARK_DATABASE"], versions = stage.database, []
        if stage.database == "sqlite":
            directory = stack.enter_context(servers.temporary_directory())
            os.environ["BENCHMARK_DATABASE_NAME"] = str(directory / "benchmarks.sqlite3")
            versions.append(f"SQLite {sqlite3.sqlite_version}")
        else:
            server = stack.enter_context(getattr(servers, stage.database)(*DURABLE[stage.database]))
            os.environ["BENCHMARK_DATABASE_PORT"] = port(server)
            if stage.database != "postgresql":
                import pymysql

                with pymysql.connect(host=servers.HOST, port=server.port, user="root") as connection:
                    connection.cursor().execute("CREATE DATABASE benchmarks CHARACTER SET utf8mb4")
        redis = stack.enter_context(servers.redis(kind=stage.redis))
        os.environ["BENCHMARK_REDIS_URL"] = f"redis://{servers.HOST}:{port(redis)}/0"
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        django.setup()

        from django.core.management import call_command
        from django.db import connections

        stack.callback(connections.close_all)
        call_command("migrate", verbosity=0)
        call_command("migrate", run_syncdb=True, verbosity=0)  # models without migrations
        yield ", ".join([*versions, *(f"{server.name} {server.version}" for server in running)]) + stage.where


@contextmanager
def distant(server: servers.Server, latency: float) -> Iterator[int]:
    """Yield the port of a process that passes on the replies of a server ``latency`` milliseconds later."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def pass_on() -> None:
        here.close()
        relay = Relay(server)
        relay.delay = latency / 1000
        there.send(urlsplit(relay.url).port)
        with suppress(EOFError):
            there.recv()  # until the other end is closed

    process = context.Process(target=pass_on, daemon=True)
    process.start()
    relays.append(process.pid or 0)
    yield here.recv()
    process.terminate()


# ---------------------------------------------------------------------- measuring
@contextmanager
def apart() -> Iterator[None]:
    """Pin this process to a core of its own, if Linux lets it, as if the servers were on another machine. Otherwise,
    chance decides who shares a core, and a reply from the same core takes a fraction of the time."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if len(cores) < 2:
        yield
        return
    own = {min(cores)}
    try:
        os.sched_setaffinity(0, own)
        _pin_servers(cores - own)
        yield
    finally:
        os.sched_setaffinity(0, cores)
        _pin_servers(cores)


def _pin_servers(cores: set[int]) -> None:
    for pid in [server.process.pid for server in running if server.process] + relays:
        path = Path(f"/proc/{pid}/task")
        with suppress(OSError):  # not permitted, or one has just ended
            threads = [int(thread.name) for thread in path.iterdir()]
            for one in [*threads, *map(int, (path / str(pid) / "children").read_text().split())]:
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(one, cores)


@dataclass
class Race:
    """Seconds for one unit in each round, by contestant. All others are compared with the first one."""

    rounds: dict[str, list[float]] = field(default_factory=dict)

    def median(self, name: str = OURS) -> float:
        return median(self.rounds[name])

    def ratios(self, name: str) -> list[float]:
        """Return the ratio of its time to that of the first contestant, in each round."""
        first = next(iter(self.rounds.values()))
        return [theirs / ours for ours, theirs in zip(first, self.rounds[name], strict=True)]

    def cell(self, name: str) -> str:
        if name not in self.rounds:
            return ""
        shown = time(self.median(name))
        return shown if name == next(iter(self.rounds)) else f"{shown}, {self.ratio(name)}"

    def ratio(self, name: str) -> str:
        return f"{number(median(self.ratios(name)))}×" if name in self.rounds else ""


def race(
    contestants: Mapping[str, Do | tuple[Do, int]],
    *,
    rounds: int,
    units: int = 1,
    prepare: Do = lambda: None,
    warm: bool = True,
    pin: bool = True,
    about: str = "",
) -> Race:
    """Time contestants in turn, every other round in the opposite order. A contestant may have its own number of units.
    ``prepare`` runs before each, and is not timed, nor is the first round, which fills caches if ``warm``. ``pin``: use
    ``apart()``, unless both servers work at the same time and would have to share a core."""
    found = Race({name: [] for name in contestants})
    with apart() if pin else nullcontext():
        for number in range(not warm, rounds + 1):
            order = list(contestants.items())
            for name, contestant in order if number % 2 else order[::-1]:
                do, count = contestant if isinstance(contestant, tuple) else (contestant, units)
                prepare()
                took = timed(do)
                if number:
                    found.rounds[name].append(took / count)
    if about:
        say(f"{about}: " + ", ".join(f"{name} {time(found.median(name))}" for name in contestants))
    return found


def timed(do: Do) -> float:
    """Return for how many seconds this runs."""
    started = perf_counter()
    do()
    return perf_counter() - started


def p99(taken: Sequence[float]) -> float:
    return quantiles(taken, n=100)[98] if len(taken) > 1 else taken[0]


def both(taken: Sequence[float]) -> str:
    """Return the median and the 99th percentile."""
    return f"{time(median(taken))}, {time(p99(taken))}"


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"  {text}", flush=True)


# ------------------------------------------------------------------------ showing
@dataclass
class Report:
    """The results of a stage."""

    blocks: dict[str, str] = field(default_factory=dict)  # of the page
    files: dict[str, str] = field(default_factory=dict)  # plots
    lines: dict[str, dict[str, str]] = field(default_factory=dict)  # for the tables of all stages; by contestant
    columns: dict[str, list[str]] = field(default_factory=dict)  # of the table of all databases; by heading
    failed: list[str] = field(default_factory=list)
    versions: str = ""


def matrix(races: Mapping[Any, Race], heading: str = "", show: Callable[[Any], str] = str) -> str:
    """Return a table with a contestant in each line and a race in each column."""
    names = dict.fromkeys(name for race in races.values() for name in race.rounds)
    columns = [show(at) if at != "" else "time, ÷ the first" for at in races]
    return table([heading, *columns], [[name, *(race.cell(name) for race in races.values())] for name in names])


def table(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return an aligned Markdown table."""
    rows = [list(headings), *map(list, lines)]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    text = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([text[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *text[1:]])


def number(value: float) -> str:
    """Format a number with three digits."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if abs(value) < 1000 else f"{value:,.0f}"


def time(seconds: float) -> str:
    factor, name = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1, "s")
    return f"{number(seconds * factor)} {name}"


def size(count: float) -> str:
    return f"{count:,.0f}"


def machine() -> str:
    """Describe the machine and the packages. Every commit waits for an fsync."""
    took = []
    with tempfile.TemporaryFile() as file:
        for _ in range(100):
            file.write(bytes(8192))
            file.flush()
            took.append(timed(partial(os.fsync, file.fileno())))
    cpu = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    load = f"load {os.getloadavg()[0]:.1f} when it began; an `fsync` takes {time(median(took))}"
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    name = cpu[1] if cpu else platform.machine()
    return f"- {name}, {os.cpu_count()} cores, {load}\n- Python {platform.python_version()}, {versions}"
