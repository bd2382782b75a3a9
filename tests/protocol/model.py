"""The protocol of docs/discussions/protocol.md as a model of one shard, explored exhaustively.

Every interleaving of a few processes is tried. Between any two steps a process may be killed, a reply may be lost,
Redis may be unreachable, may lose everything, or may come back with older data (restart, failover).

  READ   a read returns the number of rows at some moment between its start and its end. Only the rows of a transaction
         that was not in flight when it committed may be missing until it is confirmed
  TOTAL  a cached total equals the counter
  END    when everything has stopped, two runs of healer and flusher make counter, stored count and cached total
         equal to the rows

    python -m tests.protocol.model                 # every scenario, in a minute: 'bad 0' on each line
    python -m tests.protocol.model --drop flying   # without one rule: the shortest history that breaks

A remover may delete a total of zero at any time, although it should be only that of an owner that is gone.

The steps are those of the Lua scripts and of writes/, maintenance/ and reader.py of the package. Time is not
modelled: an intent whose transaction is over may be taken for dead at once, a lease never expires by itself. A flush
goes through a batch one owner at a time, and a recount looks at an owner once, not again when it was active.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from .search import Found, command_line, rule, search

RULES = {  # the page says what each means; here is the scenario that soonest shows what breaks without it
    "registry": "2 owners in two intents, healer, flusher",
    "flying": "writer, healer, reader",
    "marked": "writer, healer, 2 readers",
    "fix_flying": "writer, healer, reader",
    "flying_lost": "writer, healer, loss of in_flight",
    "intents": "writer, healer, loss of intents",
    "given_up": "writer killed or retried, flusher, healer twice, reader",
    "stays": "writer killed under suspicion, healer twice, reader",
    "grounded": "writer killed under suspicion, healer twice, reader",
    "slow": "writer killed under suspicion, healer twice, reader",
    "lease": "writer, healer, reader",
    "dirty_counts": "writer without knowledge, flusher, healer, reader",
    "guard": "2 writers, flusher, reader",
    "fetch_batch": "2 owners, 2 writers, 2 flushers",
    "finish_batch": "2 writers, 2 flushers",
    "later": "writer of 2 rows, writer, flusher, healer, reader",
    "request": "writer without confirm, 2 flushers, healer, loss",
    "server": "2 writers, flusher twice, failover",
    "epoch": "2 writers, flusher, healer, restart",
    "completed": "writer, healer, eviction of ready, reader",
    "ready": "writer, flusher, healer, restart, reader",
    "announced_ready": "recovery: intent from before, healer, reader",
    "straddle": "recovery: 2 writers, flusher, healer, reader",
    "witness": "recovery: 2 writers, flusher, healer, reader",
    "repair_fix": "recovery: writer, healer, 2 readers",
    "unknown": "writer without knowledge, flusher, healer, reader",
    "refused": "2 writers, flusher that is refused, healer",
    "closed": "2 writers, 2 flushers, remover",
    "removal_lease": "2 writers, flusher twice, healer, remover",
    "everyone": "request for everyone, 2 healers",
    "forget": "request for everyone, flusher, reader",
    "forget_again": "request for everyone, healer, reader",
    "always": "request for everyone, 2 healers",
    "epoch_first": "request for everyone, 2 healers",
    "past": "2 writers, flusher twice, healer, database goes back",
    "past_apply": "2 writers, flusher twice, healer, database goes back",
    "past_note": "2 owners, 2 writers, 2 flushers, database goes back",
    "batch_id": "2 writers, 2 flushers, database goes back",
    "progress": "2 owners, 2 writers, 2 flushers, database goes back",
    "behind": "2 writers, flusher twice, healer, rollback of a server without a name",
    "above": "totals from elsewhere, writer, flusher, healer",
    "claims": "recovery: 2 owners, 2 healers",
    "ahead": "writer, flusher, healer, totals loaded",
    "window": "declaration: silent old writer, healer, reader",
    "declared": "declaration: old writer, healer, flusher, reader",
    "declared_read": "declaration: silent old writer, healer, reader",
    "declared_flush": "declaration: writer, old flusher, healer",
    "waiting": "2 writers, flusher, healer, loss of pending",
    "doubted": "writer without knowledge, healer, loss of dirty",
}
HISTORIES = [  # others of a rule show what is cached
    *RULES.items(),
    ("lease", "2 writers, flusher, reader"),
    ("removal_lease", "2 writers, flusher twice, remover, reader"),
]
TOGETHER = {"finish_batch": ["past"], "declared": ["window"]}  # rules that are needed once another one fails
OLD, NEW = 0, 1  # declarations
BATCHES = 100  # batch = epoch * BATCHES + cuts in it
LISTED = 99


# ---------------------------------------------------------------------------------------------------------- the state
class Waiting(NamedTuple):
    """One owner in Redis."""

    pending: int | None = None  # None: not an owner key
    flushing: int | None = None
    total: tuple[int, int] | None = None  # (ready, value)
    lease: str | None = None
    dirty: bool = False
    in_flight: int = 0  # intents


class Intent(NamedTuple):
    """What a transaction is about to change."""

    number: int
    ready: int | None
    phase: str
    owners: tuple[int, ...] = ()
    grounded: bool = False  # its transaction may be over, or not


class Redis(NamedTuple):
    owners: tuple[Waiting, ...]
    epoch: int | None = 1  # None: the key `state` is gone
    batch: int = BATCHES
    server: int = 0  # run_id at the last recovery
    run: int = 0  # run_id now
    ready: int | None = 1  # the epoch; None: it is lost
    phase: str = ""  # the end of `ready`: "?" during a recovery
    declared: int = NEW
    batch_id: str = ""  # of the last batch that is finished
    waiting: bool = False  # `waiting_since` is set
    doubted: int = 0  # owners that are dirty
    intents: tuple[Intent, ...] = ()
    lost: frozenset = frozenset()  # numbers of intents that somebody deleted, and nobody has confirmed since

    @property
    def cut(self) -> bool:
        return any(w.flushing is not None for w in self.owners)

    @property
    def finished(self) -> int:
        return self.batch - self.cut

    @property
    def lost_pending(self) -> bool:
        return rule("waiting") and self.waiting and all(w.pending is None for w in self.owners)

    @property
    def by_intents(self) -> tuple[Waiting, ...]:
        """The owners, in flight as the intents say."""
        up = [owner for intent in self.intents if not intent.grounded for owner in intent.owners]
        return tuple(waiting._replace(in_flight=up.count(owner)) for owner, waiting in enumerate(self.owners))

    def flies(self, owner: int) -> bool:
        return self.owners[owner].in_flight > 0 and (bool(self.intents) or not rule("intents"))

    @property
    def lost_dirty(self) -> bool:
        return rule("doubted") and self.doubted != sum(w.dirty for w in self.owners)


class Row(NamedTuple):
    """One owner in the database."""

    rows: int = 0  # COUNT(*): the truth
    count: int = 0
    batch: int = 0


class Database(NamedTuple):
    owners: tuple[Row, ...]
    epoch: int = 1
    listed: int = 0  # owners before this one are in claimed pages of the audit; LISTED: everyone is
    claims: frozenset = frozenset()  # pages that are not done: {(who claimed it, owner), ...}
    locked: bool = False  # by a healer that starts an epoch
    closed: int = 0  # no batch up to this one is taken
    finished: int = BATCHES  # the last batch of which every chunk is applied
    batch_id: str = ""  # of that batch
    declared: int = NEW
    progress: int = 0  # owners of the batch after it that are applied
    requests: frozenset = frozenset()  # RecountRequests: {(intent, owner), ...}, for everyone without an owner


class World(NamedTuple):
    redis: Redis
    db: Database
    processes: tuple


def change(owners: tuple, owner: int, new: Any) -> tuple:
    return (*owners[:owner], new, *owners[owner + 1 :])


# -------------------------------------------------------------------------------------------------------- the scripts
def is_lost(redis: Redis, db: Database) -> bool:
    """Is this Redis not the one that was left?"""
    return is_damaged(redis, db) or went_back(redis, db) or (rule("server") and redis.server != redis.run)


def is_damaged(redis: Redis, db: Database) -> bool:
    """Is it in another epoch, or is one of its keys missing?"""
    evicted = redis.ready is None and rule("completed")
    other = redis.epoch != db.epoch or redis.declared != db.declared
    return other or redis.lost_pending or redis.lost_dirty or evicted


def went_back(redis: Redis, db: Database) -> bool:
    """The database or Redis. Asked under the lock of the shard's row."""
    database = redis.finished > db.finished and rule("past")
    other = redis.finished == db.finished and redis.batch_id != db.batch_id and rule("batch_id")
    return database or other or (redis.batch < db.finished and rule("behind"))


def value(waiting: Waiting, cut: bool, batch: int, row: Row) -> int | None:
    if row.batch > batch:  # a later cut carried along what the snapshot saw; the owner may have been dirty before that
        return None if rule("later") else row.count
    return row.count + (waiting.pending or 0) + ((waiting.flushing or 0) if cut and row.batch < batch else 0)


def looked_at(waiting: Waiting) -> Waiting:
    """What a snapshot needs to know."""
    return Waiting(waiting.pending, waiting.flushing, dirty=waiting.dirty)


def counter(redis: Redis, db: Database, owner: int) -> int | None:
    return value(redis.owners[owner], redis.cut, redis.batch, db.owners[owner])


def of_all(redis: Redis, **fields: Any) -> Redis:
    """Redis with these fields of every owner."""
    return redis._replace(owners=tuple(waiting._replace(**fields) for waiting in redis.owners))


def without_total(waiting: Waiting, ready: int | None) -> Waiting:
    return waiting._replace(total=None) if waiting.total and waiting.total[0] == ready else waiting


def counted(redis: Redis, owners: tuple) -> Redis:
    """Redis with these owners, those that have become dirty, or no longer are, counted."""
    more = sum(w.dirty for w in owners) - sum(w.dirty for w in redis.owners)
    return redis._replace(owners=owners, doubted=redis.doubted + more)


def marked(waiting: Waiting, ready: int | None) -> Waiting:
    waiting = waiting._replace(dirty=True)
    if rule("lease"):
        waiting = waiting._replace(lease=None)
    return without_total(waiting, ready) if rule("dirty_counts") else waiting


def mark_dirty(redis: Redis, owner_keys: Iterable[int]) -> Redis:
    owners = redis.owners
    for owner in owner_keys:
        owners = change(owners, owner, marked(owners[owner], redis.ready))
    return counted(redis, owners)


def announce(redis: Redis, number: int, deltas: tuple[int, ...]) -> Redis:
    intent = Intent(number, redis.ready, redis.phase, tuple(owner for owner, delta in enumerate(deltas) if delta))
    if not redis.intents and rule("intents"):
        redis = redis._replace(owners=redis.by_intents)
    return fly(redis._replace(intents=tuple(sorted((*redis.intents, intent)))), intent.owners, 1)


def fly(redis: Redis, owners: Iterable[int], by: int) -> Redis:
    for owner in owners:
        waiting = redis.owners[owner]
        waiting = waiting._replace(in_flight=max(0, waiting.in_flight + by))
        redis = redis._replace(owners=change(redis.owners, owner, waiting))
    return redis


def take_out(redis: Redis, number: int) -> tuple[Redis, Intent | None]:
    """An intent out of `intents`, its owners out of flight."""
    intent = next((intent for intent in redis.intents if intent.number == number), None)
    if intent is None:
        return redis, None
    redis = redis._replace(intents=tuple(other for other in redis.intents if other != intent))
    return redis if intent.grounded else fly(redis, intent.owners, -1), intent


def give_up(redis: Redis, number: int, dead: bool) -> Redis:
    """Drop the intent of a transaction that is over, or ground that of one that may live, and doubt its owners."""
    redis, intent = take_out(redis, number)
    if intent is None:
        return redis
    if not dead and rule("stays"):
        redis = redis._replace(intents=tuple(sorted((*redis.intents, intent._replace(grounded=True)))))
    return mark_dirty(redis, intent.owners) if rule("given_up") else redis


def confirm(
    redis: Redis, intents: Collection[tuple[int, tuple[int, ...]]], unknown: bool = False, declared: int = NEW
) -> Redis:
    foreign = declared != redis.declared and rule("declared")
    ready, lost_pending = redis.ready, redis.lost_pending
    for number, deltas in intents:
        before = redis.owners
        redis, intent = take_out(redis, number)
        gone = foreign or lost_pending or (intent is None and rule("registry"))
        intent = intent or Intent(number, ready, redis.phase)
        gone = gone or (intent.grounded and rule("grounded"))
        gone = gone or (rule("announced_ready") and (ready is None or intent.ready != ready))
        gone = gone or (rule("straddle") and intent.ready == ready and intent.phase != redis.phase)
        for owner, delta in enumerate(deltas):
            flew = owner in intent.owners and not intent.grounded
            lost = flew and not before[owner].in_flight and rule("flying_lost")
            if (delta == 0 and not lost) or (unknown and not rule("unknown")):
                continue
            waiting = redis.owners[owner]
            total = waiting.total
            repaired = total is not None and total[0] == ready
            stranger = rule("witness") and redis.phase == "?" and not repaired
            if gone or lost or unknown or stranger:
                redis = mark_dirty(redis, [owner])
                continue
            if total and repaired:
                total = (total[0], total[1] + delta)
            waiting = waiting._replace(pending=(waiting.pending or 0) + delta, total=total)
            if rule("lease"):
                waiting = waiting._replace(lease=None)
            redis = redis._replace(owners=change(redis.owners, owner, waiting), waiting=True)
    redis = redis._replace(lost=redis.lost.difference(number for number, _ in intents))
    return forget(redis) if foreign else redis


def keep(redis: Redis, owner: int, token: str, ready: int, total: int) -> Redis:
    """Cache a total."""
    waiting = redis.owners[owner]
    if redis.ready != ready or waiting.lease != token or (redis.flies(owner) and rule("fix_flying")):
        return redis
    return redis._replace(owners=change(redis.owners, owner, waiting._replace(total=(ready, total), lease=None)))


def fix(
    redis: Redis, token: str, epoch: int, corrections: dict[int, int | None], repair: int | None = None
) -> tuple[Redis, tuple[int, ...]]:
    """Also the owners that were active. A reader repairs its owner, with the number of rows."""
    active = []
    for owner, correction in corrections.items():
        waiting = redis.owners[owner]
        other = rule("epoch") and redis.epoch != epoch
        repaired = None if repair is None or redis.ready is None else (redis.ready, repair)
        flying = redis.flies(owner) and rule("fix_flying")
        if correction is None or waiting.lease != token or other or redis.lost_pending or flying:
            active.append(owner)
            if repaired and not rule("repair_fix"):
                redis = redis._replace(owners=change(redis.owners, owner, waiting._replace(total=repaired)))
            continue
        if correction or redis.phase != "?":  # one who is right stays repaired
            waiting = without_total(waiting, redis.ready)
        waiting = waiting._replace(dirty=False, lease=None, total=repaired or waiting.total)
        if correction:
            waiting = waiting._replace(pending=(waiting.pending or 0) + correction)
            redis = redis._replace(waiting=True)
        redis = counted(redis, change(redis.owners, owner, waiting))
    return redis, tuple(active)


def recover(redis: Redis, epoch: int, server: int, declared: int = NEW) -> Redis:
    """Start an epoch under a server that was asked for its name before. Intents and dirty stay."""
    if redis.epoch is not None and redis.epoch >= epoch:
        return redis
    owners = tuple(waiting._replace(pending=None, flushing=None) for waiting in redis.by_intents)
    redis = redis._replace(owners=owners, doubted=sum(waiting.dirty for waiting in owners), batch_id="", waiting=False)
    return redis._replace(ready=epoch, phase="?", epoch=epoch, batch=epoch * BATCHES, server=server, declared=declared)


def forget(redis: Redis) -> Redis:
    """Everyone is to be recounted."""
    return redis._replace(ready=None, phase="")


def complete(redis: Redis, epoch: int, server: int) -> Redis:
    if redis.epoch is None or (rule("completed") and redis.phase != "?"):
        return redis
    if not rule("epoch") or (redis.epoch == epoch and redis.server == server):
        return redis._replace(ready=redis.epoch, phase="")
    return redis


# ------------------------------------------------------- the processes: a step yields (label, redis, db, next process)
def owners_of(intents: Iterable[tuple[int, tuple[int, ...]]]) -> list[tuple[int, int]]:
    """Each with the number of the intent."""
    return [(number, owner) for number, deltas in intents for owner, delta in enumerate(deltas) if delta]


OTHERS = -1  # in place of an intent: somebody of another declaration lives


class Writer(NamedTuple):
    """A transaction; each of its intents has a number and a delta for each owner. ``unsaid`` are like intents: changes
    of statements that do not say whose counts they change. With autocommit off, which is "manual", nobody tells of the
    COMMIT, and what comes after it comes before it.

    Nobody waits for a confirm: it may arrive after the call has returned, or never, and the process may notice that.

    A process of the old declaration ``tells`` what it has changed by that; a "silent" one knows no counter, or changes
    what only the new one counts."""

    intents: tuple[tuple[int, tuple[int, ...]], ...]
    faults: frozenset[str] = frozenset()
    step: str = "announce"
    unsaid: tuple[tuple[int, tuple[int, ...]], ...] = ()
    announced: int = 0  # intents
    failed: tuple[int, ...] = ()  # intents that could not be announced
    in_flight: bool = False  # when it committed: from then on, every reader sees it
    epoch: int | None = None  # when `ready` went, before that
    declared: int = NEW
    tells: tuple[int, ...] | None = None

    def moves(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        sent = [intent for intent in self.intents if intent[0] not in self.failed]
        refused = owners_of(intent for intent in self.intents if intent[0] in self.failed)
        then = "confirm" if sent else "mark" if refused else "done"
        if "silent" in self.faults:
            sent, then = [], "done"
        elif self.tells is not None:
            sent = [(intent, self.tells) for intent, _ in sent]
        is_manual = "manual" in self.faults
        if self.step == "statement":
            yield "", redis, db, self._replace(step="forget")
        elif self.step == "announce":
            intent = self.intents[self.announced]
            more = self.announced + 1 < len(self.intents)
            following = self._replace(announced=self.announced + 1, step="announce" if more else "db")
            yield "", redis if "silent" in self.faults else announce(redis, *intent), db, following
            if "announce" in self.faults:
                following = following._replace(failed=(*self.failed, intent[0]))
                yield "not delivered", redis, db, following
                yield "reply lost", announce(redis, *intent), db, following
        elif self.step == "db":
            owners = tuple(row._replace(rows=row.rows + self.delta(owner)) for owner, row in enumerate(db.owners))
            everyone = [(intent, None) for intent, _ in self.unsaid if rule("everyone")]
            if all(row.rows >= 0 for row in owners):
                committed = db._replace(owners=owners, requests=db.requests.union(refused, everyone))
                following = self._replace(in_flight=self.is_in_flight(redis))
                again = self.unsaid and not is_manual
                yield "", redis, committed, following._replace(step="forget again" if again else then)
            if "refused" in self.faults:
                yield "refused", redis, db, self._replace(step="withdraw")
            if "kill" in self.faults:
                yield "killed", redis, db, self._replace(step="rolled back")
        elif self.step == "forget":
            following = self._replace(step="announce" if self.intents else "db")
            known = following._replace(epoch=None if is_manual else redis.epoch)
            yield "", forget(redis) if rule("forget") else redis, db, known
            if "kill" in self.faults:
                yield "killed", redis, db, self._replace(step="rolled back")
            if "forget" in self.faults:
                yield "not delivered", redis, db, following
        elif self.step == "forget again":
            yield "", forget(redis) if rule("forget_again") else redis, db, self._replace(step=then)
            if "kill" in self.faults:
                yield "killed", redis, db, self._replace(step="killed")
            if "forget" in self.faults:
                yield "not delivered", redis, db, self._replace(step=then)
        elif self.step == "confirm":
            done = self._replace(step="mark" if refused else "done")
            committed = confirm(redis, sent, "unknown" in self.faults, self.declared)
            yield "", committed, db, done
            if "retry" in self.faults:
                yield "reply lost", committed, db, self._replace(step="confirm again")
            if "kill" in self.faults:
                yield "killed", redis, db, self._replace(step="killed")
            if "confirm" in self.faults:
                yield "not delivered", redis, db, self._replace(step="notice")
                yield "reply lost", committed, db, self._replace(step="notice")
        elif self.step == "notice":  # when it next uses the connection
            requested = db._replace(requests=db.requests.union(owners_of(sent))) if rule("request") else db
            yield "", redis, requested, self._replace(step="mark" if refused else "done late")
        elif self.step == "withdraw":
            nothing = [(number, (0,) * len(deltas)) for number, deltas in sent]
            yield "", confirm(redis, nothing, declared=self.declared), db, self._replace(step="rolled back")
        elif self.step == "confirm again":
            again = confirm(redis, sent, "unknown" in self.faults, self.declared)
            yield "", again, db, self._replace(step="mark" if refused else "done")
        elif self.step == "mark":  # after its database commit, if Redis answers again
            yield "", mark_dirty(redis, [owner for _, owner in refused]), db, self._replace(step="done")
            yield "not delivered", redis, db, self._replace(step="done late")

    @property
    def lives(self) -> bool:
        return self.may_commit or self.step in ("forget again", "confirm", "confirm again")

    @property
    def may_commit(self) -> bool:
        return self.step in ("statement", "forget", "announce", "db")

    def is_in_flight(self, redis: Redis) -> bool:
        """Whether all owners are, or everyone, because no epoch has begun since `ready` went. Who is slow knows that
        they may have left flight, and waits for the confirm."""
        up = {intent.number for intent in redis.intents if not (intent.grounded and rule("slow"))}
        return up.issuperset(number for number, _ in self.intents) and (not self.unsaid or self.epoch == redis.epoch)

    def delta(self, owner: int) -> int:
        return sum(deltas[owner] for _, deltas in self.intents + self.unsaid)


def noted(db: Database, batch: int, applied: int, size: int, batch_id: str) -> Database:
    """The database after a chunk: what it knows of the batch."""
    if batch <= db.finished:
        return db
    if applied == (size if rule("past_note") else 1):
        return db._replace(finished=batch, batch_id=batch_id, progress=0)
    return db._replace(progress=max(db.progress, applied))


class Flusher(NamedTuple):
    runs: int = 1
    faults: frozenset[str] = frozenset()  # "refused": the database may refuse a change
    step: str = "check"
    seen: Any = None
    refused: tuple[int, ...] = ()  # owners
    token: str = "f"
    batch_id: str = ""  # of the batch before; when the last chunk is applied, of this one
    declared: int = NEW

    def moves(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        again = Flusher(self.runs - 1, self.faults, token=self.token, declared=self.declared)
        foreign = db.declared != self.declared and rule("declared_flush")
        if self.runs == 0:
            return
        if self.step == "check":
            checked = self._replace(step="cut", seen=(redis.epoch, db.finished))
            yield "", redis, db, again if foreign or is_damaged(redis, db) else checked
        elif self.step == "cut":
            epoch, finished = self.seen
            known = redis.epoch == epoch and (redis.batch >= finished or not rule("behind"))
            if known and not redis.cut and any(w.pending is not None for w in redis.owners):
                owners = tuple(w._replace(pending=None, flushing=w.pending) for w in redis.owners)
                redis = redis._replace(owners=owners, batch=redis.batch + 1, waiting=False)
            if known and redis.cut:  # perhaps left by a flusher that died
                size = sum(w.flushing is not None for w in redis.owners)
                yield "", redis, db, self._replace(step="fetch", seen=(redis.batch, 0, size), batch_id=redis.batch_id)
            else:
                yield "", redis, db, again
        elif self.step == "fetch":
            batch, rank, size = self.seen
            ranked = sorted((w.flushing, owner) for owner, w in enumerate(redis.owners) if w.flushing is not None)
            if (redis.batch == batch or not rule("fetch_batch")) and rank < len(ranked):
                yield "", redis, db, self._replace(step="apply", seen=(*self.seen, ranked[rank]))
            else:
                yield "", redis, db, self._replace(step="finish", seen=batch)
        elif self.step == "apply":
            batch, rank, size, (delta, owner) = self.seen
            if rule("epoch") and db.locked:
                return
            if rule("epoch") and batch // BATCHES != db.epoch:  # refused: the flush ends without finish
                yield "", redis, db, again
                return
            if foreign or (rule("closed") and batch <= db.closed):
                yield "", redis, db, again
                return
            gap = db.finished < batch - 1 and rule("past_apply")
            if db.finished == batch - 1:
                gap = (db.batch_id != self.batch_id and rule("batch_id")) or (db.progress < rank and rule("progress"))
            if gap:
                yield "", redis, db, again
                return
            row = db.owners[owner]
            if (row.batch < batch or not rule("guard")) and self.declared == db.declared:  # else to other totals
                row = row._replace(count=row.count + delta, batch=batch)
            db = noted(db, batch, rank + 1, size, f"{self.token}{self.runs}")
            applied = db._replace(owners=change(db.owners, owner, row))
            following = self._replace(step="fetch", seen=(batch, rank + 1, size))
            if rank + 1 == size:
                following = self._replace(step="finish", seen=batch, batch_id=db.batch_id)
            yield "", redis, applied, following
            yield "killed", redis, applied, again
            if "refused" in self.faults:
                yield "refused", redis, db, following._replace(refused=(*self.refused, owner))
        elif self.step == "finish":
            if redis.cut and (redis.batch == self.seen or not rule("finish_batch")):
                redis = of_all(redis, flushing=None)._replace(batch_id=self.batch_id)
                if rule("refused"):
                    redis = mark_dirty(redis, self.refused)
            yield "", redis, db, again


class Reader(NamedTuple):
    # "lags": may be behind as long as a fault was not noticed. "unjudged": may return anything, but keep only what is
    # right: of an owner that is gone, or whose change the database has just refused.
    flags: frozenset[str] = frozenset()
    owner: int = 0
    step: str = "get"
    seen: Any = None
    allowed: frozenset[int] | None = frozenset()
    lagged: bool = False
    wrong: bool = False
    token: str = "r"

    def moves(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        waiting, row = redis.owners[self.owner], db.owners[self.owner]
        if self.step == "get":
            total = waiting.total
            if redis.epoch is None or (redis.ready is None and rule("ready")):
                yield "", redis, db, self._replace(step="rows")
            elif redis.declared != NEW and rule("declared_read"):
                yield "", forget(redis), db, self._replace(step="rows")
            elif redis.flies(self.owner) and rule("flying") and (rule("marked") or not total):
                yield "", redis, db, self._replace(step="rows")
            elif total and (total[0] == redis.ready or not rule("ready")):
                yield "", redis, db, self._replace(step="return", seen=total[1])
            else:
                yield "", redis, db, self._replace(step="look")
        elif self.step == "look":
            following = self.looked(redis)
            if following.step in ("repair", "row") and waiting.lease is None:
                redis = redis._replace(owners=change(redis.owners, self.owner, waiting._replace(lease=self.token)))
            yield "", redis, db, following
        elif self.step == "repair":
            yield "", redis, db, self._replace(step="repair row", seen=(*self.seen, row.rows))
        elif self.step == "repair row":
            *snapshot, epoch, rows = self.seen
            total = value(*snapshot, row)
            correction = None if total is None else rows - total
            yield "", redis, db, self._replace(step="repair fix", seen=(epoch, rows, correction))
        elif self.step == "repair fix":
            epoch, rows, correction = self.seen
            redis, _ = fix(redis, self.token, epoch, {self.owner: correction}, rows)
            yield "", redis, db, self._replace(step="return", seen=rows)
        elif self.step == "rows":
            yield "", redis, db, self._replace(step="return", seen=row.rows)
        elif self.step == "row":
            total = value(*self.seen[:3], row)
            if total is None:
                yield "", redis, db, self._replace(step="rows")
            else:
                yield "", redis, db, self._replace(step="keep", seen=(self.seen[3], total))
        elif self.step == "keep":
            ready, total = self.seen
            yield "", keep(redis, self.owner, self.token, ready, total), db, self._replace(step="return", seen=total)
        elif self.step == "return":
            wrong = not self.lagged and self.seen not in self.allowed and "unjudged" not in self.flags
            yield "", redis, db, self._replace(step="end", allowed=None, wrong=wrong)

    def looked(self, redis: Redis) -> "Reader":
        """After a snapshot of what waits."""
        waiting = redis.owners[self.owner]
        snapshot = (looked_at(waiting), redis.cut, redis.batch)
        foreign = redis.declared != NEW and rule("declared_read")
        if (redis.ready is None and rule("ready")) or foreign or (redis.flies(self.owner) and rule("flying")):
            return self._replace(step="rows")
        if redis.phase == "?" and rule("ready"):
            return self._replace(step="repair", seen=(*snapshot, redis.epoch))
        if waiting.dirty and rule("dirty_counts"):
            return self._replace(step="rows")
        return self._replace(step="row", seen=(*snapshot, redis.ready))

    def observe(self, allowed: frozenset[int], unnoticed: bool) -> "Reader":
        if self.step == "end":
            return self
        if self.step == "get":
            return self._replace(allowed=allowed)
        return self._replace(allowed=self.allowed | allowed, lagged=self.lagged or (unnoticed and "lags" in self.flags))


class Healer(NamedTuple):
    token: str
    runs: int = 1
    flags: frozenset[str] = frozenset()  # "suspects": grounds intents of transactions that may live
    step: str = "check"
    seen: Any = None

    def moves(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        if self.runs == 0:
            return
        for label, *after, following in getattr(self, f"_{self.step}")(redis, db, ended):
            if following is None:
                yield label, *after, self._replace(runs=self.runs - 1, step="check", seen=None)
            else:
                yield label, *after, self._replace(step=following[0], seen=following[1])

    # ------------------------------------------------------------------------------------------------------- requests
    def _check(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        """Requests come first, and are deleted when that is done which they ask for."""
        owners = {owner for _, owner in db.requests}
        if db.declared != NEW:
            yield "", redis, db._replace(declared=NEW), ("check", None)
        elif OTHERS in ended and rule("window"):  # it waits
            return
        elif None not in owners:
            marked = mark_dirty(redis, owners)
            yield "", marked, db, ("delete", db.requests) if owners else ("server", None)
        elif rule("epoch_first"):
            yield "", redis, db, ("raise", db.requests)
        else:
            yield "", redis, db._replace(requests=frozenset()), ("raise", db.requests)

    def _delete(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        deleted = db._replace(requests=db.requests - self.seen)
        yield "", redis, deleted, ("check", None)
        yield "killed", redis, deleted, None
        yield "killed before", redis, db, None

    # ------------------------------------------------------------------------------------------------------- recovery
    def _server(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        if is_lost(redis, db):
            yield "", redis, db, ("raise", None)
        else:
            yield from self._go_on(redis, db, ended)

    def _raise(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        """Because of what was seen: requests, a batch that is ahead, or a Redis that is not the one that was left."""
        if db.locked:
            return
        requests = self.seen if type(self.seen) is frozenset else None
        ahead = self.seen if type(self.seen) is int and self.seen > redis.batch else 0
        if is_lost(redis, db) or ahead or (requests and rule("always")):
            epoch = max(db.epoch, redis.epoch or 0, ahead // BATCHES) + 1
            yield "", redis, db._replace(locked=True), ("recover", (epoch, redis.run, requests))
        else:  # another process has recovered it
            yield "", redis, db, ("delete", requests) if requests else ("go_on", None)
        if requests:
            yield "killed", redis, db, None

    def _recover(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        epoch, server, requests = self.seen
        yield "", recover(redis, epoch, server), db, ("start", (epoch, requests))

    def _start(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        epoch, requests = self.seen
        started = db._replace(epoch=epoch, locked=False, finished=epoch * BATCHES, batch_id="", progress=0)
        started = started._replace(listed=0, claims=frozenset())
        yield "", redis, started, ("delete", requests) if requests else ("go_on", None)
        yield "killed", redis, db._replace(locked=False), None

    def _go_on(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        if redis.ready is None or redis.phase:
            yield "", redis, db, ("audit", redis.epoch or 0)
        else:
            yield from self._doubt(redis, db, ended)

    # ---------------------------------------------------------------------------------------------------------- audit
    def _audit(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        """Look for the next page, which is one owner here; then for one that somebody has claimed and not done."""
        epoch = self.seen
        if db.epoch != epoch:
            yield "", redis, db, None
        elif db.listed != LISTED:
            owners = [u for u, row in enumerate(db.owners) if row.rows or row.count or (row.batch and rule("above"))]
            owner = next((u for u in owners if u >= db.listed), None)
            if owner is None:
                yield "", redis, db._replace(listed=LISTED), ("audit", epoch)
            else:
                yield "", redis, db, ("claim", (epoch, db.listed, db.claims, owner))
        elif db.claims and rule("claims"):
            for who, owner in db.claims:
                if self.token not in who:  # once, or there would be no end of it
                    yield "", redis, db, ("claim", (epoch, LISTED, db.claims, owner, who))
            yield "", redis, db, None  # others may be at work: the next run looks again
        else:
            yield "", redis, db, ("complete", (epoch, redis.run))

    def _claim(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        """Unless another healer was faster."""
        epoch, listed, claims, owner, *others = self.seen
        if (db.epoch, db.listed, db.claims) != (epoch, listed, claims):
            yield "", redis, db, ("audit", epoch)
            return
        left = frozenset(claim for claim in claims if claim[1] != owner)
        name = self.name + "".join(others)
        claimed = db._replace(listed=max(listed, owner + 1), claims=left | {(name, owner)})
        yield "", redis, claimed, ("look", (epoch, (owner,)))
        yield "killed", redis, claimed, None

    @property
    def name(self) -> str:
        return f"{self.token}{self.runs}"

    def _note(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        epoch, owner = self.seen
        mine = {(who, of) for who, of in db.claims if who.startswith(self.name) and of == owner}
        yield "", redis, db._replace(claims=db.claims - mine), ("audit", epoch)

    def _complete(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        yield "", complete(redis, *self.seen), db, None

    # -------------------------------------------------------------------------------------------------------- recount
    def _doubt(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        numbers = frozenset(intent.number for intent in redis.intents)
        if numbers & ended:
            yield "", self._give_up(redis, numbers & ended, dead=True), db, ("look", None)
        else:
            yield from self._look(redis, db, ended)
        if "suspects" in self.flags and numbers:
            yield "suspects", self._give_up(redis, numbers, dead=False), db, ("look", None)

    def _give_up(self, redis: Redis, numbers: frozenset, dead: bool) -> Redis:
        for number in numbers:
            redis = give_up(redis, number, dead)
        return redis

    def _look(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        """Of an audit, or else of everyone."""
        epoch, owner_keys = self.seen or (None, tuple(range(len(db.owners))))  # the epoch of the audit
        owners = redis.owners
        snapshot = (
            tuple(map(looked_at, owners)),
            redis.cut,
            redis.batch,
            redis.epoch,
        )
        for owner in owner_keys:
            owners = change(owners, owner, owners[owner]._replace(lease=self.token))
        leased = redis._replace(owners=owners)
        yield "", leased, db, ("rows", (epoch, owner_keys, snapshot))

    def _rows(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        yield "", redis, db, ("row", (*self.seen, tuple(row.rows for row in db.owners)))

    def _row(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        epoch, owner_keys, (waiting, cut, batch, epoch_seen), rows = self.seen
        counts = {owner: value(waiting[owner], cut, batch, db.owners[owner]) for owner in owner_keys}
        corrections = {owner: None if count is None else rows[owner] - count for owner, count in counts.items()}
        ahead = max(db.owners[owner].batch for owner in owner_keys)
        yield "", redis, db, ("fix", (epoch, epoch_seen, tuple(corrections.items()), ahead))

    def _fix(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        epoch, epoch_seen, corrections, ahead = self.seen
        if rule("ahead") and ahead > redis.batch:
            yield "", redis, db, ("raise", ahead)
            return
        redis, active = fix(redis, self.token, epoch_seen, dict(corrections))
        if active:
            yield "", redis, db, ("mark", (epoch, active))
        else:
            yield "", redis, db, ("note", (epoch, corrections[0][0])) if epoch is not None else None

    def _mark(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        epoch, active = self.seen
        yield "", mark_dirty(redis, active), db, ("note", (epoch, *active)) if epoch is not None else None


class Remover(NamedTuple):
    """Removes totals of zero, of owners for whom nothing waits."""

    step: str = "look"
    seen: Any = None

    def moves(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        done = Remover("done")
        if self.step == "look":
            idle = tuple(i for i, w in enumerate(redis.owners) if not (w.pending or w.flushing or w.dirty))
            if rule("removal_lease"):
                redis = of_all(redis, lease=None)
            yield "", redis, db, Remover("remove", (redis.batch - redis.cut, idle)) if idle else done
        elif self.step == "remove" and not db.locked:
            last, idle = self.seen
            if last // BATCHES == db.epoch:
                owners = db.owners
                for owner in idle:
                    if owners[owner].count == 0 and owners[owner].batch <= last:
                        owners = change(owners, owner, owners[owner]._replace(batch=0))
                db = db._replace(owners=owners, closed=max(db.closed, last))
            yield "", redis, db, done


KEYS_LOST: dict[str, Callable[[Redis], Redis]] = {
    "eviction": lambda redis: redis._replace(ready=None, phase=""),
    "expiry": lambda redis: of_all(redis, total=None),
    "pending": lambda redis: of_all(redis, pending=None),
    "flushing": lambda redis: of_all(redis, flushing=None),
    "dirty": lambda redis: of_all(redis, dirty=False),
    "in_flight": lambda redis: of_all(redis, in_flight=0),
    "intents": lambda redis: redis._replace(intents=(), lost=frozenset(intent.number for intent in redis.intents)),
}


class Fault(NamedTuple):
    """What befalls Redis: ``loss`` of everything; a ``restart``, under another run_id; a ``failover`` to what a
    replica, or a snapshot on disk, held at an earlier moment, a ``rollback`` if the server has no name; ``eviction`` of
    `ready`; loss of ``pending``, ``flushing``, ``dirty``, ``intents`` or ``in_flight`` alone; and the ``expiry`` of
    totals. What befalls the database: it goes ``back`` to an earlier moment, or totals of another one are
    ``loaded``."""

    what: str
    step: str = "armed"
    seen: Any = None

    def moves(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        fired, run = Fault(self.what, "fired"), redis.run + 1
        if self.step == "fired":
            return
        if self.what in KEYS_LOST:
            yield "", KEYS_LOST[self.what](redis), db, fired
        elif self.what == "loss":
            owners = tuple(Waiting() for _ in redis.owners)
            yield "", Redis(owners, epoch=None, batch=0, server=-1, run=run, ready=None), db, fired
        elif self.what == "restart":
            yield "", redis._replace(run=run), db, fired
        elif self.what == "loaded":  # the owner of a total that somebody writes is recounted
            owners = change(db.owners, 0, db.owners[0]._replace(count=3, batch=9 * BATCHES + 5))
            yield "", redis, db._replace(owners=owners, requests=db.requests | {(99, 0)}), fired
        elif self.what == "back":
            if self.step == "armed":
                yield "", redis, db, Fault(self.what, "copied", db)
                return
            back = self.seen._replace(locked=False)
            same = all(a.rows == b.rows for a, b in zip(back.owners, db.owners, strict=True))
            if same or redis.finished > back.finished or redis.epoch != back.epoch:  # else nothing can tell
                yield "", redis, back, fired
        elif self.step == "armed":
            yield "", redis, db, Fault(self.what, "copied", redis)
        elif self.what == "rollback":
            if self.seen.batch < db.finished or self.seen.epoch != db.epoch:  # else nothing can tell
                yield "", self.seen, db, fired
        else:
            yield "", self.seen._replace(run=run), db, fired


# ---------------------------------------------------------------------------------------------------------- exploring
class Move(NamedTuple):
    """One step of a history."""

    process: int
    step: str
    label: str


def allowed_values(writers: Iterable[Writer], owner: int, at_first: int) -> frozenset[int]:
    values, writers = {at_first}, list(writers)
    for writer in writers:
        committed = writer.step in ("forget again", "confirm", "confirm again", "killed", "notice", "mark")
        if writer.step.startswith("done") or (committed and writer.in_flight):
            values = {v + writer.delta(owner) for v in values}
        elif committed:
            values |= {v + writer.delta(owner) for v in values}
    return frozenset(values)


class Space:
    """The states of one scenario. What they are made of is numbered, so that a state is a tuple of a few small numbers
    (Redis, database, each process), and a step that was worked out once is looked up from then on."""

    def __init__(self, start: World):
        self.things: list[Any] = []
        self.numbers: dict[Any, int] = {}
        self.work_out, self.note, self.is_unnoticed = map(cache, (self._work_out, self._note, self._is_unnoticed))
        self.writers = [i for i, p in enumerate(start.processes, 2) if type(p) is Writer]
        self.readers = [i for i, p in enumerate(start.processes, 2) if type(p) is Reader]
        self.healers = {i for i, p in enumerate(start.processes, 2) if type(p) is Healer}
        self.at_first = [row.rows for row in start.db.owners]
        self.start = (self.number(start.redis), self.number(start.db), *map(self.number, start.processes))

    def number(self, thing: Any) -> int:
        number = self.numbers.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number

    def world(self, state: tuple[int, ...]) -> World:
        redis, db, *processes = (self.things[number] for number in state)
        return World(redis, db, tuple(processes))

    def successors(self, state: tuple[int, ...]) -> Iterator[tuple[int, str, tuple[int, ...]]]:
        for i in range(2, len(state)):
            about = (*state[:2], state[i])
            if i in self.healers:  # only they ask who lives
                about += tuple(state[w] for w in self.writers)
            for label, redis, db, moved in self.work_out(about):
                new = (redis, db, *state[2:i], moved, *state[i + 1 :])
                yield i, label, self.observe(state, new) if self.readers else new

    def _work_out(self, about: tuple[int, ...]) -> list[tuple[str, int, int, int]]:
        redis, db, process, *writers = (self.things[number] for number in about)
        suspects = type(process) is Healer and "suspects" in process.flags
        lives = [w for w in writers if (w.may_commit if suspects else w.lives)]
        living = {number for w in lives for number, _ in w.intents if number not in w.failed}
        ended = frozenset(intent.number for intent in redis.intents) - living
        if any(w.declared != NEW and (w.lives or w.step == "mark") for w in writers):
            ended |= {OTHERS}
        moves = process.moves(redis, db, ended)
        return [(label, *map(self.number, moved)) for label, *moved in moves]

    def observe(self, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
        """Readers note what they may return."""
        unnoticed = self.is_unnoticed(*before[:2]) or self.is_unnoticed(*after[:2])
        for i in self.readers:
            writers = tuple(before[w] for w in self.writers), tuple(after[w] for w in self.writers)
            after = (*after[:i], self.note(after[i], unnoticed, *writers), *after[i + 1 :])
        return after

    def _note(self, reader: int, unnoticed: bool, *moments: tuple[int, ...]) -> int:
        mine = self.things[reader]
        at_first = self.at_first[mine.owner]
        allowed = (allowed_values((self.things[w] for w in writers), mine.owner, at_first) for writers in moments)
        return self.number(mine.observe(frozenset().union(*allowed), unnoticed))

    def _is_unnoticed(self, redis: int, db: int) -> bool:
        """Whether a fault was not noticed yet."""
        there, stored = self.things[redis], self.things[db]
        return bool(is_lost(there, stored) or stored.requests or there.lost) or there.owners != there.by_intents


def run(process: Any, redis: Redis, db: Database) -> tuple[Redis, Database]:
    """Run a process to its end, alone and without a fault."""
    while True:
        step = next(process.moves(redis, db, frozenset(intent.number for intent in redis.intents)), None)
        if step is None:
            return redis, db
        _, redis, db, process = step


def wrong_read(processes: Iterable[Any]) -> str:
    return next((f"READ: a reader returned {p.seen}" for p in processes if type(p) is Reader and p.wrong), "")


def wrong_total(redis: Redis, db: Database) -> str:
    if is_lost(redis, db):
        return ""
    for owner, waiting in enumerate(redis.owners):
        ready, total = waiting.total or (None, 0)
        if ready is not None and ready == redis.ready and not waiting.dirty and total != counter(redis, db, owner):
            return f"TOTAL: {total} is cached, the counter is {counter(redis, db, owner)}"
    return ""


def wrong_end(redis: Redis, db: Database) -> str:
    for _ in range(2):
        doubts = redis.intents or db.requests or any(w.dirty for w in redis.owners)
        if is_lost(redis, db) or redis.ready is None or redis.phase or doubts:
            redis, db = run(Healer("last", 2), redis, db)  # the audit, then those in doubt
        redis, db = run(Flusher(2), redis, db)  # what was left unfinished, then what is pending
    for owner, (rows, count, _) in enumerate(db.owners):
        waiting = redis.owners[owner]
        total = waiting.total[1] if waiting.total and waiting.total[0] == redis.ready else rows
        if not (redis.ready and not redis.phase and counter(redis, db, owner) == count == rows == total):
            now = counter(redis, db, owner)
            return f"END: rows {rows}, counter {now}, stored {count}, total {total}"
    if redis.intents or db.requests or any(w.dirty or w.flushing is not None for w in redis.owners):
        return "END: something is left"
    return ""


def explore(scenario: str, drop: Iterable[str] = (), first_only: bool = False) -> Found:
    """Explore a scenario, breadth first: the first violation is a shortest one."""
    processes = (SCENARIOS | LARGE)[scenario]
    number = max((len(deltas) for p in processes if type(p) is Writer for _, deltas in p.intents + p.unsaid), default=1)
    fresh = Redis((Waiting(),) * number), Database((Row(),) * number)
    start = next((start for beginning, start in STARTS.items() if scenario.startswith(beginning)), fresh)
    space = Space(World(*start, processes))

    @cache
    def total(redis: int, db: int) -> str:
        return wrong_total(space.things[redis], space.things[db])

    @cache
    def end(redis: int, db: int) -> str:
        return wrong_end(space.things[redis], space.things[db])

    def wrong(state: tuple[int, ...], final: bool) -> str:
        broken = total(*state[:2]) or wrong_read(space.things[state[i]] for i in space.readers)
        return broken or (end(*state[:2]) if final else "")

    def show(state: tuple[int, ...], step: tuple) -> tuple[Move, World]:
        i, label, following = step
        return Move(i - 2, space.things[state[i]].step, label), space.world(following)

    found = search(space.start, space.successors, wrong, show, first_only, drop)
    return found._replace(history=((None, space.world(space.start)), *found.history))


# ---------------------------------------------------------------------------------------------------------- scenarios
def W(intent: int, delta: int | tuple[int, ...], *faults: str) -> Writer:
    """A writer with one intent: the delta of the only owner, or of each."""
    return W2({intent: delta}, *faults)


def W2(intents: dict[int, Any], *faults: str) -> Writer:
    return Writer(tuple((number, as_deltas(delta)) for number, delta in intents.items()), frozenset(faults))


def D(intent: int, delta: int | tuple[int, ...], *faults: str) -> Writer:
    """A request for everyone."""
    return Writer((), frozenset(faults), "statement", ((intent, as_deltas(delta)),))


def as_deltas(delta: int | tuple[int, ...]) -> tuple[int, ...]:
    return delta if isinstance(delta, tuple) else (delta,)


TOKENS = map("r{}".format, itertools.count())


def R(*flags: str, owner: int = 0) -> Reader:
    return Reader(frozenset(flags), owner, token=next(TOKENS))


F = Flusher
REFUSED = F(2, frozenset({"refused"}))
H, SUSPECTS = Healer, frozenset({"suspects"})
LOSS, RESTART, FAILOVER = Fault("loss"), Fault("restart"), Fault("failover")
EVICTION, EXPIRY = Fault("eviction"), Fault("expiry")
ROLLBACK, BACK, LOADED = Fault("rollback"), Fault("back"), Fault("loaded")
G = F(1, token="g")


def old(intent: int, delta: int, tells: int, *faults: str) -> Writer:
    return Writer(((intent, (delta,)),), frozenset(faults), declared=OLD, tells=(tells,))


ANNOUNCED = Writer(((9, (-1,)),), step="db", announced=1)  # an intent of epoch 1
LATE = F(1, step="apply", seen=(BATCHES + 1, 0, 1, (1, 0)))  # has fetched a batch of epoch 1

# Epoch 2 has begun: there is one row, whose +1 was lost.
LOST = Redis((Waiting(),), epoch=2, batch=2 * BATCHES, ready=2, phase="?"), Database((Row(1),), 2, finished=2 * BATCHES)
LOST_TWO = LOST[0]._replace(owners=(Waiting(),) * 2), LOST[1]._replace(owners=(Row(1),) * 2)
BEFORE = announce(LOST[0]._replace(ready=1, phase=""), 9, (-1,))
LOST_AND_ANNOUNCED = BEFORE._replace(ready=2, phase="?"), LOST[1]
RIGHT = LOST[0], LOST[1]._replace(owners=(Row(1, 1, BATCHES + 1),))  # the +1 was flushed before
CUT = Redis((Waiting(flushing=1),), batch=BATCHES + 1, server=-1), Database((Row(1),))  # before epoch 2

# By the old declaration 2 rows count, by the new one 1.
DECLARED = Redis((Waiting(),), declared=OLD), Database((Row(1, 2),), declared=OLD)

ELSEWHERE = (  # totals of another database, and a Redis that is new
    Redis((Waiting(),), epoch=None, batch=0, server=-1, ready=None),
    Database((Row(batch=9 * BATCHES + 5),), epoch=0, finished=0),
)
STARTS = {  # by what the names of scenarios begin with
    "totals from elsewhere": ELSEWHERE,
    "recovery begins": CUT,
    "recovery: 2 owners": LOST_TWO,
    "recovery: intent from before": LOST_AND_ANNOUNCED,
    "recovery: nothing wrong": RIGHT,
    "recovery": LOST,
    "declaration": DECLARED,
}

# fmt: off
SCENARIOS: dict[str, tuple] = {
    "2 writers, flusher, reader": (W(1, 1), W(2, -1), F(2), R()),
    "writer, 2 flushers, 2 readers": (W(1, 1), F(2), F(1), R(), R()),
    "2 writers, 2 flushers": (W(1, 1), W(2, 1), F(2), F(1)),
    "writer, healer, reader": (W(1, 1), H("h"), R()),
    "2 writers, healer twice, reader": (W(1, 1), W(2, 1), H("h", 2), R()),
    "writer, healer, 2 readers": (W(1, 1), H("h"), R(), R()),
    "2 writers killed or retried, flusher, healer": (W(1, 1, "kill", "retry"), W(2, 1, "kill"), F(2), H("h")),
    "writer killed or retried, flusher, healer twice, reader": (W(1, 1, "kill", "retry"), F(1), H("h", 2), R()),
    "2 writers killed, 2 healers": (W(1, 1, "kill", "retry"), W(2, -1, "kill"), H("h"), H("i")),
    "2 writers under suspicion, flusher, healer twice": (W(1, 1), W(2, -1), F(1), H("h", 2, SUSPECTS)),
    "writer killed under suspicion, healer twice, reader": (W(1, 1, "kill"), H("h", 2, SUSPECTS), R()),
    "writer that is refused, writer, healer, reader": (W(1, 1, "refused"), W(2, 1), H("h"), R()),
    "writer under suspicion, 2 healers, reader": (W(1, 1), H("h", 1, SUSPECTS), H("i"), R()),
    "writer without announce, writer, healer, flusher": (W(1, 1, "announce"), W(2, 1), H("h"), F(1)),
    "writer without confirm, flusher, healer twice, reader": (W(1, 1, "confirm"), F(1), H("h", 2), R("lags")),
    "2 writers without announce or confirm, healer": (W(1, 1, "announce", "confirm"), W(2, -1, "confirm"), H("h", 2)),
    "writer, flusher, healer, expiring total, reader": (W(1, 1), F(1), H("h"), EXPIRY, R()),
    "2 writers, flusher, healer, loss": (W(1, 1), W(2, -1), F(1), H("h"), LOSS),
    "writer without confirm, 2 flushers, healer, loss": (W(1, 1, "confirm", "retry"), F(1), F(1), H("h"), LOSS),
    "writer, flusher, healer, loss, reader": (W(1, 1), F(1), H("h"), LOSS, R("lags")),
    "writer, 2 healers, loss": (W(1, 1, "retry"), H("h"), H("i"), LOSS),
    "2 writers, flusher, healer, restart": (W(1, 1), W(2, -1), F(1), H("h"), RESTART),
    "writer, flusher, healer, restart, reader": (W(1, 1), F(1), H("h"), RESTART, R("lags")),
    "writer, flusher, 2 healers, restart": (W(1, 1), F(1), H("h"), H("i"), RESTART),
    "writer, healer, eviction of ready, reader": (W(1, 1), H("h"), EVICTION, R()),
    "writer, flusher, 2 healers, eviction of ready": (W(1, 1), F(1), H("h"), H("i"), EVICTION),
    # A recovery: while everyone is recounted, readers repair their owners.
    "recovery: writer, healer, 2 readers": (W(1, -1), H("h"), R(), R()),
    "recovery: 2 writers, flusher, healer, reader": (W(1, -1), W(2, 1), F(1), H("h"), R()),
    "recovery: writer of two intents, writer, healer, reader": (W2({1: 1, 2: -1}), W(3, -1), H("h"), R()),
    "recovery: writer killed or retried, flusher, healer twice, reader":
        (W(1, -1, "kill", "retry"), F(1), H("h", 2), R()),
    "recovery: 2 owners, 2 healers": (H("h"), H("i")),
    "recovery: 2 owners, writer, 2 healers": (W(1, (-1, 0)), H("h"), H("i")),
    "recovery: nothing wrong, writer, healer, flusher, reader": (W(1, -1), H("h"), F(1), R()),
    "recovery: intent from before, healer, reader": (ANNOUNCED, H("h"), R()),
    "recovery: intent from before, writer, healer, flusher, reader": (ANNOUNCED, W(1, 1), H("h"), F(1), R()),
    "recovery: writer, 2 healers, reader": (W(1, -1), H("h"), H("i"), R()),
    "recovery: writer under suspicion, healer twice, reader": (W(1, -1), H("h", 2, SUSPECTS), R()),
    "recovery: writer without confirm, flusher, healer, reader": (W(1, -1, "confirm"), F(1), H("h"), R("lags")),
    "recovery: writer without announce, healer, reader": (W(1, -1, "announce"), H("h"), R("lags")),
    "recovery: writer, healer, expiring total, 2 readers": (W(1, -1), H("h"), EXPIRY, R(), R()),
    "recovery: writer, healer, eviction of ready, reader": (W(1, -1), H("h"), EVICTION, R()),
    "recovery: writer, healer, failover, reader": (W(1, -1), H("h"), FAILOVER, R("lags")),
    "recovery: writer, flusher twice, healer, remover, reader": (W(1, -1), F(2), H("h"), Remover(), R("unjudged")),
    "recovery: request for everyone, healer, 2 readers": (D(1, -1, "kill"), H("h"), R(), R()),
    "recovery begins: late flusher, healer, 2 readers": (LATE, H("h"), R("lags"), R("lags")),
    "recovery begins: late flusher, writer, healer, reader": (W(1, -1), LATE, H("h"), R("lags")),
    "2 writers, flusher twice, failover": (W(1, 1), W(2, 1), F(2), FAILOVER),
    "writer, 2 flushers, healer, failover": (W(1, 1, "retry"), F(1), F(1), H("h"), FAILOVER),
    "2 writers, healer, failover": (W(1, 1), W(2, -1), H("h", 2), FAILOVER),
    "writer, flusher, healer, failover, reader": (W(1, 1), F(1), H("h"), FAILOVER, R("lags")),
    "writer without knowledge, flusher, healer, reader": (W(1, 1, "unknown", "kill", "retry"), F(1), H("h"), R()),
    "2 writers, flusher that is refused, reader": (W(1, 1), W(2, 1), REFUSED, R("unjudged")),
    "2 writers, flusher that is refused, healer": (W(1, 1), W(2, 1), REFUSED, H("h")),
    "2 writers, 2 flushers, remover": (W(1, 1), W(2, -1), F(2), F(1), Remover()),
    "2 writers, flusher twice, healer, remover": (W(1, 1), W(2, -1), F(2), H("h"), Remover()),
    "2 writers, flusher twice, remover, reader": (W(1, 1), W(2, -1), F(2), Remover(), R("unjudged")),
    "writer, flusher, healer, failover, remover": (W(1, 1), F(1), H("h"), FAILOVER, Remover()),
    "writer of 2 rows, writer, flusher, healer, reader": (W(1, 2), W(2, 1), F(1), H("h"), R()),
    "request for everyone, flusher, reader": (D(1, 1, "kill"), F(1), R()),
    "request for everyone, healer, reader": (D(1, 1, "kill"), H("h"), R()),
    "request for everyone, writer, healer, reader": (D(1, 1, "kill"), W(2, 1), H("h"), R()),
    "request for everyone, 2 healers": (D(1, 1, "kill"), H("h"), H("i")),
    "writer, request for everyone, flusher twice, healer": (W(1, 1), D(2, -1, "kill"), F(2), H("h")),
    "2 doubts about everyone, healer, reader": (D(1, 1), D(2, 1, "kill"), H("h"), R()),
    "writer with a request for everyone, flusher, healer, reader":
        (Writer(((1, (1,)),), frozenset({"kill", "retry"}), "statement", ((2, (1,)),)), F(1), H("h"), R()),
    "request for everyone, writer without announce or confirm, healer":
        (D(1, 1, "kill"), W(2, 1, "announce", "confirm"), H("h")),
    "request for everyone not delivered, flusher, healer, reader": (D(1, 1, "forget"), F(1), H("h"), R("lags")),
    "request for everyone in a manual transaction, healer twice, reader":
        (D(1, 1, "manual", "kill"), H("h", 2), R("lags")),
    "request for everyone, healer, eviction of ready, reader": (D(1, 1, "kill"), H("h"), EVICTION, R()),
    "request for everyone, flusher, healer, restart, reader": (D(1, 1, "kill"), F(1), H("h"), RESTART, R("lags")),
    "request for everyone, healer, failover, reader": (D(1, 1, "kill"), H("h"), FAILOVER, R("lags")),
    "request for everyone, healer, loss, reader": (D(1, 1, "kill"), H("h"), LOSS, R("lags")),
    # The declaration changes, and processes of the old one go on.
    "declaration: silent old writer, healer, reader": (old(1, 1, 0, "silent"), H("h"), R()),
    "declaration: old writer, healer, flusher, reader": (old(1, 1, -1, "kill", "retry"), H("h"), F(1), R()),
    "declaration: old writer without announce or confirm, healer, reader":
        (old(1, 1, 2, "announce", "confirm"), H("h"), R("lags")),
    "declaration: old writer, silent old writer, writer, healer":
        (old(1, -1, 1), old(2, 1, 0, "silent"), W(3, 1), H("h")),
    "declaration: writer, old flusher, healer": (W(1, 1), F(2, declared=OLD), H("h")),
    "declaration: writer, old flusher, healer, reader": (W(1, 1), F(1, declared=OLD), H("h"), R()),
    "declaration: writer, old writer, old flusher, healer, flusher":
        (W(1, 1), old(2, 1, 2), F(1, declared=OLD), H("h"), F(1)),
    "declaration: old writer, 2 healers, reader": (old(1, 1, 2), H("h"), H("i"), R()),
    "declaration: old writer, writer, healer, reader": (old(1, 1, 0), W(2, -1), H("h"), R()),
    "declaration: old writer, healer, restart, reader": (old(1, 1, 0), H("h"), RESTART, R("lags")),
    "declaration: old writer, request for everyone, healer, reader": (old(1, 1, 0), D(2, 1, "kill"), H("h"), R()),
    # Two owners, the second one last in each tuple of deltas.
    "2 owners, 2 writers, 2 flushers": (W(1, (1, 0)), W(2, (0, 1)), F(2), F(1)),
    "2 owners in one intent, 2 flushers, reader": (W(1, (1, 1)), F(2), F(1), R()),
    "2 owners in two intents, healer, flusher": (W2({1: (1, 0), 2: (0, 1)}, "kill", "retry"), H("h"), F(1)),
    "2 owners in two intents under suspicion, writer, healer":
        (W2({1: (1, 0), 2: (0, 1)}), W(3, (-1, 0)), H("h", 1, SUSPECTS)),
    "2 owners in two intents without announce or confirm, healer":
        (W2({1: (1, 0), 2: (0, 1)}, "announce", "confirm"), H("h", 2)),
    "2 owners, writer, request for everyone, flusher, healer": (W(1, (1, 0)), D(2, (-1, 1), "kill"), F(1), H("h")),
    "2 owners in two intents, flusher, healer, failover": (W2({1: (1, 0), 2: (0, 1)}), F(1), H("h"), FAILOVER),
    # The database goes back, or gets totals from elsewhere.
    "2 writers, flusher twice, healer, database goes back": (W(1, 1), W(2, 1), F(2), H("h"), BACK),
    "2 writers, 2 flushers, database goes back": (W(1, 1), W(2, 1), F(2), G, BACK),
    "2 writers, flusher twice, remover, database goes back": (W(1, 1), W(2, -1), F(2), Remover(), BACK),
    "2 owners, 2 writers, 2 flushers, database goes back": (W(1, (1, 1)), W(2, (1, 0)), F(2), G, BACK),
    "totals from elsewhere, writer, flusher, healer": (W(1, 1), F(1), H("h")),
    "totals from elsewhere, writer, flusher, healer, reader": (W(1, 1), F(1), H("h"), R("lags")),
    "totals from elsewhere, writer, 2 healers": (W(1, 1), H("h"), H("i")),
    "writer, flusher, healer, totals loaded": (W(1, 1), F(1), H("h"), LOADED),
    "2 writers, flusher twice, healer, totals loaded": (W(1, 1), W(2, 1), F(2), H("h"), LOADED),
    # Redis goes back without a sign, or loses one key alone.
    "2 writers, flusher twice, healer, rollback of a server without a name": (W(1, 1), W(2, 1), F(2), H("h"), ROLLBACK),
    "2 writers, flusher, healer, loss of pending": (W(1, 1), W(2, 1), F(1), H("h"), Fault("pending")),
    "writer, flusher, healer, loss of pending, reader": (W(1, 1), F(1), H("h"), Fault("pending"), R("lags")),
    "2 writers, 2 flushers, loss of flushing": (W(1, 1), W(2, 1), F(2), F(1), Fault("flushing")),
    "writer, flusher, healer, loss of flushing, reader": (W(1, 1), F(1), H("h"), Fault("flushing"), R("lags")),
    "writer without knowledge, healer, loss of dirty": (W(1, 1, "unknown"), H("h"), Fault("dirty")),
    "2 writers, healer, loss of dirty": (W(1, 1), W(2, 1), H("h"), Fault("dirty")),
    "writer, healer, loss of in_flight": (W(1, 1), H("h"), Fault("in_flight")),
    "2 writers, flusher, healer, loss of in_flight": (W(1, 1), W(2, 1), F(1), H("h"), Fault("in_flight")),
    "writer killed or retried, writer, healer twice, loss of in_flight":
        (W(1, 1, "kill", "retry"), W(2, 1, "refused"), H("h", 2), Fault("in_flight")),
    "writer, healer, loss of in_flight, reader": (W(1, 1), H("h"), Fault("in_flight"), R("lags")),
    "writer, healer, loss of intents": (W(1, 1), H("h"), Fault("intents")),
    "2 writers, healer twice, loss of intents, reader": (W(1, 1), W(2, 1), H("h", 2), Fault("intents"), R("lags")),
}

LARGE: dict[str, tuple] = {  # for the command line only
    "writer, healer, failover, 2 readers": (W(1, 1), H("h"), FAILOVER, R("lags"), R("lags")),
    "recovery: writer of two intents, writer, flusher, healer, reader":
        (W2({1: 1, 2: -1}), W(3, -1), F(1), H("h"), R()),
    "recovery: writer, flusher, healer twice, failover, reader": (W(1, -1), F(1), H("h", 2), FAILOVER, R("lags")),
    "recovery: writer, healer, failover, 2 readers": (W(1, -1), H("h"), FAILOVER, R("lags"), R("lags")),
    "recovery begins: late flusher, writer, 2 healers, reader": (W(1, -1), LATE, H("h"), H("i"), R("lags")),
    "request for everyone, 2 healers, eviction of ready, reader": (D(1, 1, "kill"), H("h"), H("i"), EVICTION, R()),
    "2 doubts about everyone, healer twice, reader": (D(1, 1), D(2, 1, "kill"), H("h", 2), R()),
    "writer, request for everyone, flusher, healer twice, reader": (W(1, 1), D(2, 1, "kill"), F(1), H("h", 2), R()),
}
# fmt: on


def lines(found: Found) -> Iterator[str]:
    """Each move of a history, and what it changes."""
    before: dict[str, Any] = {}
    for move, (redis, db, processes) in found.history:
        now = {**redis._asdict(), "epoch in the database": db.epoch, "requests": set(db.requests)}
        del now["owners"]
        for owner, both in enumerate(zip(redis.owners, db.owners, strict=True)):
            of_redis, of_db = (intent._asdict() for intent in both)
            of_db["count at"] = (of_db.pop("count"), of_db.pop("batch"))
            now |= {f"{name}{owner or ''}": v for name, v in {**of_redis, **of_db}.items()}
        changes = ", ".join(f"{name} {v}" for name, v in now.items() if before and before[name] != v)
        if move:
            process = type(processes[move.process]).__name__
            yield f"{f'{process} {move.process}: {move.step} {move.label}':40s} {changes}"
        before = now


if __name__ == "__main__":
    command_line(__doc__, RULES, SCENARIOS | LARGE, explore, lines)
