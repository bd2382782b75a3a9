"""The shortest history that breaks the protocol without one of its rules, step by step with the real thing: nothing is
read wrong on the way, and in the end everything is right."""

import time
from collections.abc import Callable, Iterator
from copy import copy as clone
from typing import Any, NamedTuple

import pytest
from django.db import connection, transaction

from notifications_counter.buffer import Buffer
from notifications_counter.buffer.several import totals_of
from notifications_counter.buffer.types import Delta
from notifications_counter.buffer.upkeep import BATCHES
from notifications_counter.conf import options
from notifications_counter.declaration.primary_keys import CompositeKey, as_bytes
from notifications_counter.maintenance import in_force
from notifications_counter.maintenance.audit import Audit, AuditProgress, Claim
from notifications_counter.maintenance.epochs import damage, reason_for_epoch, start_epoch
from notifications_counter.maintenance.in_force import begin_run, is_in_force, put_in_force
from notifications_counter.maintenance.recount import Recounter
from notifications_counter.maintenance.shard_rows import lock_for_batch, note_progress, reject_batches_up_to, shard_row
from notifications_counter.models import CounterShard, RecountRequest
from notifications_counter.reader import Reader as RealReader
from notifications_counter.sql import dialect
from notifications_counter.sql.target import Chunk, Target
from notifications_counter.writes.intents import Intents
from notifications_counter.writes.requests import request_recounts
from notifications_counter.writes.totals import maintained
from tests import support
from tests.composite_owners.counters import votes
from tests.composite_owners.models import Vote, VoteCount
from tests.composite_owners.support import assert_counted
from tests.support import unheard

from . import model

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

Step = Iterator[None]

OLD = "0123456789abcdef"
"""The fingerprint of a declaration."""

TABLES: list[Any] = [Vote, VoteCount, CounterShard, RecountRequest]


class Copy(NamedTuple):
    key: bytes
    milliseconds: int  # to live, 0 for ever
    value: bytes


class Replay:
    """The processes of a history. Each step of the model is one of a generator here; one that comes to its end sooner
    than in the model, because the rule is there, has no more steps. ``move`` tells which is next, and what befalls it.
    """

    def __init__(self, processes: tuple, keys: list[CompositeKey]):
        self.at_first = [rows_of(key) for key in keys]
        self.keys = keys
        self.owner_keys = [str(key) for key in keys]
        self.models = processes
        self.reader, self.recounter = RealReader(votes), Recounter(votes)
        self.counters = {model.NEW: votes, model.OLD: clone(votes)}  # by declaration
        vars(self.counters[model.OLD])["fingerprint"] = OLD
        self.move = model.Move(0, "", "")
        self.intents: dict[int, Intents] = {}  # by writer
        self.living: dict[str, bool] = {}  # by intent: may its transaction still commit?
        self.seen: set[int] = set()  # writers whose changes every reader sees
        self.committed: set[int] = set()  # writers whose changes a reader may see
        self.allowed: dict[int, set[int]] = {}  # by reader
        self.lagging: set[int] = set()
        kinds: dict[type, Callable[..., Step]] = {
            model.Writer: self.write,
            model.Flusher: self.flush,
            model.Reader: self.read,
            model.Healer: self.heal,
            model.Remover: self.remove,
            model.Fault: self.befall,
        }
        self.steps = [kinds[type(process)](i, process) for i, process in enumerate(processes)]
        for step in self.steps:
            next(step)

    @property
    def buffer(self) -> Buffer:
        return votes.buffers[0]

    @property
    def label(self) -> str:
        return self.move.label

    def can_complete(self) -> bool:
        return self.buffer.upkeep.complete(self.buffer.upkeep.status().epoch, self.buffer.upkeep.server())

    def is_lost(self) -> bool:
        return bool(
            reason_for_epoch(self.buffer.upkeep.status(), shard_row(votes, 0).get(), self.buffer.upkeep.server())
        )

    def play(self, move: model.Move) -> None:
        before = self.observe()
        self.move = move
        next(self.steps[move.process], None)
        for reader, allowed in self.allowed.items():
            allowed |= before.get(reader, set())
        self.observe()
        self.check_totals()

    def observe(self) -> dict[int, set[int]]:
        """What each reader may return."""
        unnoticed = self.is_lost() or RecountRequest.objects.exists()
        now = {}
        for i, reader in enumerate(self.models):
            if type(reader) is model.Reader:
                values = {self.at_first[reader.owner] + sum(self.models[w].delta(reader.owner) for w in self.seen)}
                for w in self.committed - self.seen:
                    values |= {v + self.models[w].delta(reader.owner) for v in values}
                now[i] = values
                if i in self.allowed:
                    self.allowed[i] |= values
                    if unnoticed:
                        self.lagging.add(i)
        return now

    def check_totals(self) -> None:
        """A cached total equals the counter, unless this Redis is not the one that was left."""
        if self.is_lost():
            return
        (totals,) = totals_of([(self.buffer, as_bytes(self.owner_keys))])
        snapshot = self.buffer.snapshot(self.owner_keys)
        stored = self.reader.stored_totals(self.keys)
        for key, owner_key, total in zip(self.keys, self.owner_keys, totals or (), strict=totals is not None):
            if total is not None and not snapshot.owners[owner_key].needs_rows:
                assert total == snapshot.value(owner_key, *stored.get(key, (0, 0)))

    # ------------------------------------------------------------------------------------------------------ processes
    def write(self, me: int, writer: model.Writer) -> Step:
        ids = [f"intent {number}" for number, _ in writer.intents]
        self.living |= dict.fromkeys(ids, True)
        self.intents[me] = Intents(connection)
        epoch = None
        if writer.unsaid:
            yield
            yield
            if self.label == "killed":
                return
            if self.label == "":
                self.buffer.upkeep.forget()
                assert not self.can_complete()
                epoch = None if "manual" in writer.faults else self.buffer.upkeep.status().epoch
        sent: list[tuple[str, dict[str, Delta]]] = []
        buffer = self.counters[writer.declared].buffers[0]
        silent = "silent" in writer.faults
        failed: list[str] = []
        for i, (id_, (_, deltas)) in enumerate(zip(ids, writer.intents, strict=True)):
            owners = [self.owner_keys[owner] for owner, delta in enumerate(deltas) if delta]
            told = {self.owner_keys[owner]: delta for owner, delta in enumerate(writer.tells or deltas) if delta}
            if i >= writer.announced:
                yield
                if self.label != "not delivered" and not silent:
                    buffer.announce(id_, owners)
                    self.intents[me].announced_at = time.monotonic()
                if self.label:
                    failed += owners
                    del self.living[id_]
                    continue
            if not silent:
                sent.append((id_, dict.fromkeys(owners) if "unknown" in writer.faults else told))
        yield
        if self.label == "refused":
            self.end(ids)
            yield
            _confirm(buffer, [(id_, {}) for id_, _ in sent])
        elif self.label != "killed":
            with transaction.atomic():
                for owner, key in enumerate(self.keys):
                    self.change_rows(key, writer.delta(owner))
                request([*failed, *([None] if writer.unsaid else [])])
            self.living |= dict.fromkeys(self.living.keys() & ids, False)
            self.committed.add(me)
            if self.is_in_flight(me, ids) and (not writer.unsaid or epoch == self.buffer.upkeep.status().epoch):
                self.seen.add(me)
            if writer.unsaid and "manual" not in writer.faults:
                yield
                if self.label == "":
                    self.buffer.upkeep.forget()
                    assert not self.can_complete()
            if sent and self.label != "killed":
                yield
            if self.label != "killed":
                yield from self.confirm(buffer, sent)
                if failed:
                    yield
                    if self.label != "not delivered":
                        self.buffer.mark_dirty(failed)
                self.seen.add(me)
        self.end(ids)

    def end(self, ids: list[str]) -> None:
        for id_ in ids:
            self.living.pop(id_, None)

    def is_in_flight(self, writer: int, ids: list[str]) -> bool:
        """Whether all owners of a writer are, as far as it knows: then its call returns at the COMMIT."""
        return {intent.id for intent in self.buffer.upkeep.intents()}.issuperset(ids) and not self.intents[
            writer
        ].must_wait()

    def confirm(self, buffer: Buffer, sent: list[tuple[str, dict[str, Delta]]]) -> Step:
        if not sent:
            return
        if self.label != "not delivered":
            _confirm(buffer, sent)
        if self.label:
            yield
            if self.move.step == "notice":
                request([owner_key for _, deltas in sent for owner_key in deltas])
            else:
                _confirm(buffer, sent)

    def change_rows(self, key: CompositeKey, delta: int) -> None:
        """As the database sees it, unseen by the counter."""
        if delta > 0:
            add_rows(key, delta)
        elif delta < 0:
            some = list(rows_of_owner(key).values_list("pk", flat=True)[:-delta])
            assert unheard(Vote.objects.filter(pk__in=some).update, hidden=True) == -delta

    def flush(self, me: int, flusher: model.Flusher) -> Step:
        counter = self.counters[flusher.declared]
        target, apply = Target(counter, connection), dialect(connection.vendor).apply
        yield
        for _ in range(flusher.runs):
            stored = shard_row(votes, 0).get()
            left = is_in_force(counter, begin_run(counter)) and not damage(self.buffer.upkeep.status(), stored.epoch)
            yield
            if not left:
                continue
            cut = self.buffer.upkeep.cut(stored.epoch, stored.finished)
            yield
            if cut is None:
                continue
            finished, refused, mark = True, [], ""
            for rank in range(cut.size):
                found = self.buffer.upkeep.fetch(cut.batch, rank, rank)
                yield
                if not found:
                    break
                with transaction.atomic():
                    stored = lock_for_batch(counter, 0, cut, rank)
                    if stored and self.label == "refused":
                        refused += [owner_key for owner_key, _ in found]
                    elif stored:
                        owners = votes.columns_of([votes.decode(owner_key) for owner_key, _ in found])
                        chunk = Chunk(owners, [int(delta) for _, delta in found])
                        apply(target, cut.batch, chunk)
                    if stored:
                        note_progress(stored, cut, rank + 1)
                        mark = stored.batch_id
                finished = stored is not None and self.label != "killed"
                yield
                if not finished:
                    break
            if finished:
                self.buffer.upkeep.finish(cut.batch, mark, refused)
                yield

    def remove(self, me: int, remover: model.Remover) -> Step:
        """As recount.py does, but of any user: those that are here are not gone."""
        yield
        snapshot = self.buffer.end_leases(self.owner_keys)
        last = snapshot.batch - snapshot.cut
        idle = [votes.decode(owner_key) for owner_key, waiting in snapshot.owners.items() if waiting == (0, 0, False)]
        yield
        if idle:
            with transaction.atomic():
                if reject_batches_up_to(votes, 0, {votes: last}):
                    zero = VoteCount.objects.filter(vote_count=0, flushed_batch__lte=last)
                    unheard(zero.filter(pk__in=idle)._raw_delete, "default")
            yield

    def read(self, me: int, reader: model.Reader) -> Step:
        key, owner_key = self.keys[reader.owner], self.owner_keys[reader.owner]
        yield
        self.allowed[me] = set()
        (totals,) = totals_of([(self.buffer, as_bytes([owner_key]))])
        total = totals[0] if totals else None
        yield
        if total is None and self.move.step == "look":
            snapshot = self.buffer.take_free_leases([owner_key], reader.token)
            yield
            if snapshot.recovering:
                total = self.reader.count_rows([key]).get(key, 0)
                yield
                was = snapshot.value(owner_key, *self.reader.stored_totals([key]).get(key, (0, 0)))
                yield
                if was is not None:
                    self.buffer.fix(snapshot.epoch, reader.token, {owner_key: total - was}, {owner_key: total})
                yield
            elif snapshot.ready and not snapshot.owners[owner_key].needs_rows:
                total = snapshot.value(owner_key, *self.reader.stored_totals([key]).get(key, (0, 0)))
                yield
                if total is not None:
                    self.buffer.keep(snapshot, reader.token, {owner_key: total})
                    yield
        if total is None:
            total = self.reader.count_rows([key]).get(key, 0)
            yield
        self.judge(me, reader, total)

    def judge(self, me: int, reader: model.Reader, count: int) -> None:
        lags = me in self.lagging and "lags" in reader.flags
        assert count in self.allowed.pop(me) or "unjudged" in reader.flags or lags

    def heal(self, me: int, healer: model.Healer) -> Step:
        yield
        for _ in range(healer.runs):
            if not is_in_force(votes, rows := begin_run(votes)):
                put_in_force(votes, rows)
                yield
            yield from self.do_requested()
            if self.label == "killed":
                continue
            if self.is_lost():
                yield
                yield
                started = start_epoch(votes, self.buffer)
                yield
                if started:  # under one lock: nobody else sees the step between
                    yield
            status = self.buffer.upkeep.status()
            if status.complete:
                yield from self.doubt(f"{me}", "suspects" in healer.flags)
            elif status.ready:
                yield
                yield from self.audit(f"{me}", status.epoch)

    def do_requested(self) -> Step:
        """What RecountRequests ask for."""
        while requests := list(RecountRequest.objects.values_list("pk", "owner", "everyone")):
            if any(everyone for *_, everyone in requests):
                yield
                if self.label == "killed":
                    return
                start_epoch(votes, self.buffer, "a request")
                yield
            else:
                self.buffer.mark_dirty([owner for _, owner, _ in requests])
                yield
            if self.label != "killed before":
                RecountRequest.objects.filter(pk__in=[pk for pk, *_ in requests]).delete()
            if self.label:
                return
            yield
        yield

    def audit(self, me: str, epoch: int) -> Step:
        """In pages of one user."""
        stored, everyone = shard_row(votes, 0).filter(epoch=epoch), self.recounter.everyone
        while (text := stored.values_list("audited", flat=True).first()) is not None:
            progress = AuditProgress.of(text)
            if not progress.all:
                page = everyone.page(everyone.start(progress.end), 1)
                if page is None:
                    progress.all = True
                    stored.filter(audited=text).update(audited=str(progress))
                    yield
                    continue
                token, progress.end = progress.claim(Claim(progress.end, page.end, 0)), page.end
            elif progress.claimed:
                token = progress.claim(progress.claimed.pop(next(iter(progress.claimed))))
            else:
                yield
                self.buffer.upkeep.complete(epoch, self.buffer.upkeep.server())
                yield
                return
            yield
            claimed = stored.filter(audited=text).update(audited=str(progress))
            if self.label == "killed":
                return
            yield
            if claimed:
                claim = progress.claimed[token]
                for page in self.recounter.pages(claim.after, claim.last):
                    yield from self.recount(me, list(page.keys))
                audit = Audit(votes, self.recounter, {}, lambda result: None, lambda: False)
                audit.finished.add(token)
                audit._release()
                yield

    def doubt(self, me: str, suspects: bool) -> Step:
        """Ground or drop the intents that give reason to doubt, then recount everyone."""
        intents = [intent.id for intent in self.buffer.upkeep.intents()]
        dead = [id_ for id_ in intents if not (self.living.get(id_) if suspects else id_ in self.living)]
        if self.label == "suspects":
            for log in self.intents.values():  # of transactions that must be that old
                log.announced_at -= options.HEAL_AFTER
        for id_ in intents if self.label == "suspects" else dead:
            (self.buffer.upkeep.ground if self.label == "suspects" else self.buffer.upkeep.drop)(id_)
        if dead or self.label == "suspects":
            yield
        yield from self.recount(me, self.owner_keys)

    def recount(self, me: str, owner_keys: list[str]) -> Step:
        keys = {owner_key: votes.decode(owner_key) for owner_key in owner_keys}
        snapshot = self.buffer.take_leases(owner_keys, me)
        yield
        rows = self.reader.count_rows(list(keys.values()))
        yield
        stored = self.reader.stored_totals(list(keys.values()))
        counts = {m: snapshot.value(m, *stored.get(key, (0, 0))) for m, key in keys.items()}
        yield
        ahead = max((batch for _, batch in stored.values()), default=0)
        if ahead > self.buffer.upkeep.status().batch:
            start_epoch(votes, self.buffer, ahead=ahead)
        corrections = {m: rows.get(keys[m], 0) - count for m, count in counts.items() if count is not None}
        fixed = self.buffer.fix(snapshot.epoch, me, corrections)
        yield
        if active := [owner_key for owner_key in owner_keys if not fixed.get(owner_key)]:
            self.buffer.mark_dirty(active)
            yield

    # --------------------------------------------------------------------------------------------------------- faults
    def befall(self, me: int, fault: model.Fault) -> Step:
        yield
        if fault.what == "expiry":
            ready = self.buffer.upkeep.status().ready
            self.redis.delete(*[self.buffer.keys.total(ready, owner_key) for owner_key in self.owner_keys])
            return
        if fault.what in ("pending", "flushing", "dirty", "intents", "in_flight", "eviction"):
            self.redis.delete(getattr(self.buffer.keys, "ready" if fault.what == "eviction" else fault.what))
            assert fault.what != "eviction" or not self.can_complete()
            return
        if fault.what == "loaded":
            VoteCount(pk=self.keys[0], vote_count=3, flushed_batch=9 * BATCHES + 5).save()
            return
        if fault.what == "back":
            tables = [(table, list(table.objects.values())) for table in TABLES]
            yield
            for table, rows in tables:
                unheard(table.objects.all()._raw_delete, "default")
                unheard(table.objects.bulk_create, [table(**row) for row in rows])
            return
        copies: list[Copy] = []
        if fault.what in ("failover", "rollback"):
            copies = self.copy()
            yield
        if fault.what != "restart":
            self.redis.delete(*self.keys_of_shard())
        for copy in copies:
            self.redis.restore(copy.key, copy.milliseconds, copy.value)
        if fault.what in ("failover", "restart"):  # what is in Redis was left by another server
            self.redis.hset(self.buffer.keys.state, "server", "another")

    @property
    def redis(self) -> Any:
        return self.buffer.client.redis

    def copy(self) -> list[Copy]:
        return [Copy(key, max(0, self.redis.pttl(key)), self.redis.dump(key)) for key in self.keys_of_shard()]

    def keys_of_shard(self) -> list[bytes]:
        return list(self.redis.scan_iter(match=f"{self.buffer.keys.base}:*", count=1000))


def _confirm(buffer: Buffer, sent: list[tuple[str, dict[str, Delta]]]) -> None:
    for id_, deltas in sent:
        buffer.confirm(id_, deltas)


def request(owner_keys: list[str | None]) -> None:
    request_recounts("default", [(votes, owner_key) for owner_key in owner_keys])


def rows_of_owner(key: CompositeKey) -> Any:
    return Vote.objects.filter(hidden=False, **dict(zip(votes.owner_attnames, key, strict=True)))


def rows_of(key: CompositeKey) -> int:
    return rows_of_owner(key).count()


def add_rows(key: CompositeKey, number: int) -> None:
    rows = [Vote(**dict(zip(votes.owner_attnames, key, strict=True))) for _ in range(number)]
    unheard(Vote.objects.bulk_create, rows)


@pytest.mark.parametrize(("rule", "scenario"), model.HISTORIES)
def test_what_breaks_the_model_without_a_rule_does_not_break_the_real_thing(
    rule: str, scenario: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    votes.heal()
    found = model.explore(scenario, [rule, *model.TOGETHER.get(rule, [])], first_only=True)
    assert found.what
    start = found.history[0][1]
    keys = [CompositeKey((1, item, 5)) for item, _ in enumerate(start.db.owners)]
    for key, row in zip(keys, start.db.owners, strict=True):
        add_rows(key, row.rows)
    replay = Replay(start.processes, keys)
    if start.redis.epoch is None:
        replay.redis.delete(*replay.keys_of_shard())
        CounterShard.objects.update(epoch=0)
    if start.redis.declared == model.OLD:
        replay.redis.hset(replay.buffer.keys.state, "declared", OLD)
        replay.redis.set(replay.buffer.keys.ready, f"1:{OLD}")
        CounterShard.objects.update(declared=OLD)
        monkeypatch.setattr(in_force, "_last_heals", {})
    for intent in start.redis.intents:
        replay.buffer.announce(f"intent {intent.number}", [replay.owner_keys[owner] for owner in intent.owners])
    if start.redis.phase == "?":
        start_epoch(votes, replay.buffer, "what the history begins with")
    assert replay.buffer.upkeep.status().batch == start.redis.batch // model.BATCHES * BATCHES
    for key, row in zip(keys, start.db.owners, strict=True):
        if row.batch or row.count:
            batch = row.batch // model.BATCHES * BATCHES + row.batch % model.BATCHES
            with maintained():
                VoteCount.objects.create(pk=key, vote_count=row.count, flushed_batch=batch)
    with support.entries(DEPLOY_SECONDS=3600 if rule == "window" else 0):
        for move, _ in found.history[1:]:
            replay.play(move)
    for i, process in enumerate(start.processes):
        while type(process) is model.Reader and i in replay.allowed:  # its step back then was the last one
            replay.play(model.Move(i, "", ""))
    for _ in range(2):
        with support.entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0):
            votes.heal()
        votes.flush()
    status = replay.buffer.upkeep.status()
    assert (status.intents, status.dirty) == (0, 0)
    assert votes.recount(keys, dry_run=True).wrong == 0
    assert_counted(votes, also=keys)
    stored = replay.reader.stored_totals(keys)
    assert [stored.get(key, (0, 0))[0] for key in keys] == [rows_of(key) for key in keys]
