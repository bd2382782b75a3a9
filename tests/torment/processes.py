"""The processes of a site under traffic: forked, so that they are light, and each with a journal."""

import ctypes
import faulthandler
import math
import mmap
import os
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError, connections
from django.db.models import Q
from django.db.transaction import TransactionManagementError
from django.test import override_settings

import servers
from notifications_counter.counters import unread
from notifications_counter.databases.identity import forget_buffers
from notifications_counter.upkeep import heal
from notifications_counter.writes.rows import columns_of
from tests.faults.moments import Call, Countdown, Moments, of_a_flush, of_a_read, of_a_write, of_healing

from . import database, tenants
from .journal import Journal

ROLES = {"writer": 4, "reader": 4, "flusher": 2, "recounter": 1, "locker": 1}
"""How many there are."""
ONLY_IF = {"recounter": "recounters_killed", "locker": "clients_ended_at_a_lock"}
"""The fault for which there are some. A recounter rights what others do wrong."""
PAUSE = {"writer": 0.005, "reader": 0.01, "flusher": 0.03, "recounter": 0.03, "locker": 0.05}
"""Seconds between two calls."""
Interruptible = AbstractContextManager[None]
OUTAGES = (OperationalError, InterfaceError, TransactionManagementError)
MOMENTS: dict[str, Callable[[], list[Call]]] = {
    "writer": of_a_write,
    "flusher": lambda: of_a_flush() + of_healing(),
    "reader": of_a_read,
    "recounter": of_healing,
}
TIMES = {"writer": 12, "flusher": 3, "reader": 20, "recounter": 5}
"""At which of so many times of a moment a process is struck there."""


class TimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded."""


class Interrupt(BaseException):
    """As gevent's Timeout."""


INTERRUPTS = (TimeLimit, Interrupt)


@dataclass(eq=False)
class Process:
    pid: int
    role: str
    name: str
    stopped_until: float | None = None


@dataclass(frozen=True)
class Ambush:
    """A process strikes itself with a signal when it comes to some moment."""

    signal: signal.Signals
    seed: float

    def lay(self, journal: Journal, role: str) -> None:
        chance = random.Random(self.seed)

        def choose() -> Countdown:
            return Countdown(chance.choice(moments.names), chance.randint(1, TIMES[role]))

        def reached(moment: str) -> None:
            nonlocal countdown
            if countdown.is_over(moment):
                countdown = choose()
                journal.note("ambush", role, moment)
                os.kill(os.getpid(), self.signal)

        moments = Moments(MOMENTS[role](), reached)
        countdown = choose()


class Sign:
    """A flag that all processes share."""

    def __init__(self, number: int):
        self.number = number

    def __get__(self, signs: "Signs", owner: type) -> bool:
        return bool(signs.memory[self.number])

    def __set__(self, signs: "Signs", value: bool) -> None:
        signs.memory[self.number] = value


class Signs:
    """``calm``: the torment is over. ``works``: since then a change has reached Redis. ``healed``: since then a flusher
    has healed. ``over``: the round is."""

    calm, works, healed, over = Sign(0), Sign(1), Sign(2), Sign(3)

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 4)


class Interrupts:
    """``with interrupts: …`` is sometimes interrupted, wherever it is by then."""

    def __init__(self, chance: random.Random, signs: Signs):
        self.chance, self.signs = chance, signs
        self.inside = False
        signal.signal(signal.SIGALRM, self.strike)

    def __enter__(self) -> None:
        if not self.signs.calm and self.chance.random() < 0.1:
            signal.setitimer(signal.ITIMER_REAL, self.chance.uniform(0.0001, 0.03))
        self.inside = True

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            while error is not None:  # whoever handles an interrupt may raise something else
                if isinstance(error, INTERRUPTS):
                    raise error
                error = error.__cause__ or error.__context__
        finally:
            del error  # a cycle through this frame would keep a cursor alive, and with it a lock of SQLite

    def strike(self, *_: object) -> None:
        if self.inside:
            self.inside = False
            raise self.chance.choice(INTERRUPTS)


class Processes:
    """Processes that go on until all is ``over``. ``redis_ports`` and ``database_ports`` lead each role to a proxy, and
    ``sentinel_port`` all of them to a sentinel. Processes that start are of a release that counts by ``condition``."""

    def __init__(self, users: list[Any], seed: int, directory: Path, faults: tuple[str, ...]):
        self.users, self.seed, self.directory, self.faults = users, seed, directory, faults
        self.processes: list[Process] = []
        self.tracebacks = directory / "tracebacks"
        self.tracebacks.touch()
        self.started = 0
        self.redis_ports: dict[str, int] = {}
        self.database_ports: dict[str, int] = {}
        self.sentinel_port = 0
        self.condition = unread.q
        self.signs = Signs()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)

    def of(self, role: str) -> list[Process]:
        return [process for process in self.processes if process.role == role]

    def start(self, role: str, ambush: Ambush | None = None) -> Process:
        self.started += 1
        name = f"{role}{self.started}"
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self.processes.append(Process(pid, role, name))
            return self.processes[-1]
        try:
            _die_with(parent)
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1, os.open(self.tracebacks, os.O_WRONLY | os.O_APPEND))
            signal.signal(signal.SIGTERM, self.leave)
            self.begin()
            self.find_way(role)
            journal = Journal(self.directory, name)
            if ambush:
                ambush.lay(journal, role)
            getattr(self, role)(journal, random.Random(f"{self.seed} {name}"))
            os._exit(0)
        except BaseException:
            with self.tracebacks.open("a") as file:
                print(name, traceback.format_exc(), file=file)
        finally:
            os._exit(1)

    def dump_tracebacks(self) -> None:
        """Note in ``tracebacks`` where each process is."""
        for process in self.processes:
            with self.tracebacks.open("a") as file:
                print(process.name, file=file)
            os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.1)  # the process writes them itself

    def leave(self, *_: object) -> None:
        """In a process: end it after the call that is under way."""
        self.is_leaving = True

    def begin(self) -> None:
        """In a process: forget what a new one does not know."""
        self.is_leaving = False
        heal._seen.clear()
        release(self.condition, unread.sum)

    def find_way(self, role: str) -> None:
        """In a process of that role: change the settings."""
        cache = settings.CACHES["default"]
        if self.sentinel_port:
            options = {
                **cache["OPTIONS"],
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
                "SENTINELS": [(servers.HOST, self.sentinel_port)],
                "SENTINEL_KWARGS": {"socket_timeout": cache["OPTIONS"]["SOCKET_TIMEOUT"]},
            }
            cache = {**cache, "LOCATION": "redis://mymaster/0", "OPTIONS": options}
        elif role in self.redis_ports:
            cache = {**cache, "LOCATION": re.sub(r":\d+/", f":{self.redis_ports[role]}/", cache["LOCATION"])}
        override_settings(CACHES={"default": cache}).enable()
        if role in self.database_ports:
            database.use(self.database_ports[role])

    def repeat(self, role: str, journal: Journal, chance: random.Random, act: Callable[[Interruptible], None]) -> None:
        """Call ``act`` again and again, with a block around what may be interrupted."""
        interrupts = Interrupts(chance, self.signs) if "interrupted" in self.faults else nullcontext()
        limits = [0, 0, 2, 5, 10, 30] if "statements_timed_out" in self.faults else []  # milliseconds
        while not self.signs.over and not self.is_leaving:
            try:
                with tenants.at(chance.choice(tenants.tenants())):
                    if limits:
                        database.limit_statements(0 if self.signs.calm else chance.choice(limits))
                    act(interrupts)
            except (*OUTAGES, *INTERRUPTS) as error:
                self.broken_by(error, journal)
                connections.close_all()
            time.sleep(PAUSE[role])

    def broken_by(self, error: BaseException, journal: Journal) -> None:
        """Note what broke a call, and go on as a worker does."""
        if isinstance(error, INTERRUPTS):
            journal.note("fault", "interrupted")
            connections.close_all()
            for connection in connections.all(initialized_only=True):
                del connections[connection.alias]  # it may be anywhere, also between the lines of atomic()
        elif database.LIMITED.search(str(error)):
            journal.note("fault", "statements_timed_out")


def release(condition: Q, sum: str | None) -> None:
    """Be of a release that counts by this condition, or adds up a column."""
    if (unread.q, unread.sum) != (condition, sum):
        unread.q, unread.sum, unread.least = condition, sum, -math.inf if sum else 0
        for name in list(vars(unread)):
            if isinstance(getattr(type(unread), name, None), cached_property):
                delattr(unread, name)
        heal._seen.clear()
        columns_of.cache_clear()
        forget_buffers()


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
