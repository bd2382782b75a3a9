"""The processes of a site under traffic: forked, so that they are light, and each with a journal."""

import ctypes
import faulthandler
import math
import os
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import IntegrityError, InterfaceError, OperationalError, connections
from django.db.models import Q
from django.db.transaction import TransactionManagementError
from django.test import override_settings

import servers
from notifications_counter.counters import unread
from notifications_counter.databases.identity import forget_buffers
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.places import at, local_counters
from notifications_counter.upkeep.switch import put_in_force
from notifications_counter.writes.rows import columns_of
from tests.faults.moments import Call, Countdown, Moments, of_a_flush, of_a_read, of_a_write, of_healing
from tests.support import be_a_new_process, entries

from . import database, truth
from .actors import MISFORTUNES, HookRaised, Reader, Writer
from .history import Journal, now

ROLES = {"writer": 4, "reader": 4, "flusher": 2, "recounter": 1}
"""How many there are. A recounter rights what others do wrong: there is one only if it is killed."""
PAUSE = {"writer": 0.005, "reader": 0.01, "flusher": 0.03, "recounter": 0.03}
"""Seconds between two calls."""
MOMENTS: dict[str, Callable[[], list[Call]]] = {
    "writer": of_a_write,
    "flusher": lambda: of_a_flush() + of_healing(),
    "reader": of_a_read,
    "recounter": of_healing,
}
TIMES = {"writer": 12, "flusher": 3, "reader": 20, "recounter": 5}
"""At which of so many times of a moment a process is struck there."""

Interruptible = AbstractContextManager[None]
OUTAGES = (OperationalError, InterfaceError, TransactionManagementError)


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


class Interrupts:
    """``with interrupts: …`` is sometimes interrupted, wherever it is by then."""

    def __init__(self, chance: random.Random, is_calm: Callable[[], bool]):
        self.chance, self.is_calm = chance, is_calm
        self.inside = False
        signal.signal(signal.SIGALRM, self.strike)

    def __enter__(self) -> None:
        if not self.is_calm() and self.chance.random() < 0.1:
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


class Site:
    """Processes that go on until all is ``over``: a method for each role. ``redis_ports`` and ``database_ports`` lead
    each role to a proxy, and ``sentinel_port`` all of them to a sentinel. Those that start are of a release that counts
    by ``condition``.

    All processes share the signs: ``calm``: the torment is over; ``works``: since then a change has reached Redis;
    ``healed``: since then a flusher has healed; ``over``: the round is.
    """

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
        self.is_leaving = False
        self.calm, self.works, self.healed, self.over = (RawValue(ctypes.c_bool) for _ in range(4))

    def of(self, role: str) -> list[Process]:
        return [process for process in self.processes if process.role == role]

    def start(self, role: str, ambush: signal.Signals | None = None) -> Process:
        """Start a process. In an ``ambush``, it strikes itself with a signal when it comes to some moment."""
        self.started += 1
        name, parent = f"{role}{self.started}", os.getpid()
        if pid := os.fork():
            self.processes.append(Process(pid, role, name))
            return self.processes[-1]
        try:
            die_with(parent)
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1, os.open(self.tracebacks, os.O_WRONLY | os.O_APPEND))
            signal.signal(signal.SIGTERM, lambda *_: setattr(self, "is_leaving", True))  # after this call
            be_a_new_process()
            release(self.condition, unread.sum)
            self.find_way(role)
            journal, chance = Journal(self.directory, name), random.Random(f"{self.seed} {name}")
            if ambush:
                lay_ambush(ambush, journal, role, chance)
            getattr(self, role)(journal, chance)
            os._exit(0)
        except BaseException:
            with self.tracebacks.open("a") as file:
                print(name, traceback.format_exc(), file=file)
        finally:
            os._exit(1)

    def kill_all(self, sent: signal.Signals = signal.SIGKILL) -> None:
        for process in self.processes:
            os.kill(process.pid, sent)
            if sent == signal.SIGKILL:
                os.waitpid(process.pid, 0)

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
        interrupts: Interruptible = nullcontext()
        if "interrupted" in self.faults:
            interrupts = Interrupts(chance, lambda: self.calm.value)
        limits = [0, 0, 2, 5, 10, 30] if "statements_timed_out" in self.faults else []  # milliseconds
        while not self.over.value and not self.is_leaving:
            try:
                with database.at(chance.choice(database.tenants())):
                    if limits:
                        database.limit_statements(0 if self.calm.value else chance.choice(limits))
                    act(interrupts)
            except (*OUTAGES, *INTERRUPTS) as error:
                self.broken_by(error, journal)
                connections.close_all()
            time.sleep(PAUSE[role])

    def broken_by(self, error: BaseException, journal: Journal) -> None:
        """Note what broke a call, and go on as a worker does."""
        if isinstance(error, INTERRUPTS):
            journal.note("interrupted")
            connections.close_all()
            for connection in connections.all(initialized_only=True):
                del connections[connection.alias]  # it may be anywhere, also between the lines of atomic()
        elif database.LIMITED.search(str(error)):
            journal.note("statements_timed_out")

    # -------------------------------------------------------------------------------------------------------- roles
    def writer(self, journal: Journal, chance: random.Random) -> None:
        writer = Writer(self.users, chance, [each for each in MISFORTUNES if each in self.faults])
        outages: list[str] = []
        tell(BufferUnavailable, outages)

        def write(interruptible: Interruptible) -> None:
            call, action, calm = journal.call(), writer.choose(), self.calm.value
            truth.this_is(call)
            outages.clear()
            raised = ""
            journal.note("begin", call, action.__name__, now())
            try:
                with interruptible:
                    action()
            except (*OUTAGES, *INTERRUPTS, IntegrityError, HookRaised) as error:
                raised = type(error).__name__
                self.broken_by(error, journal)
                for connection in connections.all():
                    connection.close_if_unusable_or_obsolete()
            journal.note("end", now(), bool(outages), raised)
            if calm and not outages and not raised:
                self.works.value = True

        self.repeat("writer", journal, chance, write)

    def reader(self, journal: Journal, chance: random.Random) -> None:
        reader = Reader(self.users, chance)

        def read(interruptible: Interruptible) -> None:
            start = now()
            with interruptible:
                seen = reader()
            journal.note("read", start, now(), {truth.owner_name(user): number for user, number in seen.items()})

        self.repeat("reader", journal, chance, read)

    def flusher(self, journal: Journal, chance: random.Random) -> None:
        def flush(interruptible: Interruptible) -> None:
            start, calm = now(), self.calm.value
            with buffer_needed():
                heals = True  # else another release does, or nobody until DEPLOY_SECONDS are over
                for local in local_counters([unread]):
                    with at(local.place), interruptible:
                        heals &= put_in_force(unread)
                        unread.heal()
                        heals &= put_in_force(unread)
                if heals:
                    journal.note("healed", start, now())
                    self.healed.value |= calm
                for local in local_counters([unread]):
                    with at(local.place), interruptible:
                        if unread.flush().owners:
                            journal.note("flushed")

        self.repeat("flusher", journal, chance, flush)

    def recounter(self, journal: Journal, chance: random.Random) -> None:
        def recount(interruptible: Interruptible) -> None:
            with buffer_needed(), interruptible:
                unread.recount(self.users[::3])

        self.repeat("recounter", journal, chance, recount)

    def administrator(self, journal: Journal, chance: random.Random) -> None:
        """Does what `recount_counters --restored` does, for this counter, after the database went back."""
        for work in (unread.invalidate, lambda: (unread.heal(), unread.recount())):
            for local in local_counters([unread]):
                with at(local.place):
                    work()

    def installer(self, journal: Journal, chance: random.Random) -> None:
        """Starts the release with which the site begins."""
        with entries(DEPLOY_SECONDS=0):
            self.upgrader(journal, chance)

    def upgrader(self, journal: Journal, chance: random.Random) -> None:
        """The first run of a new flusher, once Redis is there."""
        for _ in database.each():
            while True:
                with buffer_needed():
                    unread.heal()
                    unread.flush()
                    break
                time.sleep(PAUSE["flusher"])


def lay_ambush(sent: signal.Signals, journal: Journal, role: str, chance: random.Random) -> None:
    """Have this process strike itself with a signal when it comes to some moment, again and again."""

    def choose() -> Countdown:
        return Countdown(chance.choice(moments.names), chance.randint(1, TIMES[role]))

    def reached(moment: str) -> None:
        nonlocal countdown
        if countdown.is_over(moment):
            countdown = choose()
            journal.note("ambush", role, moment)
            os.kill(os.getpid(), sent)

    moments = Moments(MOMENTS[role](), reached)
    countdown = choose()


def release(condition: Q, sum: str | None) -> None:
    """Be of a release that counts by this condition, or adds up a column."""
    if (unread.q, unread.sum) != (condition, sum):
        unread.q, unread.sum, unread.least = condition, sum, -math.inf if sum else 0
        for name in list(vars(unread)):
            if isinstance(getattr(type(unread), name, None), cached_property):
                delattr(unread, name)
        be_a_new_process()
        columns_of.cache_clear()
        forget_buffers()


@contextmanager
def buffer_needed() -> Iterator[None]:
    """What needs the buffer is given up without it; if what broke is the database, the next try has a new connection,
    as in `flush_counters --loop`."""
    try:
        yield
    except BufferUnavailable:
        connections.close_all()


def tell(error: type[Exception], told: list[str]) -> None:
    """Note every such error that is made, also if somebody deals with it."""
    init = error.__init__

    def noting(self: Exception, *args: Any) -> None:
        told.append(str(args))
        init(self, *args)

    error.__init__ = noting  # type: ignore[method-assign]


def die_with(parent: int) -> None:
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)
