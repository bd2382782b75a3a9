"""Who does it: each kind of fault is a method that does its worst, and yields for how many seconds it rests."""

import os
import random
import signal
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import redis

import servers
from notifications_counter.conf import options
from notifications_counter.counters import unread
from tests.backup import save_database

from . import database, truth
from .journal import Span, now
from .proxy import Proxy
from .site import ONLY_IF, ROLES, Ambush, Process, Site

Rests = Iterator[float]
CALM = 1.0
"""Seconds of traffic without faults at the end; what a proxy delays is there by then."""
KIND = os.environ.get("TEST_REDIS_KIND")
IS_MANAGED = bool(os.environ.get("TEST_REDIS_MANAGED"))
start_redis = partial(servers.redis, kind=KIND, is_managed=IS_MANAGED)
PATIENCE = 30.0
"""Seconds in which processes do what they are waited for, also on a busy machine."""
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
PROXIED = {"connections_broken", "connections_refused", "redis_failed_over", "redis_failed_over_and_back"}
HARMLESS = {"total", "group", "lease", "ready", "stats", "recounted", "database"}
"""Kinds of keys that Redis may lose while every read stays right."""


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
        self.due = [0.0]
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
                for act in acts:
                    act.close()
            calm = now()
            self.note("calm")
            self.signs.calm = True
            self.wait(lambda: now() > calm + CALM and self.signs.works)
            self.signs.over = True
            self.wait(lambda: not self.site.processes)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = now() + PATIENCE
        while not condition():
            assert now() < deadline, f"nothing works again; there are {[p.name for p in self.site.processes]}"
            self.look_after()
            time.sleep(0.01)

    def prepare(self) -> None:
        """Put what the faults need between the site and its servers."""
        if "sentinel_failed_over" in self.faults:
            self.replica = self.stack.enter_context(start_redis(replica_of=self.server))
            self.site.sentinel_port = self.stack.enter_context(servers.redis_sentinel(self.server, KIND)).port
            self.sentinel = self.stack.enter_context(redis.Redis(port=self.site.sentinel_port))
        if "deployed" in self.faults:
            self.site.condition = truth.NARROW if unread.q == truth.WIDE else truth.WIDE
            self.do("installer")
        seed = str(self.chance.random())
        if not PROXIED.isdisjoint(self.faults):
            self.proxy = self.stack.enter_context(
                Proxy(self.server.entrance, ROLES, seed, ["delayed", "dropped", "cut"])
            )
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
        elif code:
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
        """A release with another declaration: its processes replace those of the old one, one after another."""
        yield self.chance.uniform(0.3, 1)
        self.note("deployment")
        self.site.condition = unread.q
        if unread.q == truth.NARROW:  # changes that do not count any more are not heard of
            self.do("upgrader")
        old = self.chance.sample(self.site.processes, len(self.site.processes))

        def left() -> list[Process]:
            return [process for process in old if process in self.site.processes]

        try:
            while left():
                os.kill(left()[0].pid, signal.SIGTERM)
                yield self.chance.uniform(0, 0.3)
        finally:
            for process in left():
                os.kill(process.pid, signal.SIGTERM)
            self.wait(lambda: not left())
            self.survived["deployed"] += 1
            self.due.append(now() + CALM + options.DEPLOY_SECONDS + 1)
        yield PATIENCE

    # ------------------------------------------------------------------ Redis
    def redis_restarted_empty(self) -> Rests:
        while True:
            yield self.chance.uniform(0.2, 0.8)
            yield from self._restart("empty")

    def redis_restarted_with_aof(self) -> Rests:
        with self._client() as client:
            client.config_set("appendonly", "yes")
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.01)
        self.server.command += ["--appendonly", "yes"]
        while True:
            yield self.chance.uniform(0.2, 0.8)
            yield from self._restart("with_aof", loses=False)

    def redis_restarted_with_old_rdb(self) -> Rests:
        while True:
            yield self.chance.uniform(0.1, 0.4)
            with self._client() as client:
                client.save()
            self.note("Redis saves its data")
            yield self.chance.uniform(0.1, 0.4)
            yield from self._restart("with_old_rdb")

    def _restart(self, how: str, loses: bool = True) -> Rests:
        with self._gone(f"redis_restarted_{how}", loses):
            self.server.kill()
            try:
                yield self.chance.uniform(0, 0.3)
            finally:
                self.server.start()

    def redis_failed_over(self) -> Rests:
        """To a replica that lags behind: it is cut off from its master a moment before that is killed."""
        while True:
            replica = self.stack.enter_context(start_redis(replica_of=self.server))
            yield self.chance.uniform(0.1, 0.4)
            with redis.Redis(port=replica.port) as client:
                client.replicaof("NO", "ONE")
            yield self.chance.uniform(0, 0.3)
            with self._gone("redis_failed_over"):
                self.server.kill()
                try:
                    yield self.chance.uniform(0, 0.3)
                finally:
                    self.server = replica
                    self.proxy.tell(target=replica.entrance)

    def redis_failed_over_and_back(self) -> Rests:
        """To a replica that lags behind, and back to the first server, which was never restarted."""
        other = self.stack.enter_context(start_redis(replica_of=self.server))
        while True:
            yield self.chance.uniform(0.1, 0.4)
            with self._gone("redis_failed_over_and_back"):
                for _ in range(2):
                    try:
                        yield from self._swap(other)
                    finally:
                        self.server, other = other, self.server
                        self.proxy.tell(target=self.server.entrance)

    def _swap(self, replica: servers.Server) -> Rests:
        """Promote the replica, a moment before the master follows it."""
        with redis.Redis(port=replica.port) as after, self._client() as before:
            while after.info("replication").get("master_link_status") != "up":
                yield 0.01
            after.replicaof("NO", "ONE")
            try:
                yield self.chance.uniform(0, 0.2)
            finally:
                before.replicaof(servers.HOST, replica.port)

    def redis_keys_deleted(self) -> Rests:
        """One at a time."""
        while True:
            yield self.chance.uniform(0.05, 0.2)
            with self._client() as client:
                kinds: dict[str, list[bytes]] = {}
                for key in sorted(client.keys("*unread:*")):
                    kinds.setdefault(kind_of(key), []).append(key)
                kind = self.chance.choice(list(kinds))
                with self._gone(f"redis_key_deleted:_{kind}", loses=kind not in HARMLESS):
                    client.delete(self.chance.choice(kinds[kind]))

    def sentinel_failed_over(self) -> Rests:
        """The master is killed; once a sentinel has replaced it, it comes back as a replica."""
        while True:
            yield self.chance.uniform(0.3, 0.6)
            with self._gone("sentinel_failed_over"):
                self.server.kill()
                try:
                    while self._master() == self.server.port:
                        yield 0.02
                finally:
                    while self._master() == self.server.port:
                        time.sleep(0.02)
                    self.server, self.replica = self.replica, self.server
            self.replica.start()
            with redis.Redis(port=self.replica.port) as client:
                while client.info("replication").get("master_link_status") != "up":
                    yield 0.05

    def _master(self) -> int:
        return int(self.sentinel.sentinel_get_master_addr_by_name("mymaster")[1])

    def failovers_by_mistake(self) -> int:
        """How often a sentinel, on a busy machine, took a master for dead that was not."""
        if "sentinel_failed_over" not in self.faults:
            return 0
        (master,) = self.sentinel.sentinel_masters().values()
        return master["config-epoch"] - self.survived["sentinel_failed_over"]

    def redis_stalled(self) -> Rests:
        """It answers late, when clients have given up."""
        while True:
            yield self.chance.uniform(0.2, 0.6)
            with self._gone("redis_stalled", loses=False):
                self.server.pause()
                try:
                    yield self.chance.uniform(0.3, 0.8)
                finally:
                    self.server.resume()

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

    def _client(self) -> redis.Redis:
        return redis.Redis(port=self.server.port)

    # --------------------------------------------------------------- database
    def database_failed_over(self) -> Rests:
        """To a standby that lags behind: it is promoted a moment before the primary is killed."""
        standby = self.stack.enter_context(servers.postgresql(standby_of=self.primary.port))
        yield self.chance.uniform(0.3, 1)
        with self._gone("database_failed_over"):
            written = database.written(self.primary.port)  # and with it all that readers have seen so far
            self.wait(lambda: database.has_received(standby.port, written))
            database.promote(standby.port)
            try:
                yield self.chance.uniform(0, 0.3)
            finally:
                self.primary.kill()
                database.use(standby.port)
                self.database_proxy.tell(target=standby.port)
                self.do("administrator")
        yield PATIENCE

    def database_restored(self) -> Rests:
        """From a backup, while nothing works on it."""
        yield self.chance.uniform(0.1, 0.5)
        with self._gone("database_restored"):
            restore = save_database(self.site.directory / "backup")
            yield self.chance.uniform(0.2, 1)
            self.note("the site is killed, and its database restored")
            self.kill_all()
            restore()
            self.chance.choice([self._start_and_recount, self._recount_and_start])()
        yield PATIENCE

    def _start_and_recount(self) -> None:
        """Like those who are in a hurry."""
        self.start_all()
        started = now()
        self.wait(lambda: now() > started + self.chance.uniform(0, 0.5))
        self.do("administrator")

    def _recount_and_start(self) -> None:
        self.do("administrator")
        self.start_all()

    # ------------------------------------------------------------ connections
    def connections_broken(self) -> Rests:
        return self._breaking(self.proxy, "redis", 0.03)

    def database_connections_broken(self) -> Rests:
        return self._breaking(self.database_proxy, "database", 0.01)

    def _breaking(self, proxy: Proxy, name: str, chance: float) -> Rests:
        proxy.tell(chance=chance)
        try:
            while True:
                yield 1
        finally:
            for what, times in proxy.behave().items():
                self.survived[f"{name}_{what.replace(' ', '_')}"] += times

    def connections_refused(self) -> Rests:
        """Some have no way to Redis, others have."""
        while True:
            yield self.chance.uniform(0.1, 0.5)
            cut_off = self.chance.sample(list(ROLES), self.chance.randint(1, 2))
            self.note(f"Redis is out of reach of {cut_off}")
            with self._gone("redis_out_of_reach_of_some", loses=False):
                self.proxy.tell(shut=cut_off)
                try:
                    yield self.chance.uniform(0.1, 0.8)
                finally:
                    self.proxy.tell(shut=[])


def kind_of(key: bytes) -> str:
    """Like "pending" or "total". The id of the database stands before it, but for the key that tells this id."""
    first, second, *_ = key.decode().partition("}:")[2].split(":")
    return first if first == "database" else second
