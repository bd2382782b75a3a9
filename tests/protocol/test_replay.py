"""The shortest history that breaks the protocol without one of its rules, step by step with the real thing: nothing is
read wrong on the way, and in the end everything is right.

Reads, flushes and heals are the package's own, in greenlets that pause before each step of the model. They share a
connection to the database: no history does what a lock would prevent.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import copy
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import greenlet
import pytest
from django.db import connection, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from redis.exceptions import ConnectionError

from notifications_counter.buffer import Buffer, buffer
from notifications_counter.buffer.types import EVERYONE
from notifications_counter.conf import options
from notifications_counter.counters import Counter
from notifications_counter.declaration.primary_keys import CompositePk
from notifications_counter.models import CounterState, DoubtRequest
from notifications_counter.redis.client import read_all_owed
from notifications_counter.redis.connection import Connection
from notifications_counter.sql import counts
from notifications_counter.upkeep import comparison, flush, generations, heal, phases, switch, walk
from notifications_counter.upkeep.findings import Result
from notifications_counter.writes import log as writes
from notifications_counter.writes.log import request_doubts
from tests.composite_owners.counters import votes
from tests.composite_owners.models import Vote, VoteCount
from tests.support import announce, be_a_new_process, entries, generation, stored, unheard

from . import model
from .scenarios import HISTORIES, TOGETHER, WRONG, explore, is_quiet, start_of

pytestmark = pytest.mark.django_db(transaction=True)

STEPS: list[tuple[Any, str]] = [
    (Buffer, "totals:get lease:lease keep:keep look:look cut:cut fetch:fetch drop:drop begin_generation:generation"),
    (counts, "_count:count"),
    (flush.Flush, "run:row _store:apply"),
    (heal, "settle:begin _doubt_requested:requests _ground_overdue:ground situation_of:check"),
    (QuerySet, "delete:delete"),
    (generations, "walk_from_the_start:note"),
    (comparison.Comparison, "_announced:ask _is_settled:settled"),
    (Result, "add_wrong:wrong"),
    (walk.Walker, "_row:page _doubt:doubt _move:leave"),
]
"""What does the steps of the model, and their names."""

NAMES = {"rows": "count", "compare": "count", "unsure": "doubt"}
"""Steps that have another name in the model."""

LOCKED, WAITING = {"generation", "note"}, {"begin", "check", "on", "page", "leave", "apply"}  # before these steps

SUBJECTS: dict[str, Callable[..., Any]] = {
    "keep": lambda buffer, lease, counts: lease.owner_keys,
    "apply": lambda flush, counts, mark: counts,
    "doubt": lambda walker, keys: keys,
    "delete": lambda rows: rows.model is DoubtRequest,
}
"""Without these, a call is no step of the model."""


class Process(greenlet.greenlet):
    running: "Process | None" = None
    at = ""  # the step that is next

    def __init__(self, work: Callable[[], Any], in_force: set[tuple[str, str]] | None = None):
        super().__init__(work)
        self.amid = set[str]()
        self.in_force = in_force or set()  # what it has found
        self.go_on()

    def go_on(self, killed: bool = False) -> None:
        if not self.dead:
            switch._in_force, Process.running, self.at = self.in_force, self, ""
            (self.throw if killed else self.switch)()
            Process.running = None

    def pause(self, step: str) -> None:
        self.at = step
        self.parent.switch()


def paused(real: Callable[..., Any], step: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        process = Process.running
        if not process or step in process.amid or (step in SUBJECTS and not SUBJECTS[step](*args)):
            return real(*args, **kwargs)
        process.pause(step)
        process.amid.add(step)  # a read of a new generation asks again, which is the same step
        try:
            return real(*args, **kwargs)
        finally:
            process.amid.remove(step)

    return call


class Replay:
    """The processes of a history. ``play`` takes a step if the process is before it: a rule may have kept it away."""

    def __init__(self, scenario: str, monkeypatch: pytest.MonkeyPatch):
        start = start_of(scenario)
        self.models, self.at_first = start.processes, start.db.owners
        self.keys = [CompositePk((1, item, 5)) for item, _ in enumerate(start.db.owners)]
        self.trouble, self.move = "", model.Move(0, "", "")  # of what is sent now
        self.held: list[Any] = []  # DoubtRequests to be committed with the rows
        self.logs: dict[int, writes.TransactionLog] = {}  # by writer
        self.early = set[str]()  # intents
        self.over, self.suspects = set[int](), set[int]()  # writers whose transactions are over, or may be
        self.committed, self.seen = set[int](), set[int]()  # those whose changes a reader may see, or every one sees
        self.allowed: dict[int, set[int]] = {}  # by reader
        self.lagging: set[int] = set()
        old = copy(votes)
        for name in ("_buffers", "condition", "_content", "columns", "_names"):
            vars(old).pop(name, None)
        old.q = Q(points__isnull=False)
        self.counters: dict[int, Counter] = {model.NEW: votes, model.OLD: old}
        self.buffer = votes.buffer
        self.redis: Any = self.buffer.client.redis
        self.start(start)
        self.generation = in_force()
        self.patch(monkeypatch)
        self.processes = [self.process(i, process) for i, process in enumerate(self.models)]
        self.greenlets = [process for process in self.processes if isinstance(process, Process)]

    def start(self, start: model.World) -> None:
        for key, row in zip(self.keys, start.db.owners, strict=True):
            add_rows(key, row.rows, row.old_rows)
        counter = self.counters[start.db.declared]
        with entries(DEPLOY_SECONDS=0):
            counter.heal()
            counter.flush()
        be_a_new_process()
        for key, owner in zip(self.keys, start.redis.owners, strict=True):
            if owner.total is not None:
                self.redis.set(self.buffer.key(f"{in_force()}:{key}"), owner.total)
        if start.db.gentle:
            phases.state_row(counter).update(**generations.walk_from_the_start(CounterState.GENTLE))

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for owner, name, step in ((owner, *each.split(":")) for owner, names in STEPS for each in names.split()):
            monkeypatch.setattr(owner, name, paused(getattr(owner, name), step))
        exchange = Connection.exchange

        def exchange_or_not(redis: Connection, calls: Any, wait: bool) -> Any:
            answers = [] if self.trouble == "not delivered" else exchange(redis, calls, wait)
            if self.trouble:
                raise ConnectionError(self.trouble)
            return answers

        monkeypatch.setattr(Connection, "exchange", exchange_or_not)
        monkeypatch.setattr(writes, "request_doubts", lambda using, owners: self.held.append(owners))
        # Whoever begins a generation writes nothing before its last step.
        monkeypatch.setattr(generations, "transaction", SimpleNamespace(atomic=lambda using: nullcontext()))
        monkeypatch.setattr(QuerySet, "select_for_update", lambda rows: rows)
        monkeypatch.setattr(walk, "OWNERS_PER_CALL", 1)
        monkeypatch.setattr(flush, "OWNERS_PER_CHUNK", 1)
        monkeypatch.setattr(flush, "MAX_COMPARED_TOTAL", model.MAX_COMPARED_TOTAL)
        monkeypatch.setattr(phases, "OFF_SECONDS", 0)
        monkeypatch.setattr(Buffer, "fall_silent", lambda buffer: None)  # nobody is silent for longer than a step

    def process(self, me: int, process: Any) -> Any:
        if type(process) is model.Switch:
            return self.switch()
        if type(process) in (model.Writer, model.Fault):
            return self.write(me, process) if type(process) is model.Writer else self.befall(process.what)
        counter = self.counters[process.declared]
        if type(process) is model.Reader:
            return Process(lambda: self.read(me, process, counter))
        if type(process) is model.Flusher:
            return Process(lambda: [counter.flush() for _ in range(process.runs)])
        found = {(counter.buffer.base, counter.fingerprint)} if process.started else set()
        healer = Process(lambda: [counter.heal() for _ in range(process.runs)], found)
        while healer.at != process.step:
            healer.go_on()
        return healer

    def switch(self) -> Iterator[None]:
        switch.note_off(votes)
        yield
        if self.move.step == "tell":
            switch.switch_redis_off(votes)
            yield
        switch.switch_on(votes)

    def read(self, me: int, reader: model.Reader, counter: Counter) -> None:
        count = counter.count(self.keys[reader.owner])
        assert count in self.allowed[me] or (me in self.lagging and "lags" in reader.flags)

    def write(self, me: int, writer: model.Writer) -> Iterator[None]:
        log = self.logs[me] = writes.TransactionLog(connection)
        counter, known = self.counters[writer.declared], "unknown" not in writer.faults
        named = {str(self.keys[i]): i for i in writer.owners if i != model.EVERYONE}
        deltas = {key: writer.delta(i, writer.declared) if known else None for key, i in named.items()}
        log.add({counter: deltas or {EVERYONE: None}})
        if writer.step == "early":
            log.mark_unknown()
            self.tell(me, lambda: log.announce_new(connection))
            self.early |= {intent.id for intent in log.intents}
            yield
        requests = self.tell(me, lambda: log.announce_all(connection))
        if "slow" in writer.faults:
            log.announced_at -= options.HEAL_AFTER
            self.suspects.add(me)
        yield
        if self.move.label.startswith("killed"):  # its COMMIT is under way
            self.suspects.add(me)
            yield
        if self.move.label != "rolled back":
            with transaction.atomic():
                for i, key in enumerate(self.keys):
                    add_rows(key, writer.delta(i, model.NEW), writer.delta(i, model.OLD))
                for some in requests:
                    request_doubts("default", some)
            self.committed.add(me)
            up = {intent.id for intent in counter.buffer.intents()}
            if log.intents and up.issuperset({intent.id for intent in log.intents} - self.early):
                self.seen |= set() if "slow" in writer.faults else {me}  # its call returns
            if self.move.step == "db":
                yield
                if self.move.step == "confirm early":  # it and the next are one step
                    yield
                if self.move.label != "killed":
                    self.tell(me, lambda: log._confirm())
                if self.move.label == "reply lost":
                    yield
                    self.tell(me, lambda: log._confirm())
                self.seen |= {me} if self.move.label != "killed" else set()
        self.over.add(me)

    def tell(self, me: int, send: Callable[[], Any]) -> list[Any]:
        """Tell Redis something, with the trouble of this step. Returns the DoubtRequests that are to be committed."""
        self.trouble = self.move.label if self.move.label in ("not delivered", "reply lost") else ""
        faults = self.models[me].faults
        with entries(KEY_PREFIX="another") if "elsewhere" in faults else nullcontext():
            self.counters[self.models[me].declared].buffer.expects_state = True
            if "silent" not in faults:
                send()
        held, self.held, self.trouble = self.held, [], ""
        return held

    def befall(self, what: str) -> Iterator[None]:
        if what == "raw SQL":
            add_rows(self.keys[0], 1, 0)
            yield
            phases.state_row(votes).update(walk_began_at=timezone.now() - timedelta(days=1))  # one is due
        elif what == "db back":
            tables: list[Any] = [Vote, VoteCount, CounterState, DoubtRequest]
            copied = [list(table.objects.all()) for table in tables]
            yield
            for table, rows in zip(tables, copied, strict=True):
                unheard(table.objects.all()._raw_delete, "default")
                unheard(table.objects.bulk_create, rows)
        elif what == "back":  # what is in Redis was left by another server
            keys = self.redis.keys(f"{self.buffer.base}:*")
            copies = [(key, max(0, self.redis.pttl(key)), self.redis.dump(key)) for key in keys]
            yield
            self.redis.delete(*self.redis.keys(f"{self.buffer.base}:*"))
            for each in copies:
                self.redis.restore(*each)
            self.redis.hset(self.buffer.key("state"), "server", "another")
        else:
            self.redis.delete(self.buffer.key(what))

    def observe(self) -> None:
        """Note what each reader may return."""
        flying = sum(map(int, self.redis.hvals(self.buffer.key("in_flight"))))
        intents = map(json.loads, self.redis.hvals(self.buffer.key("intents")))
        up = sum(len(intent["owners"] or [""]) for intent in intents if "grounded" not in intent)
        is_lost = phases.lost(phases.state_row(votes).get(), self.buffer.status(), self.buffer.server())
        for i, reader in enumerate(self.models):
            if type(reader) is model.Reader and not self.processes[i].dead:
                values = {self.at_first[reader.owner].counted(reader.declared)}
                for w in self.committed:
                    after = {value + self.models[w].delta(reader.owner, reader.declared) for value in values}
                    values = after if w in self.seen else values | after
                self.allowed.setdefault(i, set()).update(values)
                self.lagging |= {i} if is_lost or flying != up or DoubtRequest.objects.exists() else set()

    def play(self, move: model.Move) -> None:
        self.move, process = move, self.processes[move.process]
        step = NAMES.get(move.step, move.step)
        if not isinstance(process, Process):
            next(process, None)
        elif process.at == step and not (step in WAITING and any(p.at in LOCKED for p in self.greenlets)):
            if step == "get":
                self.allowed.pop(move.process, None)
                self.lagging.discard(move.process)
                self.observe()
            if step == "ground":
                self.let_intents_age()
            process.go_on(killed=move.label == "killed" and step == "note")
            if move.label == "killed":
                process.go_on(killed=True)
        read_all_owed()
        self.observe()

    def let_intents_age(self) -> None:
        """Make intents as old as those of their transactions may be."""
        key, now = self.buffer.key("intents"), int(time.time())
        for me, log in self.logs.items():
            for intent in log.intents:
                age = options.HEAL_AFTER if me in self.suspects or intent.id in self.early else 0
                if me in self.over or (age and self.move.label == "dropped"):
                    age = options.MAX_TRANSACTION_AGE
                if entry := self.redis.hget(key, intent.id):
                    about = json.loads(entry)
                    about |= {"began": now - age, "checked": now if "grounded" in about else now - age}
                    self.redis.hset(key, intent.id, json.dumps(about))

    def finish(self) -> None:
        """Let every process come to its end, first one that has the lock."""
        for process in sorted(self.greenlets, key=lambda process: process.at not in LOCKED):
            while not process.dead:
                self.play(model.Move(self.processes.index(process), process.at, ""))
        for i, writer in enumerate(self.models):
            for step in ("early", "announce", "db", "confirm", "confirm") if type(writer) is model.Writer else ():
                self.play(model.Move(i, step, ""))
            for step in ("off", "tell", "on") if type(writer) is model.Switch else ():
                self.play(model.Move(i, step, ""))


def in_force() -> str:
    """The generation whose totals readers use."""
    return generation(votes.buffer)


def add_rows(key: CompositePk, number: int, old: int) -> None:
    """Rows that count by the new declaration, and others that count by the old one, unseen by the counter."""
    for count, what in ((number, {"hidden": False}), (old, {"hidden": True, "points": 1})):
        about: dict[str, Any] = dict(zip(votes.owner_attnames, key, strict=True)) | what
        unheard(Vote.objects.bulk_create, [Vote(**about) for _ in range(count)])
        some = list(Vote.objects.filter(**about).values_list("pk", flat=True)[: max(0, -count)])
        unheard(Vote.objects.filter(pk__in=some)._raw_delete, "default")


def moves_without(rule: str, scenario: str) -> list[model.Move]:
    """The history that breaks without a rule."""
    found = explore(scenario, [rule, *TOGETHER.get(rule, [])])
    moves: list[model.Move] = []
    for move, (_, _, processes) in found.history[1:]:
        is_silent = move.step == "db" and processes[move.process].step == "done"  # rule: anyway
        moves += [move, move._replace(step="confirm")] if is_silent else [move]
    return moves


@pytest.mark.parametrize(("rule", "scenario"), HISTORIES)
def test_what_breaks_the_model_without_a_rule_does_not_break_the_real_thing(
    rule: str, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with entries(DEPLOY_SECONDS=3600 if rule in ("window", "window.lock") else 0, WALK_SECONDS=3600, RETRY_AFTER=0):
        replay = Replay(scenario, monkeypatch)
        for move in moves_without(rule, scenario):
            replay.play(move)
        replay.finish()
    monkeypatch.setattr(buffer, "OFF_SECONDS", 0)
    with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0, DEPLOY_SECONDS=0, WALK_SECONDS=3600):
        be_a_new_process()
        for _ in range(3):
            votes.heal()
            votes.flush()
    assert ((status := replay.buffer.status()).intents, status.batch, DoubtRequest.objects.count()) == (0, "", 0)
    assert votes.counts(replay.keys) == (right := counts.count_rows(votes, replay.keys))
    for key, rows in right.items():
        cached = replay.redis.get(replay.buffer.key(f"{in_force()}:{key}"))
        assert (stored(key, votes), cached) == (rows, b"%d" % rows)
    assert not replay.redis.exists(replay.buffer.key("in_flight"))
    announce(replay.buffer, "last", list(map(str, replay.keys)))
    assert replay.redis.hvals(replay.buffer.key("in_flight")) == [b"1"] * len(replay.keys), "others are, for ever"
    assert in_force() == replay.generation or not is_quiet(scenario), "one began for nothing"
    assert CounterState.objects.get(counter=votes.name).wrong == 0 or scenario.startswith(WRONG), "it was right"
