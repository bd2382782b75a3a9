"""Who torments a site, and looks after its processes.

Each kind of fault is a method that does its worst, and yields for how many seconds it rests. Here are those that befall
processes.
"""

import os
import random
import signal
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import redis

import servers
from notifications_counter.counters import unread

from . import database, truth
from .journal import Span, now
from .processes import ONLY_IF, ROLES, Ambush, Process
from .proxy import Proxy
from .site import Site

Rests = Iterator[float]
CALM = 1.0
"""Seconds of traffic without faults at the end; what a proxy delays is there by then."""
KIND, SETUP = os.environ.get("TEST_REDIS_KIND"), os.environ.get("TEST_REDIS_SETUP")
PATIENCE = 60.0
"""Seconds in which processes do what they are waited for, also on a busy machine."""
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
PROXIED = {"connections_broken", "connections_refused", "redis_failed_over", "redis_failed_over_and_back"}


@contextmanager
def start_redis(replica_of: servers.Server | None = None) -> Iterator[servers.Server]:
    """Run the Redis of a site. Of a cluster, one node is tormented."""
    if SETUP == "cluster":
        with servers.redis_cluster(2, KIND) as (node, _):
            yield node
    else:
        with servers.redis(kind=KIND, replica_of=replica_of, is_managed=SETUP == "managed") as server:
            yield server


class Tormentor:
    """Torments a site, whose Redis is ``server``, by some faults. Other servers that it starts go with ``stack``."""

    def __init__(
        self, site: Site, server: servers.Server, faults: tuple[str, ...], chance: random.Random, stack: ExitStack
    ):
        self.site, self.server, self.faults, self.chance, self.stack = site, server, faults, chance, stack
        self.longest_stop = 1.2 if "writers_killed" in faults else 2.5  # seconds
        self.survived: Tally[str] = Tally()
        self.events: list[tuple[float, str]] = []
        self.died: dict[str, float] = {}
        self.losses: list[Span] = []
        self.signs = site.signs

    def run(self, seconds: float) -> None:
        """Start the site, torment it, leave it in peace for a moment, and let it come to its end."""
        with self.site:
            self.prepare()
            self.start_all()
            acts = [getattr(self, fault)() for fault in self.faults if hasattr(self, fault)]
            due = [(now() + next(act), act) for act in acts]
            end = now() + seconds
            try:
                while now() < end:
                    for i, (when, act) in enumerate(due):
                        if when <= now():
                            due[i] = (now() + next(act), act)
                    self.look_after()
                    time.sleep(0.01)
            finally:
                for act in reversed(acts):
                    act.close()
            calm = now()
            self.note("calm")
            self.signs.calm = True
            self.wait(lambda: now() > calm + CALM and self.signs.works and self.signs.healed)
            self.signs.over = True
            self.wait(lambda: not self.site.processes)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = now() + PATIENCE
        while not condition():
            if now() > deadline:
                self.site.dump_tracebacks()
                raise AssertionError(f"nothing works again; there are {[p.name for p in self.site.processes]}")
            self.look_after()
            time.sleep(0.01)

    def prepare(self) -> None:
        """Put what the faults need between the site and its servers."""
        if "sentinel_failed_over" in self.faults:
            self.replica = self.stack.enter_context(start_redis(self.server))
        if "sentinel_failed_over" in self.faults or SETUP == "sentinel":
            self.site.sentinel_port = self.stack.enter_context(servers.redis_sentinel(self.server, KIND)).port
            self.sentinel = self.stack.enter_context(redis.Redis(port=self.site.sentinel_port))
        if "deployed" in self.faults:
            self.site.condition = truth.NARROW if unread.q == truth.WIDE else truth.WIDE
            self.do("installer")
        seed = str(self.chance.random())
        if not PROXIED.isdisjoint(self.faults):
            self.proxy = self.stack.enter_context(Proxy(self.server.port, ROLES, seed, ["delayed", "dropped", "cut"]))
            self.site.redis_ports = self.proxy.ports
        if "database_failed_over" in self.faults:  # not the server of the tests, but a copy
            self.primary = self.stack.enter_context(servers.postgresql(standby_of=database.port()))
            self.stack.callback(database.use, database.port())
            database.promote(self.primary.port)
            database.use(self.primary.port)
        if not {"database_connections_broken", "database_failed_over"}.isdisjoint(self.faults):
            names = [*ROLES, "administrator"]
            self.database_proxy = self.stack.enter_context(Proxy(database.port(), names, seed, ["delayed", "cut"]))
            self.site.database_ports = self.database_proxy.ports

    def note(self, event: str) -> None:
        self.events.append((now(), event))

    # -------------------------------------------------------------- processes
    def start_all(self) -> None:
        for role, number in ROLES.items():
            for _ in range(number if ONLY_IF.get(role) in (None, *self.faults) else 0):
                self.start(role)

    def start(self, role: str) -> Process:
        signals = [sent for how, sent in SIGNALS.items() if f"{role}s_{how}" in self.faults]
        ambush = None
        if signals and not self.signs.calm and self.chance.random() < 0.7:
            ambush = Ambush(self.chance.choice(signals), self.chance.random())
        process = self.site.start(role, ambush)
        self.note(f"{process.name} starts")
        return process

    def look_after(self) -> None:
        """Replace who has died, and wake who has stood still for long enough."""
        for process in list(self.site.processes):
            pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                if process.stopped_until is None:
                    self.note(f"{process.name} stops itself")
                    self.survived[f"{process.role}s_stopped"] += 1
                    process.stopped_until = now() + self.chance.uniform(0.05, self.longest_stop)
            elif pid:
                self.gone(process, os.waitstatus_to_exitcode(status))
            elif process.stopped_until is not None and (self.signs.calm or process.stopped_until < now()):
                process.stopped_until = None
                self.note(f"{process.name} goes on")
                os.kill(process.pid, signal.SIGCONT)

    def gone(self, process: Process, code: int) -> None:
        self.site.processes.remove(process)
        self.note(f"{process.name} is gone: {code}")
        if code == -signal.SIGKILL:
            self.died[process.name] = now()
            self.survived[f"{process.role}s_killed"] += 1
        elif code == -signal.SIGSEGV and "interrupted" in self.faults:  # not every extension in C bears it
            self.died[process.name] = now()
            self.survived["crashed_in_an_extension"] += 1
        elif code not in (0, -signal.SIGTERM):  # the latter if it has only just started
            raise AssertionError(f"{process.name} failed by itself")
        if not self.signs.over and process.role in ROLES:
            self.start(process.role)

    def do(self, role: str) -> None:
        """Start a process, and wait for its end."""
        process = self.start(role)
        self.wait(lambda: process not in self.site.processes)

    def kill_all(self) -> None:
        for process in self.site.processes:
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
            self.died[process.name] = now()
        self.site.processes.clear()

    def _strike(self, role: str, sent: signal.Signals) -> Rests:
        while True:
            yield self.chance.uniform(0.1, 0.5)
            process = self.chance.choice(self.site.of(role))
            if process.stopped_until is None:
                self.note(f"{process.name} gets {sent.name}")
                os.kill(process.pid, sent)
                if sent == signal.SIGSTOP:
                    self.survived[f"{role}s_stopped"] += 1
                    process.stopped_until = now() + self.chance.uniform(0.05, self.longest_stop)

    def writers_killed(self) -> Rests:
        return self._strike("writer", signal.SIGKILL)

    def writers_stopped(self) -> Rests:
        return self._strike("writer", signal.SIGSTOP)

    def flushers_killed(self) -> Rests:
        return self._strike("flusher", signal.SIGKILL)

    def flushers_stopped(self) -> Rests:
        return self._strike("flusher", signal.SIGSTOP)

    def readers_killed(self) -> Rests:
        return self._strike("reader", signal.SIGKILL)

    def recounters_killed(self) -> Rests:
        return self._strike("recounter", signal.SIGKILL)

    def deployed(self) -> Rests:
        """A release with another declaration: its processes replace those of the old one, one after another. Other acts
        are closed before this one, so that the servers are there at its end."""
        yield self.chance.uniform(0.3, 1)
        self.note("deployment")
        self.site.condition = unread.q
        old = self.chance.sample(self.site.processes, len(self.site.processes))
        if unread.q == truth.NARROW:  # changes that do not count any more are not heard of: first comes the flusher
            old.insert(0, self.start("upgrader"))

        def left() -> list[Process]:
            return [process for process in old if process in self.site.processes]

        try:
            while left():
                if left()[0].role != "upgrader":
                    os.kill(left()[0].pid, signal.SIGTERM)
                yield self.chance.uniform(0, 0.3)
        finally:
            self.wait(lambda: not self.site.of("upgrader"))
            for process in left():
                os.kill(process.pid, signal.SIGTERM)
            self.wait(lambda: not left())
            self.survived["deployed"] += 1
        yield PATIENCE

    @contextmanager
    def _gone(self, fault: str, loses: bool = True) -> Iterator[None]:
        start = now()
        self.note(fault)
        try:
            yield
        finally:  # the torment may end meanwhile
            self.note(f"{fault}: over")
            self.survived[fault] += 1
            if loses:
                self.losses.append(Span(start, now()))

    def _breaking(self, proxy: Proxy, name: str, chance: float) -> Rests:
        proxy.tell(chance=chance)
        try:
            while True:
                yield 1
        finally:
            for what, times in proxy.behave().items():
                self.survived[f"{name}_{what.replace(' ', '_')}"] += times
