"""Who does it: each kind of fault is a method that does its worst, and yields for how many seconds it rests."""

import os
import random
import signal
import time
from collections import Counter as Tally
from collections.abc import Iterator
from contextlib import ExitStack

import redis

from demo_project import servers

from .journal import Span, now
from .site import ROLES, Ambush, Process, Site

Rests = Iterator[float]
STOPPED = (0.05, 1.5)
"""Seconds for which a process stands still."""


class Tormentor:
    def __init__(self, site: Site, server: servers.Server, faults: tuple[str, ...], chance: random.Random):
        self.site, self.server, self.faults, self.chance = site, server, faults, chance
        self.survived: Tally[str] = Tally()
        self.events: list[tuple[float, str]] = []
        self.died: dict[str, float] = {}
        self.losses: list[Span] = []
        self.servers = ExitStack()

    def run(self) -> None:
        """Start the site, torment it, and let it come to its end."""
        with self.servers, self.site:
            for role, number in ROLES.items():
                for _ in range(number):
                    self.start(role)
            acts = [getattr(self, fault)() for fault in self.faults if hasattr(self, fault)]
            due = [(now() + next(act), act) for act in acts]
            while now() < self.site.until:
                for i, (when, act) in enumerate(due):
                    if when <= now():
                        due[i] = (now() + next(act), act)
                self.look_after()
                time.sleep(0.01)
            for act in acts:
                act.close()
            self.end()

    def note(self, event: str) -> None:
        self.events.append((now(), event))

    # -------------------------------------------------------------- processes
    def start(self, role: str) -> None:
        signals = [sent for fault, sent in AMBUSHES.items() if fault[0] == role and "_".join(fault[1:]) in self.faults]
        ambush = None
        if signals and self.chance.random() < 0.7:
            ambush = Ambush(self.chance.choice(signals), self.chance.random())
        self.note(f"{self.site.start(role, ambush).name} starts")

    def look_after(self, ending: bool = False) -> None:
        """Replace who has died, and wake who has stood still for long enough."""
        for process in list(self.site.processes):
            pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                if process.stopped_until is None:
                    self.note(f"{process.name} stops itself")
                    self.survived[f"{process.role}s_stopped"] += 1
                    process.stopped_until = now() + self.chance.uniform(*STOPPED)
            elif pid:
                self.gone(process, os.waitstatus_to_exitcode(status))
            elif process.stopped_until is not None and (ending or process.stopped_until < now()):
                process.stopped_until = None
                self.note(f"{process.name} goes on")
                os.kill(process.pid, signal.SIGCONT)

    def gone(self, process: Process, code: int) -> None:
        self.site.processes.remove(process)
        self.note(f"{process.name} is gone: {code}")
        if code == -signal.SIGKILL:
            self.died[process.name] = now()
            self.survived[f"{process.role}s_killed"] += 1
        elif code:
            raise AssertionError(f"{process.name} failed by itself")
        if now() < self.site.until:
            self.start(process.role)

    def end(self) -> None:
        """Let the processes come to their end by themselves."""
        deadline = now() + 30
        while self.site.processes:
            self.look_after(ending=True)
            time.sleep(0.005)
            if now() > deadline:
                raise AssertionError(f"{[process.name for process in self.site.processes]} hang")

    def _strike(self, role: str, sent: signal.Signals) -> Rests:
        while True:
            yield self.chance.uniform(0.1, 0.5)
            process = self.chance.choice(self.site.of(role))
            if process.stopped_until is None:
                self.note(f"{process.name} gets {sent.name}")
                os.kill(process.pid, sent)
                if sent == signal.SIGSTOP:
                    self.survived[f"{role}s_stopped"] += 1
                    process.stopped_until = now() + self.chance.uniform(*STOPPED)

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

    # ------------------------------------------------------------------ Redis
    def redis_restarted_empty(self) -> Rests:
        while True:
            yield self.chance.uniform(0.2, 0.8)
            with self._restart(loses=True):
                yield self.chance.uniform(0, 0.3)

    def redis_restarted_with_aof(self) -> Rests:
        with self._client() as client:
            client.config_set("appendonly", "yes")
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.01)
        self.server.command += ["--appendonly", "yes"]
        while True:
            yield self.chance.uniform(0.2, 0.8)
            with self._restart(loses=False):
                yield self.chance.uniform(0, 0.3)

    def redis_restarted_with_old_rdb(self) -> Rests:
        while True:
            yield self.chance.uniform(0.1, 0.5)
            with self._client() as client:
                client.save()
            self.note("Redis saves its data")
            yield self.chance.uniform(0.1, 0.5)
            with self._restart(loses=True):
                yield self.chance.uniform(0, 0.3)

    def _restart(self, loses: bool) -> "Restart":
        return Restart(self, loses)

    def _client(self) -> redis.Redis:
        return redis.Redis(port=self.server.port)


class Restart:
    """Redis is killed, and started again at the end of the block."""

    def __init__(self, tormentor: Tormentor, loses: bool):
        self.tormentor, self.loses = tormentor, loses

    def __enter__(self) -> None:
        self.start = now()
        self.tormentor.note("Redis is killed")
        self.tormentor.server.kill()

    def __exit__(self, *_: object) -> None:
        self.tormentor.server.start()
        self.tormentor.note("Redis is started")
        if self.loses:
            self.tormentor.losses.append(Span(self.start, now()))
        self.tormentor.survived["redis_restarted"] += 1


AMBUSHES = {
    (role, f"{role}s", how): sent
    for role in ROLES
    for how, sent in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP))
}
