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
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import IntegrityError, InterfaceError, OperationalError, connection
from django.db.models import Q
from django.db.transaction import TransactionManagementError
from django.test import override_settings

import servers
from notifications_counter.counters import unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import CounterState
from notifications_counter.upkeep.switch import settle
from notifications_counter.writes.rows import columns_of
from tests.faults.moments import OF_A_FLUSH, OF_A_READ, OF_A_WRITE, OF_HEALING, Countdown, Moments
from tests.support import be_a_new_process, entries

from . import truth
from .history import Journal, now
from .writer import Writer

ROLES = {"writer": 4, "reader": 4, "flusher": 2}
"""How many processes there are."""
PAUSE = {"writer": 0.005, "reader": 0.01, "flusher": 0.03}
"""Seconds between two calls."""
MOMENTS = {"writer": OF_A_WRITE, "flusher": OF_A_FLUSH + OF_HEALING, "reader": OF_A_READ}
TIMES = {"writer": 12, "flusher": 3, "reader": 20}
"""At which of so many times of a moment a process is struck there."""

OUTAGES = (OperationalError, InterfaceError, IntegrityError, TransactionManagementError)
"""What comes out of a broken connection; and two writers may save a row that a third one has deleted."""


@dataclass(eq=False)
class Process:
    pid: int
    role: str
    name: str
    stopped_until: float | None = None


class Site:
    """Processes that go on until all is ``over``: a method for each role. ``redis_port`` and ``database_port`` lead to
    a proxy, ``sentinel_port`` to a sentinel. Those that start are of a release that counts by ``condition``.

    All processes share the signs: ``calm``: the torment is over; ``works``: since then a change has reached Redis;
    ``healed``: since then a flusher has healed; ``over``: the round is.
    """

    def __init__(self, users: list[Any], seed: int, directory: Path):
        self.users, self.seed, self.directory = users, seed, directory
        self.processes: list[Process] = []
        self.tracebacks = directory / "tracebacks"
        self.tracebacks.touch()
        self.started = 0
        self.redis_port = self.database_port = self.sentinel_port = 0
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
            self.find_way()
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

    def find_way(self) -> None:
        """In a process: change the settings."""
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
        elif self.redis_port:
            cache = {**cache, "LOCATION": re.sub(r":\d+/", f":{self.redis_port}/", cache["LOCATION"])}
        override_settings(CACHES={"default": cache}).enable()
        if self.database_port:
            connection.close()
            connection.settings_dict["PORT"] = str(self.database_port)

    def repeat(self, role: str, act: Callable[[], None]) -> None:
        while not self.over.value and not self.is_leaving:
            try:
                act()
            except OUTAGES:
                connection.close()
            time.sleep(PAUSE[role])

    # -------------------------------------------------------------------------------------------------------- roles
    def writer(self, journal: Journal, chance: random.Random) -> None:
        writer = Writer(self.users, chance)
        outages: list[str] = []
        tell(BufferUnavailable, outages)

        def write() -> None:
            call, action, calm = journal.call(), writer.choose(), self.calm.value
            truth.this_is(call)
            outages.clear()
            raised = ""
            journal.note("begin", call, now())
            try:
                action()
            except OUTAGES as error:
                raised = type(error).__name__
                connection.close_if_unusable_or_obsolete()
            journal.note("end", now(), bool(outages), raised)
            if calm and not outages and not raised:
                self.works.value = True

        self.repeat("writer", write)

    def reader(self, journal: Journal, chance: random.Random) -> None:
        def read() -> None:
            user = chance.choice(self.users)
            start = now()
            seen = unread.counts(self.users) if chance.random() < 0.2 else {user: unread.count(user)}
            journal.note("read", start, now(), {truth.owner_name(user): number for user, number in seen.items()})

        self.repeat("reader", read)

    def flusher(self, journal: Journal, chance: random.Random) -> None:
        def flush() -> None:
            start, calm = now(), self.calm.value
            with buffer_needed():
                heals = may_heal()
                unread.heal()
                if heals and may_heal():
                    journal.note("healed", start, now())
                    self.healed.value |= calm
                if unread.flush().owners:
                    journal.note("flushed")

        self.repeat("flusher", flush)

    def installer(self, journal: Journal, chance: random.Random) -> None:
        """Starts the release with which the site begins. The next one has never run, or it could not be put in force
        beside a flusher of this one."""
        with entries(DEPLOY_SECONDS=0):
            self.upgrader(journal, chance)
        CounterState.objects.update(replaced="")

    def upgrader(self, journal: Journal, chance: random.Random) -> None:
        """The first run of a new flusher, once Redis is there."""
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

    moments = Moments(MOMENTS[role], reached)
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


def may_heal() -> bool:
    """Whether this release heals. Otherwise another one does, or nobody until DEPLOY_SECONDS are over."""
    return settle(unread)


@contextmanager
def buffer_needed() -> Iterator[None]:
    """What needs the buffer is given up without it; if what broke is the database, the next try has a new connection,
    as in `flush_counters --loop`."""
    try:
        yield
    except BufferUnavailable:
        connection.close()


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
