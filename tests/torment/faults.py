"""Who torments a site, and looks after its processes.

Each kind of fault is a method that does its worst, and yields for how many seconds it rests. Besides, processes of a
role may be killed or stopped, as in "writers_killed".
"""

import os
import random
import re
import signal
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
from django.db import connection

import servers
from notifications_counter.counters import unread

from . import truth
from .history import Span, now
from .proxy import Proxy
from .site import ROLES, Process, Site

Rests = Iterator[float]
CALM = 1.0
"""Seconds of traffic without faults at the end; what a proxy delays is there by then."""
PATIENCE = 60.0
"""Seconds in which processes do what they are waited for, also on a busy machine."""
KIND, SETUP = os.environ.get("TEST_REDIS_KIND"), os.environ.get("TEST_REDIS_SETUP")
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


@contextmanager
def start_redis(replica_of: servers.Server | None = None) -> Iterator[servers.Server]:
    """Run the Redis of a site. Of a cluster, one node is tormented."""
    if SETUP == "cluster":
        with servers.redis_cluster(2, KIND) as (node, _):
            yield node
    else:
        with servers.redis(kind=KIND, replica_of=replica_of) as server:
            yield server


class Tormentor:
    """Torments a site, whose Redis is ``server``, by some faults. Other servers that it starts go with ``stack``.

    ``survived`` says how often what has happened, ``died`` when processes did, and ``losses`` are the times in which
    Redis had lost what it had acknowledged."""

    def __init__(
        self, site: Site, server: servers.Server, faults: tuple[str, ...], chance: random.Random, stack: ExitStack
    ):
        self.site, self.server, self.faults, self.chance, self.stack = site, server, faults, chance, stack
        self.longest_stop = 1.2 if "writers_killed" in faults else 2.5  # seconds
        self.survived: Tally[str] = Tally()
        self.events: list[tuple[float, str]] = []
        self.died: dict[str, float] = {}
        self.losses: list[Span] = []
        self.is_void = False

    def run(self, seconds: float) -> None:
        """Start the site, torment it, leave it in peace for a moment, and let it come to its end."""
        self.stack.callback(self.site.kill_all)
        self.prepare()
        self.start_all()
        acts = [self.act(fault) for fault in self.faults]
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
        self.site.calm.value = True
        self.wait(lambda: now() > calm + CALM and self.site.works.value and self.site.healed.value)
        self.site.over.value = True
        self.wait(lambda: not self.site.processes)

    def act(self, fault: str) -> Any:
        """What does this fault."""
        if befallen := re.fullmatch(f"({'|'.join(ROLES)})s_(killed|stopped)", fault):
            return self.strike(befallen[1], SIGNALS[befallen[2]])
        return getattr(self, fault)()

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = now() + PATIENCE
        while not condition():
            if now() > deadline:
                self.site.kill_all(signal.SIGUSR1)
                time.sleep(1)  # processes write where they are
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
        if "connections_broken" in self.faults:
            self.proxy = Proxy(self.server.port, seed, ["delayed", "dropped", "cut"])
            self.stack.callback(self.proxy.socket.close)
            self.site.redis_port = self.proxy.port
        if "database_connections_broken" in self.faults:
            self.database_proxy = Proxy(connection.settings_dict["PORT"], seed, ["delayed", "cut"])
            self.stack.callback(self.database_proxy.socket.close)
            self.site.database_port = self.database_proxy.port

    def note(self, event: str) -> None:
        self.events.append((now(), event))

    @contextmanager
    def gone(self, fault: str, loses: bool = True) -> Iterator[None]:
        start = now()
        self.note(fault)
        try:
            yield
        finally:  # the torment may end meanwhile
            self.note(f"{fault}: over")
            self.survived[fault] += 1
            if loses:
                self.losses.append(Span(start, now()))

    # --------------------------------------------------------------------------------------------------- processes
    def start_all(self) -> None:
        for role, number in ROLES.items():
            for _ in range(number):
                self.start(role)

    def start(self, role: str) -> Process:
        signals = [sent for how, sent in SIGNALS.items() if f"{role}s_{how}" in self.faults]
        is_struck = signals and not self.site.calm.value and self.chance.random() < 0.7
        process = self.site.start(role, self.chance.choice(signals) if is_struck else None)
        self.note(f"{process.name} starts")
        return process

    def look_after(self) -> None:
        """Replace who has died, and wake who has stood still for long enough."""
        for process in list(self.site.processes):
            pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                if process.stopped_until is None:
                    self.note(f"{process.name} stops itself")
                    self.let_stand(process)
            elif pid:
                self.replace(process, os.waitstatus_to_exitcode(status))
            elif process.stopped_until is not None and (self.site.calm.value or process.stopped_until < now()):
                process.stopped_until = None
                self.note(f"{process.name} goes on")
                os.kill(process.pid, signal.SIGCONT)

    def let_stand(self, process: Process) -> None:
        self.survived[f"{process.role}s_stopped"] += 1
        process.stopped_until = now() + self.chance.uniform(0.05, self.longest_stop)

    def replace(self, process: Process, code: int) -> None:
        self.site.processes.remove(process)
        self.note(f"{process.name} is gone: {code}")
        if code == -signal.SIGKILL:
            self.died[process.name] = now()
            self.survived[f"{process.role}s_killed"] += 1
        elif code not in (0, -signal.SIGTERM):  # the latter if it has only just started
            raise AssertionError(f"{process.name} failed by itself")
        if not self.site.over.value and process.role in ROLES:
            self.start(process.role)

    def do(self, role: str) -> None:
        """Start a process, and wait for its end."""
        process = self.start(role)
        self.wait(lambda: process not in self.site.processes)

    def strike(self, role: str, sent: signal.Signals) -> Rests:
        while True:
            yield self.chance.uniform(0.1, 0.5)
            process = self.chance.choice(self.site.of(role))
            if process.stopped_until is None:
                self.note(f"{process.name} gets {sent.name}")
                os.kill(process.pid, sent)
                if sent == signal.SIGSTOP:
                    self.let_stand(process)

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

    # ------------------------------------------------------------------------------------------------------- Redis
    def redis_restarted_empty(self) -> Rests:
        while True:
            yield self.chance.uniform(0.2, 0.8)
            yield from self.restart("empty")

    def redis_restarted_with_aof(self) -> Rests:
        """It keeps what it has acknowledged. With "everysec", it would reply to writes that wait for a sync, too."""
        with self.client() as client:
            client.config_set("appendfsync", "always")
            client.config_set("appendonly", "yes")
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.01)
        self.server.command += ["--appendonly", "yes", "--appendfsync", "always"]
        while True:
            yield self.chance.uniform(0.2, 0.8)
            yield from self.restart("with_aof", loses=False)

    def redis_restarted_with_old_rdb(self) -> Rests:
        while True:
            yield self.chance.uniform(0.1, 0.4)
            with self.client() as client:
                client.save()
            self.note("Redis saves its data")
            yield self.chance.uniform(0.1, 0.4)
            yield from self.restart("with_old_rdb")

    def restart(self, how: str, loses: bool = True) -> Rests:
        with self.gone(f"redis_restarted_{how}", loses):
            self.server.kill()
            try:
                yield self.chance.uniform(0, 0.3)
            finally:
                self.server.start()

    def sentinel_failed_over(self) -> Rests:
        """The master is killed; once a sentinel has replaced it, it comes back as a replica."""
        yield self.chance.uniform(0.3, 0.6)
        with self.gone("sentinel_failed_over"):
            self.server.kill()
            master = self.master()
            self.is_void = master["port"] != self.server.port or master["is_sdown"]  # it was given up while it lived
            try:
                while self.master()["port"] == self.server.port:
                    yield 0.02
            finally:
                while self.master()["port"] == self.server.port:
                    time.sleep(0.02)
                self.server, self.replica = self.replica, self.server
        self.replica.command += ["--replicaof", servers.HOST, str(self.server.port)]  # a sentinel takes longer
        self.replica.start()
        yield PATIENCE

    def master(self) -> dict[str, Any]:
        """What the sentinel says of the master."""
        (master,) = self.sentinel.sentinel_masters().values()
        return master

    def had_two_masters(self) -> bool:
        """Whether a sentinel, on a busy machine, took a master for dead that was not. No Redis is exact then."""
        if "sentinel_failed_over" not in self.faults:
            return False
        return self.is_void or self.master()["config-epoch"] > self.survived["sentinel_failed_over"]

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.server.port)

    # ----------------------------------------------------------------------------------------------------- network
    def connections_broken(self) -> Rests:
        return self.breaking(self.proxy, "redis", 0.03)

    def database_connections_broken(self) -> Rests:
        return self.breaking(self.database_proxy, "database", 0.01)

    def breaking(self, proxy: Proxy, name: str, chance: float) -> Rests:
        proxy.chance = chance
        try:
            while True:
                yield 1
        finally:
            proxy.chance = 0.0
            self.survived.update({f"{name}_{what}": times for what, times in proxy.done.items()})
