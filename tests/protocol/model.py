"""The protocol of docs/discussions/protocol.md as a model of one shard, explored exhaustively.

Every interleaving of a few processes is tried. Between any two steps a process may be killed, a reply may be lost,
Redis may be unreachable, may lose everything, or may come back with older data (restart, failover).

  READ   a read returns the number of rows at some moment between its start and its end, where a transaction whose
         call has not returned yet may count or not
  TOTAL  a cached total equals the counter
  END    when everything has stopped, two runs of healer and flusher make counter, stored count and cached total
         equal to the rows

    python -m tests.protocol.model                 # every scenario, in a minute: 'bad 0' on each line
    python -m tests.protocol.model --drop fence    # without one rule: the shortest history that breaks

A remover may delete a total of zero at any time, although it should be only that of a user that is gone.

The steps are those of the Lua scripts and of writes/, maintenance/ and reader.py of the package. Time is not
modelled: a part whose transaction is over may be taken for dead at once, a lease never expires by itself. A flush goes
through a batch one user at a time, and a recount looks at a user once, not again when it was active.
"""

import argparse
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .search import Found, search

RULES = {
    "registry": "commit finds its part in `open`, else marks the user dirty",
    "fence": "a correction sends parts that had begun before it to a recount",
    "fenced": "a Redis that knows of a fence after a part, and has no fences, has lost them: the part is recounted",
    "lease": "a commit or a dirty mark stops a correction that is under way",
    "dirty_counts": "marking dirty drops the total, and readers count the rows of a dirty user",
    "guard": "a batch is applied to a row only once",
    "fetch_batch": "only the current batch is fetched",
    "finish_batch": "only the current batch is dropped",
    "keep": "a total is kept only if nothing moved since the snapshot",
    "keep_cut": "nor if a batch that the snapshot saw has been finished since",
    "later": "a reader that finds a later batch in the row than in its snapshot counts rows",
    "request": "a commit that did not reach Redis leaves a RecountRequest",
    "server": "a Redis that restarted is recovered",
    "epoch": "apply, fix and complete refuse what belongs to an earlier epoch",
    "completed": "a Redis without `ready` is lost: complete turns '7?' into '7', and nothing else",
    "ready": "under '7?' a reader without a total counts rows, and no total is one from before",
    "begun_ready": "a part that began under another epoch is not added but recounted",
    "straddle": "nor is one that began under '7?' and commits under '7'",
    "witness": "under '7?' a commit adds only to users with a total, who are adopted; others are recounted",
    "adopt_fix": "an adopted total is set only with an accepted correction",
    "unknown": "a change that is not known sends its user to a recount",
    "refused": "a user whose change the database refuses is recounted",
    "closed": "a total is removed only when no batch that it may have is taken any more",
    "removal_lease": "a removal stops a correction that is under way",
    "everyone": "a statement that does not say whose counts it changed commits together with a RecountRequest",
    "forget": "after that commit `ready` goes, so that readers count rows",
    "forget_late": "after, not before",
    "always": "a request for everyone starts an epoch, although Redis is the one that was left",
    "epoch_first": "the request is deleted when the epoch has been started",
    "past": "a database whose last finished batch is behind that of Redis went back",
    "past_apply": "a batch is taken only if the database has finished the one before it",
    "past_note": "the database notes a batch as finished with its last slice, before Redis drops it",
    "mark": "a finished batch has a random mark in both: equal numbers with other marks are a database that went back",
    "progress": "a slice is taken only where those before it are",
    "behind": "a Redis whose batch is behind the last that the database has finished went back",
    "above": "an audit looks at every stored total, even one of zero: each may have a batch from elsewhere",
    "slices": "a recovery is complete when every slice of the audit that somebody has claimed is done",
    "ahead": "a recount that meets a flushed_batch above the batch of Redis starts an epoch above it",
    "window": "after a change of the declaration, no epoch begins until the last process of another one is gone",
    "declared": "a commit of another declaration is not added but recounted",
    "declared_read": "a reader of another declaration counts rows",
    "declared_flush": "a flusher of another declaration flushes nothing",
    "waiting": "a Redis that says since when changes wait, and has none, has lost `pending`",
    "group_dirty": "marking dirty drops the kept counts of the user's group",
    "group_room": "a commit stops counts of a group that are being read from the rows",
    "group_stamp": "a part that had begun before these were kept drops them: they may have its change already",
    "doubted": "a Redis that counts more dirty users than it has lost `dirty`",
}
BREAKS = {  # the scenario in which that is found soonest
    "registry": "2 users in two parts, healer, flusher",
    "fence": "writer, healer, reader",
    "fenced": "writer, healer, loss of fences",
    "lease": "writer, healer, reader",
    "dirty_counts": "writer, healer, 2 readers",
    "guard": "2 writers, flusher, reader",
    "fetch_batch": "2 users, 2 writers, 2 flushers",
    "finish_batch": "2 writers, 2 flushers",
    "keep": "2 writers, flusher, reader",
    "keep_cut": "2 writers, flusher twice, remover, reader",
    "later": "writer of 2 rows, writer, flusher, healer, reader",
    "request": "writer without commit, flusher, healer twice, reader",
    "server": "2 writers, flusher twice, failover",
    "epoch": "2 writers, flusher, healer, restart",
    "completed": "writer, healer, eviction of ready, reader",
    "ready": "writer, flusher, healer, restart, reader",
    "begun_ready": "recovery: part from before, healer, reader",
    "straddle": "recovery: 2 writers, flusher, healer, reader",
    "witness": "recovery: 2 writers, flusher, healer, reader",
    "adopt_fix": "recovery: writer, healer, 2 readers",
    "unknown": "writer without knowledge, flusher, healer, reader",
    "refused": "2 writers, flusher that is refused, healer",
    "closed": "2 writers, 2 flushers, remover",
    "removal_lease": "2 writers, flusher twice, healer, remover",
    "everyone": "doubt about everyone, flusher, reader",
    "forget": "doubt about everyone, flusher, reader",
    "forget_late": "doubt about everyone, healer, reader",
    "always": "doubt about everyone, healer, reader",
    "epoch_first": "doubt about everyone, healer, reader",
    "past": "2 writers, flusher twice, healer, database goes back",
    "past_apply": "2 writers, flusher twice, healer, database goes back",
    "past_note": "2 users, 2 writers, 2 flushers, database goes back",
    "mark": "2 writers, 2 flushers, database goes back",
    "progress": "2 users, 2 writers, 2 flushers, database goes back",
    "behind": "2 writers, flusher twice, healer, rollback of a server without a name",
    "above": "totals from elsewhere, writer, flusher, healer",
    "slices": "recovery: 2 users, 2 healers",
    "ahead": "writer, flusher, healer, totals loaded",
    "window": "declaration: silent old writer, healer, reader",
    "declared": "declaration: old writer, healer, flusher, reader",
    "declared_read": "declaration: silent old writer, healer, reader",
    "declared_flush": "declaration: writer, old flusher, healer",
    "waiting": "2 writers, flusher, healer, loss of pending",
    "group_dirty": "writer without knowledge, 2 readers of a group",
    "group_room": "writer, healer, reader of a group",
    "group_stamp": "writer, healer, reader of a group",
    "doubted": "writer killed, healer twice, flusher, loss of dirty",
}
TOGETHER = {"finish_batch": ["past"], "declared": ["window"]}  # rules that are needed once another one fails
OLD, NEW = 0, 1  # declarations
BATCHES = 100  # batch = epoch * BATCHES + cuts in it
LISTED = 99

dropped: set[str] = set()


def rule(name: str) -> bool:
    return name not in dropped


# ---------------------------------------------------------------------------------------------------------- the state
class Waiting(NamedTuple):
    """One user in Redis."""

    pending: int | None = None  # None: not a member
    flushing: int | None = None
    total: tuple[int, int] | None = None  # (ready, value)
    group: tuple[int, int | str, int] | None = None  # (ready, seq, value); until it is kept, the reader's token for seq
    lease: str | None = None
    fence: int = 0  # seq of the last correction, 0 if there is none
    dirty: bool = False


class Redis(NamedTuple):
    users: tuple[Waiting, ...]
    epoch: int | None = 1  # None: the key `state` is gone
    batch: int = BATCHES
    server: int = 0  # run_id at the last recovery
    run: int = 0  # run_id now
    ready: int | None = 1  # the epoch; None: it is lost
    phase: str = ""  # the end of `ready`: "?" during a recovery
    declared: int = NEW
    mark: str = ""  # of the last batch that is finished
    waiting: bool = False  # `waiting_since` is set
    doubted: int = 0  # users that are dirty
    fenced: int = 0  # seq of the last fence
    seq: int = 0
    open: tuple = ()  # ((part, seq, (ready, phase) at begin), ...)

    @property
    def cut(self) -> bool:
        return any(w.flushing is not None for w in self.users)

    @property
    def finished(self) -> int:
        return self.batch - self.cut

    @property
    def lost_pending(self) -> bool:
        return rule("waiting") and self.waiting and all(w.pending is None for w in self.users)

    @property
    def lost_fences(self) -> int:
        """The seq of the last fence if all are gone: there may have been one for anybody."""
        return self.fenced if rule("fenced") and not any(w.fence for w in self.users) else 0

    @property
    def lost_dirty(self) -> bool:
        return rule("doubted") and self.doubted != sum(w.dirty for w in self.users)


class Row(NamedTuple):
    """One user in the database."""

    rows: int = 0  # COUNT(*): the truth
    count: int = 0
    batch: int = 0


class Database(NamedTuple):
    users: tuple[Row, ...]
    epoch: int = 1
    listed: int = 0  # users before this one are in slices of the audit; LISTED: everyone is
    claims: frozenset = frozenset()  # slices that are not done: {(who claimed it, user), ...}
    locked: bool = False  # by a healer that starts an epoch
    closed: int = 0  # no batch up to this one is taken
    finished: int = BATCHES  # the last batch of which every slice is applied
    mark: str = ""  # of that batch
    declared: int = NEW
    progress: int = 0  # users of the batch after it that are applied
    requests: frozenset = frozenset()  # RecountRequests: {(part, user), ...}, for everyone without a user


class World(NamedTuple):
    redis: Redis
    db: Database
    processes: tuple


def change(users: tuple, user: int, new: Any) -> tuple:
    return (*users[:user], new, *users[user + 1 :])


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
    other = redis.finished == db.finished and redis.mark != db.mark and rule("mark")
    return database or other or (redis.batch < db.finished and rule("behind"))


def value(waiting: Waiting, cut: bool, batch: int, row: Row) -> int | None:
    if row.batch > batch:  # a later cut carried along what the snapshot saw; the user may have been dirty before that
        return None if rule("later") else row.count
    return row.count + (waiting.pending or 0) + ((waiting.flushing or 0) if cut and row.batch < batch else 0)


def counter(redis: Redis, db: Database, user: int) -> int | None:
    return value(redis.users[user], redis.cut, redis.batch, db.users[user])


def without_total(waiting: Waiting, ready: int | None) -> Waiting:
    return waiting._replace(total=None) if waiting.total and waiting.total[0] == ready else waiting


def without_group(waiting: Waiting, ready: int | None) -> Waiting:
    return waiting._replace(group=None) if waiting.group and waiting.group[0] == ready else waiting


def add_to_group(waiting: Waiting, ready: int | None, delta: int, seq: int) -> Waiting:
    if waiting.group is None or waiting.group[0] != ready:
        return waiting
    _, stamp, total = waiting.group
    if isinstance(stamp, str):
        return waiting._replace(group=None) if rule("group_room") else waiting
    if rule("group_stamp") and seq <= stamp:
        return waiting._replace(group=None)
    return waiting._replace(group=(ready, stamp, total + delta))


def counted(redis: Redis, users: tuple) -> Redis:
    """Redis with these users, those that have become dirty, or no longer are, counted."""
    more = sum(w.dirty for w in users) - sum(w.dirty for w in redis.users)
    return redis._replace(users=users, doubted=redis.doubted + more)


def marked(waiting: Waiting, ready: int | None) -> Waiting:
    waiting = waiting._replace(dirty=True)
    if rule("lease"):
        waiting = waiting._replace(lease=None)
    if rule("group_dirty"):
        waiting = without_group(waiting, ready)
    return without_total(waiting, ready) if rule("dirty_counts") else waiting


def mark_dirty(redis: Redis, members: Iterable[int]) -> Redis:
    users = redis.users
    for user in members:
        users = change(users, user, marked(users[user], redis.ready))
    return counted(redis, users)


def begin(redis: Redis, part: int) -> Redis:
    opened = tuple(sorted((*redis.open, (part, redis.seq + 1, (redis.ready, redis.phase)))))
    return redis._replace(seq=redis.seq + 1, open=opened)


def commit(
    redis: Redis, parts: Iterable[tuple[int, tuple[int, ...]]], unknown: bool = False, declared: int = NEW
) -> Redis:
    foreign = declared != redis.declared and rule("declared")
    users, ready, opened = redis.users, redis.ready, redis.open
    for part, deltas in parts:
        entry = next((entry for entry in opened if entry[0] == part), None)
        opened = tuple(entry for entry in opened if entry[0] != part)
        gone = foreign or redis.lost_pending or (entry is None and rule("registry"))
        begun, phase = entry[2] if entry else (ready, redis.phase)
        gone = gone or (rule("begun_ready") and (ready is None or begun != ready))
        gone = gone or (rule("straddle") and begun == ready and phase != redis.phase)
        for user, delta in enumerate(deltas):
            if delta == 0:
                continue
            waiting = users[user]
            if unknown and not rule("unknown"):
                continue
            total = waiting.total
            adopted = total is not None and total[0] == ready
            stranger = rule("witness") and redis.phase == "?" and not adopted
            fence = max(waiting.fence, redis.lost_fences)
            if gone or unknown or stranger or (rule("fence") and entry and fence >= entry[1]):
                waiting = marked(waiting, ready)
            else:
                if total and adopted:
                    total = (total[0], total[1] + delta)
                waiting = waiting._replace(pending=(waiting.pending or 0) + delta, total=total)
                waiting = add_to_group(waiting, ready, delta, entry[1] if entry else 0)
                if rule("lease"):
                    waiting = waiting._replace(lease=None)
            users = change(users, user, waiting)
    if not opened:
        users = tuple(waiting._replace(fence=0) for waiting in users)
    added = any(waiting.pending is not None for waiting in users)
    redis = counted(redis, users)._replace(open=opened, waiting=redis.waiting or added)
    return forget(redis) if foreign else redis


def keep(redis: Redis, user: int, seen: tuple[Waiting, bool, int, int], total: int) -> Redis:
    before, cut, batch, ready = seen
    waiting = redis.users[user]
    unmoved = redis.batch == batch and (waiting.pending or 0) == (before.pending or 0)
    finished = cut and not redis.cut
    if (redis.ready, redis.phase) != (ready, "") or waiting.dirty:
        return redis
    if (rule("keep") and not unmoved) or (rule("keep_cut") and finished):
        return redis
    return redis._replace(users=change(redis.users, user, waiting._replace(total=(ready, total))))


def fix(
    redis: Redis, token: str, epoch: int, corrections: dict[int, int | None], adopt: int | None = None
) -> tuple[Redis, tuple[int, ...]]:
    """Also the users that were active. A reader adopts its user with the number of rows."""
    active = []
    for user, correction in corrections.items():
        waiting = redis.users[user]
        other = rule("epoch") and redis.epoch != epoch
        adopted = None if adopt is None or redis.ready is None else (redis.ready, adopt)
        if correction is None or waiting.lease != token or other or redis.lost_pending:
            active.append(user)
            if adopted and not rule("adopt_fix"):
                redis = redis._replace(users=change(redis.users, user, waiting._replace(total=adopted)))
            continue
        if correction or redis.phase != "?":  # one who is right stays adopted
            waiting = without_total(waiting, redis.ready)
        waiting = without_group(waiting, redis.ready)._replace(dirty=False, lease=None, total=adopted or waiting.total)
        if correction:
            waiting = waiting._replace(pending=(waiting.pending or 0) + correction)
            redis = redis._replace(waiting=True)
        if redis.open:
            redis = redis._replace(seq=redis.seq + 1, fenced=redis.seq + 1)
            waiting = waiting._replace(fence=redis.seq)
        redis = counted(redis, change(redis.users, user, waiting))
    return redis, tuple(active)


def recover(redis: Redis, epoch: int, server: int, declared: int = NEW) -> Redis:
    """Start an epoch under a server that was asked for its name before. open, dirty and fences stay."""
    if redis.epoch is not None and redis.epoch >= epoch:
        return redis
    users = tuple(waiting._replace(pending=None, flushing=None) for waiting in redis.users)
    redis = redis._replace(users=users, doubted=sum(waiting.dirty for waiting in users), mark="", waiting=False)
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
OTHERS = -1  # in place of a part: somebody of another declaration lives


class Writer(NamedTuple):
    """A transaction; each of its parts has a number and a delta for each user. ``unsaid`` are like parts: changes of
    statements that do not say whose counts they change. With autocommit off, which is "manual", nobody tells of the
    COMMIT, and what comes after it comes before it.

    A process of the old declaration ``tells`` what it has changed by that; a "silent" one knows no counter, or changes
    what only the new one counts."""

    parts: tuple[tuple[int, tuple[int, ...]], ...]
    faults: frozenset[str] = frozenset()
    step: str = "begin"
    unsaid: tuple[tuple[int, tuple[int, ...]], ...] = ()
    begun: int = 0  # parts
    failed: tuple[int, ...] = ()  # parts that could not begin
    declared: int = NEW
    tells: tuple[int, ...] | None = None

    def moves(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        sent = [part for part in self.parts if part[0] not in self.failed]
        refused = [
            (part, user) for part, deltas in self.parts if part in self.failed for user, d in enumerate(deltas) if d
        ]
        then = "commit" if sent else "mark" if refused else "done"
        if "silent" in self.faults:
            sent, then = [], "done"
        elif self.tells is not None:
            sent = [(part, self.tells) for part, _ in sent]
        early = "manual" in self.faults or not rule("forget_late")
        if self.step == "statement":
            yield "", redis, db, self._replace(step="forget early" if early else "begin" if self.parts else "db")
        elif self.step == "begin":
            part = self.parts[self.begun][0]
            following = self._replace(begun=self.begun + 1, step="begin" if self.begun + 1 < len(self.parts) else "db")
            yield "", redis if "silent" in self.faults else begin(redis, part), db, following
            if "begin" in self.faults:
                following = following._replace(failed=(*self.failed, part))
                yield "not delivered", redis, db, following
                yield "reply lost", begin(redis, part), db, following
        elif self.step == "db":
            users = tuple(row._replace(rows=row.rows + self.delta(user)) for user, row in enumerate(db.users))
            everyone = [(part, None) for part, _ in self.unsaid if rule("everyone")]
            if all(row.rows >= 0 for row in users):
                committed = db._replace(users=users, requests=db.requests.union(refused, everyone))
                yield "", redis, committed, self._replace(step="forget" if self.unsaid and not early else then)
            if "kill" in self.faults:
                yield "killed", redis, db, self._replace(step="rolled back")
        elif self.step in ("forget", "forget early"):
            following = self._replace(step="db" if early else then)
            yield "", forget(redis) if rule("forget") else redis, db, following
            if "kill" in self.faults:
                yield "killed", redis, db, self._replace(step="rolled back" if early else "killed")
            if "forget" in self.faults:
                yield "not delivered", redis, db, following
        elif self.step == "commit":
            done = self._replace(step="mark" if refused else "done")
            committed = commit(redis, sent, "unknown" in self.faults, self.declared)
            yield "", committed, db, done
            if "retry" in self.faults:
                yield "reply lost", committed, db, self._replace(step="commit again")
            if "kill" in self.faults:
                yield "killed", redis, db, self._replace(step="killed")
            if "commit" in self.faults:
                asked = [(part, user) for part, deltas in sent for user, d in enumerate(deltas) if d]
                with_requests = db._replace(requests=db.requests.union(asked)) if rule("request") else db
                yield "not delivered", redis, with_requests, self._replace(step="done late")
                yield "reply lost, request", committed, with_requests, self._replace(step="done late")
        elif self.step == "commit again":
            again = commit(redis, sent, "unknown" in self.faults, self.declared)
            yield "", again, db, self._replace(step="mark" if refused else "done")
        elif self.step == "mark":  # after its database commit, if Redis answers again
            yield "", mark_dirty(redis, [user for _, user in refused]), db, self._replace(step="done")
            yield "not delivered", redis, db, self._replace(step="done late")

    @property
    def lives(self) -> bool:
        return self.step in ("statement", "begin", "db", "forget", "commit", "commit again")

    def delta(self, user: int) -> int:
        return sum(deltas[user] for _, deltas in self.parts + self.unsaid)


def noted(db: Database, batch: int, applied: int, size: int, mark: str) -> Database:
    """The database after a slice: what it knows of the batch."""
    if batch <= db.finished:
        return db
    if applied == (size if rule("past_note") else 1):
        return db._replace(finished=batch, mark=mark, progress=0)
    return db._replace(progress=max(db.progress, applied))


class Flusher(NamedTuple):
    runs: int = 1
    faults: frozenset[str] = frozenset()  # "refused": the database may refuse a change
    step: str = "check"
    seen: Any = None
    refused: tuple[int, ...] = ()  # users
    token: str = "f"
    mark: str = ""  # of the batch before; when the last slice is applied, of this one
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
            if known and not redis.cut and any(w.pending is not None for w in redis.users):
                users = tuple(w._replace(pending=None, flushing=w.pending) for w in redis.users)
                redis = redis._replace(users=users, batch=redis.batch + 1, waiting=False)
            if known and redis.cut:  # perhaps left by a flusher that died
                size = sum(w.flushing is not None for w in redis.users)
                yield "", redis, db, self._replace(step="fetch", seen=(redis.batch, 0, size), mark=redis.mark)
            else:
                yield "", redis, db, again
        elif self.step == "fetch":
            batch, rank, size = self.seen
            ranked = sorted((w.flushing, user) for user, w in enumerate(redis.users) if w.flushing is not None)
            if (redis.batch == batch or not rule("fetch_batch")) and rank < len(ranked):
                yield "", redis, db, self._replace(step="apply", seen=(*self.seen, ranked[rank]))
            else:
                yield "", redis, db, self._replace(step="finish", seen=batch)
        elif self.step == "apply":
            batch, rank, size, (delta, user) = self.seen
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
                gap = (db.mark != self.mark and rule("mark")) or (db.progress < rank and rule("progress"))
            if gap:
                yield "", redis, db, again
                return
            row = db.users[user]
            if (row.batch < batch or not rule("guard")) and self.declared == db.declared:  # else to other totals
                row = row._replace(count=row.count + delta, batch=batch)
            db = noted(db, batch, rank + 1, size, f"{self.token}{self.runs}")
            applied = db._replace(users=change(db.users, user, row))
            following = self._replace(step="fetch", seen=(batch, rank + 1, size))
            if rank + 1 == size:
                following = self._replace(step="finish", seen=batch, mark=db.mark)
            yield "", redis, applied, following
            yield "killed", redis, applied, again
            if "refused" in self.faults:
                yield "refused", redis, db, following._replace(refused=(*self.refused, user))
        elif self.step == "finish":
            if redis.cut and (redis.batch == self.seen or not rule("finish_batch")):
                redis = redis._replace(users=tuple(w._replace(flushing=None) for w in redis.users), mark=self.mark)
                if rule("refused"):
                    redis = mark_dirty(redis, self.refused)
            yield "", redis, db, again


class Reader(NamedTuple):
    # "lags": may be behind as long as a fault was not noticed. "unjudged": may return anything, but keep only what is
    # right: of a user that is gone, or whose change the database has just refused.
    flags: frozenset[str] = frozenset()
    user: int = 0
    step: str = "get"
    seen: Any = None
    allowed: frozenset[int] | None = frozenset()
    lagged: bool = False
    wrong: bool = False
    token: str = "r"
    of_group: bool = False

    def moves(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        waiting, row = redis.users[self.user], db.users[self.user]
        if self.of_group and self.step in ("get", "room", "group rows", "keep group"):
            yield "", *self._group(redis, db)
        elif self.step == "get":
            total = waiting.total
            if redis.epoch is None or (redis.ready is None and rule("ready")):
                yield "", redis, db, self._replace(step="rows")
            elif redis.declared != NEW and rule("declared_read"):
                yield "", forget(redis), db, self._replace(step="rows")
            elif total and (total[0] == redis.ready or not rule("ready")):
                yield "", redis, db, self._replace(step="return", seen=total[1])
            elif redis.phase == "?" and rule("ready"):
                yield "", redis, db, self._replace(step="look")
            else:
                yield "", redis, db, self.looked(redis)
        elif self.step == "look":
            following = self.looked(redis)
            if following.step == "adopt" and waiting.lease is None:
                redis = redis._replace(users=change(redis.users, self.user, waiting._replace(lease=self.token)))
            yield "", redis, db, following
        elif self.step == "adopt":
            yield "", redis, db, self._replace(step="adopt row", seen=(*self.seen, row.rows))
        elif self.step == "adopt row":
            *snapshot, epoch, rows = self.seen
            total = value(*snapshot, row)
            correction = None if total is None else rows - total
            yield "", redis, db, self._replace(step="adopt fix", seen=(epoch, rows, correction))
        elif self.step == "adopt fix":
            epoch, rows, correction = self.seen
            redis, _ = fix(redis, self.token, epoch, {self.user: correction}, rows)
            yield "", redis, db, self._replace(step="return", seen=rows)
        elif self.step == "rows":
            yield "", redis, db, self._replace(step="return", seen=row.rows)
        elif self.step == "row":
            total = value(*self.seen[:3], row)
            if total is None:
                yield "", redis, db, self._replace(step="rows")
            else:
                yield "", redis, db, self._replace(step="keep", seen=(self.seen, total))
        elif self.step == "keep":
            snapshot, total = self.seen
            yield "", keep(redis, self.user, snapshot, total), db, self._replace(step="return", seen=total)
        elif self.step == "return":
            wrong = not self.lagged and self.seen not in self.allowed and "unjudged" not in self.flags
            yield "", redis, db, self._replace(step="end", allowed=None, wrong=wrong)

    def looked(self, redis: Redis) -> "Reader":
        """After a snapshot of what waits."""
        waiting = redis.users[self.user]
        snapshot = (waiting._replace(total=None, group=None, lease=None, fence=0), redis.cut, redis.batch)
        foreign = redis.declared != NEW and rule("declared_read")
        if (redis.ready is None and rule("ready")) or foreign:
            return self._replace(step="rows")
        if redis.phase == "?" and rule("ready"):
            return self._replace(step="adopt", seen=(*snapshot, redis.epoch))
        if waiting.dirty and rule("dirty_counts"):
            return self._replace(step="rows")
        return self._replace(step="row", seen=(*snapshot, redis.ready))

    def _group(self, redis: Redis, db: Database) -> tuple[Redis, Database, "Reader"]:
        waiting = redis.users[self.user]
        group = waiting.group or (None, "", 0)
        if self.step == "get":
            kept = group[0] == redis.ready and not isinstance(group[1], str)
            return redis, db, self._replace(step="return", seen=group[2]) if kept else self._replace(step="room")
        if self.step == "room":
            if redis.epoch is None or redis.ready is None or waiting.dirty:
                return redis, db, self._replace(step="rows")
            users = change(redis.users, self.user, waiting._replace(group=(redis.ready, self.token, 0)))
            return redis._replace(users=users), db, self._replace(step="group rows", seen=(redis.ready, redis.phase))
        if self.step == "group rows":
            return redis, db, self._replace(step="keep group", seen=(self.seen, db.users[self.user].rows))
        (ready, phase), rows = self.seen
        if (redis.ready, redis.phase) == (ready, phase) and group[:2] == (ready, self.token):
            users = change(redis.users, self.user, waiting._replace(group=(ready, redis.seq, rows)))
            redis = redis._replace(users=users)
        return redis, db, self._replace(step="return", seen=rows)

    def observe(self, allowed: frozenset[int], unnoticed: bool) -> "Reader":
        if self.step == "end":
            return self
        if self.step == "get":
            return self._replace(allowed=allowed)
        return self._replace(allowed=self.allowed | allowed, lagged=self.lagged or (unnoticed and "lags" in self.flags))


class Healer(NamedTuple):
    token: str
    runs: int = 1
    flags: frozenset[str] = frozenset()  # "suspects": drops also parts of transactions that live
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
        users = {user for _, user in db.requests}
        if db.declared != NEW:
            yield "", redis, db._replace(declared=NEW), ("check", None)
        elif OTHERS in ended and rule("window"):  # it waits
            return
        elif None not in users:
            marked = mark_dirty(redis, users)
            yield "", marked, db, ("delete", db.requests) if users else ("server", None)
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
        started = db._replace(epoch=epoch, locked=False, finished=epoch * BATCHES, mark="", progress=0)
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
        """Look for the next slice, which is one user here; then for one that somebody has claimed and not done."""
        epoch = self.seen
        if db.epoch != epoch:
            yield "", redis, db, None
        elif db.listed != LISTED:
            users = [u for u, row in enumerate(db.users) if row.rows or row.count or (row.batch and rule("above"))]
            user = next((u for u in users if u >= db.listed), None)
            if user is None:
                yield "", redis, db._replace(listed=LISTED), ("audit", epoch)
            else:
                yield "", redis, db, ("claim", (epoch, db.listed, db.claims, user))
        elif db.claims and rule("slices"):
            for who, user in db.claims:
                if self.token not in who:  # once, or there would be no end of it
                    yield "", redis, db, ("claim", (epoch, LISTED, db.claims, user, who))
            yield "", redis, db, None  # others may be at work: the next run looks again
        else:
            yield "", redis, db, ("complete", (epoch, redis.run))

    def _claim(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        """Unless another healer was faster."""
        epoch, listed, claims, user, *others = self.seen
        if (db.epoch, db.listed, db.claims) != (epoch, listed, claims):
            yield "", redis, db, ("audit", epoch)
            return
        left = frozenset(claim for claim in claims if claim[1] != user)
        name = self.name + "".join(others)
        claimed = db._replace(listed=max(listed, user + 1), claims=left | {(name, user)})
        yield "", redis, claimed, ("look", (epoch, (user,)))
        yield "killed", redis, claimed, None

    @property
    def name(self) -> str:
        return f"{self.token}{self.runs}"

    def _note(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        epoch, user = self.seen
        mine = {(who, of) for who, of in db.claims if who.startswith(self.name) and of == user}
        yield "", redis, db._replace(claims=db.claims - mine), ("audit", epoch)

    def _complete(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        yield "", complete(redis, *self.seen), db, None

    # -------------------------------------------------------------------------------------------------------- recount
    def _doubt(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        """What gives reason to doubt is dropped when the users are dirty."""
        parts = frozenset(part for part, _, _ in redis.open)
        oldest = min([redis.seq + 1, *(seq for _, seq, _ in redis.open)])
        marked = mark_dirty(redis, range(len(db.users)))
        if parts & ended:
            yield "", marked, db, ("drop", (parts & ended, oldest))
        elif any(0 < w.fence < oldest for w in redis.users):
            yield "", redis, db, ("drop", (frozenset(), oldest))
        else:
            yield from self._look(redis, db, ended)
        if "suspects" in self.flags and parts - ended:
            yield "suspects", marked, db, ("drop", (parts, oldest))

    def _drop(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        parts, oldest = self.seen
        users = tuple(w._replace(fence=0) if w.fence < oldest else w for w in redis.users)
        redis = redis._replace(users=users, open=tuple(entry for entry in redis.open if entry[0] not in parts))
        yield "", redis, db, ("look", None)

    def _look(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        """Of an audit, or else of everyone."""
        epoch, members = self.seen or (None, tuple(range(len(db.users))))  # the epoch of the audit
        users = redis.users
        snapshot = (
            tuple(w._replace(total=None, group=None, lease=None, fence=0) for w in users),
            redis.cut,
            redis.batch,
            redis.epoch,
        )
        for user in members:
            users = change(users, user, users[user]._replace(lease=self.token))
        leased = redis._replace(users=users)
        yield "", leased, db, ("rows", (epoch, members, snapshot))

    def _rows(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        yield "", redis, db, ("row", (*self.seen, tuple(row.rows for row in db.users)))

    def _row(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        epoch, members, (waiting, cut, batch, epoch_seen), rows = self.seen
        counts = {user: value(waiting[user], cut, batch, db.users[user]) for user in members}
        corrections = {user: None if count is None else rows[user] - count for user, count in counts.items()}
        ahead = max(db.users[user].batch for user in members)
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
    """Removes totals of zero, of users for whom nothing waits."""

    step: str = "look"
    seen: Any = None

    def moves(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        done = Remover("done")
        if self.step == "look":
            idle = tuple(i for i, w in enumerate(redis.users) if not (w.pending or w.flushing or w.dirty))
            if rule("removal_lease"):
                redis = redis._replace(users=tuple(w._replace(lease=None) for w in redis.users))
            yield "", redis, db, Remover("remove", (redis.batch - redis.cut, idle)) if idle else done
        elif self.step == "remove" and not db.locked:
            last, idle = self.seen
            if last // BATCHES == db.epoch:
                users = db.users
                for user in idle:
                    if users[user].count == 0 and users[user].batch <= last:
                        users = change(users, user, users[user]._replace(batch=0))
                db = db._replace(users=users, closed=max(db.closed, last))
            yield "", redis, db, done


class Fault(NamedTuple):
    """What befalls Redis: ``loss`` of everything; a ``restart``, under another run_id; a ``failover`` to what a
    replica, or a snapshot on disk, held at an earlier moment, a ``rollback`` if the server has no name; ``eviction`` of
    `ready`; loss of ``pending``, ``flushing``, ``dirty`` or ``fences`` alone; and the ``expiry`` of totals. What
    befalls the database: it goes ``back`` to an earlier moment, or totals of another one are ``loaded``."""

    what: str
    step: str = "armed"
    seen: Any = None

    def moves(self, redis: Redis, db: Database, ended: frozenset) -> Iterator:
        fired, run = Fault(self.what, "fired"), redis.run + 1
        if self.step == "fired":
            return
        if self.what == "loss":
            users = tuple(Waiting() for _ in redis.users)
            yield "", Redis(users, epoch=None, batch=0, server=-1, run=run, ready=None), db, fired
        elif self.what == "restart":
            yield "", redis._replace(run=run), db, fired
        elif self.what == "eviction":
            yield "", redis._replace(ready=None, phase=""), db, fired
        elif self.what == "expiry":
            yield "", redis._replace(users=tuple(w._replace(total=None, group=None) for w in redis.users)), db, fired
        elif self.what in ("pending", "flushing"):
            users = tuple(w._replace(**{self.what: None}) for w in redis.users)
            yield "", redis._replace(users=users), db, fired
        elif self.what == "dirty":
            yield "", redis._replace(users=tuple(w._replace(dirty=False) for w in redis.users)), db, fired
        elif self.what == "fences":
            yield "", redis._replace(users=tuple(w._replace(fence=0) for w in redis.users)), db, fired
        elif self.what == "loaded":  # the owner of a total that somebody writes is recounted
            users = change(db.users, 0, db.users[0]._replace(count=3, batch=9 * BATCHES + 5))
            yield "", redis, db._replace(users=users, requests=db.requests | {(99, 0)}), fired
        elif self.what == "back":
            if self.step == "armed":
                yield "", redis, db, Fault(self.what, "copied", db)
                return
            back = self.seen._replace(locked=False)
            same = all(a.rows == b.rows for a, b in zip(back.users, db.users, strict=True))
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


def allowed_values(writers: Iterable[Writer], user: int, at_first: int) -> frozenset[int]:
    values, writers = {at_first}, list(writers)
    for writer in writers:
        if writer.step.startswith("done"):
            values = {v + writer.delta(user) for v in values}
        elif writer.step in ("forget", "commit", "commit again", "killed", "mark"):
            values |= {v + writer.delta(user) for v in values}
    return frozenset(values)


class Space:
    """The states of one scenario. What they are made of is numbered, so that a state is a tuple of a few small numbers
    (Redis, database, each process), and a step that was worked out once is looked up from then on."""

    def __init__(self, start: World):
        self.things: list[Any] = []
        self.numbers: dict[Any, int] = {}
        self.steps: dict[tuple, list[tuple[str, int, int, int]]] = {}
        self.observed: dict[tuple, int] = {}
        self.unnoticed: dict[tuple, bool] = {}
        self.writers = [i for i, p in enumerate(start.processes, 2) if type(p) is Writer]
        self.readers = [i for i, p in enumerate(start.processes, 2) if type(p) is Reader]
        self.healers = {i for i, p in enumerate(start.processes, 2) if type(p) is Healer}
        self.at_first = [row.rows for row in start.db.users]
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
            steps = self.steps.get(about)
            if steps is None:
                steps = self.steps[about] = self.work_out(about)
            for label, redis, db, moved in steps:
                new = (redis, db, *state[2:i], moved, *state[i + 1 :])
                yield i, label, self.observe(state, new) if self.readers else new

    def work_out(self, about: tuple[int, ...]) -> list[tuple[str, int, int, int]]:
        redis, db, process, *writers = (self.things[number] for number in about)
        living = {part for w in writers if w.lives for part, _ in w.parts if part not in w.failed}
        ended = frozenset(part for part, _, _ in redis.open) - living
        if any(w.declared != NEW and (w.lives or w.step == "mark") for w in writers):
            ended |= {OTHERS}
        moves = process.moves(redis, db, ended)
        return [(label, *map(self.number, moved)) for label, *moved in moves]

    def observe(self, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
        """Readers note what they may return."""
        unnoticed = self.is_unnoticed(before[:2]) or self.is_unnoticed(after[:2])
        for i in self.readers:
            reader = after[i]
            writers = tuple(before[w] for w in self.writers), tuple(after[w] for w in self.writers)
            key = (reader, unnoticed, *writers)
            if key not in self.observed:
                mine = self.things[reader]
                rows = self.at_first[mine.user]
                allowed = allowed_values((self.things[w] for w in writers[0]), mine.user, rows)
                allowed |= allowed_values((self.things[w] for w in writers[1]), mine.user, rows)
                self.observed[key] = self.number(mine.observe(allowed, unnoticed))
            after = (*after[:i], self.observed[key], *after[i + 1 :])
        return after

    def is_unnoticed(self, where: tuple[int, ...]) -> bool:
        if where not in self.unnoticed:
            redis, db = self.things[where[0]], self.things[where[1]]
            self.unnoticed[where] = is_lost(redis, db) or bool(db.requests)
        return self.unnoticed[where]


def run(process: Any, redis: Redis, db: Database) -> tuple[Redis, Database]:
    """Run a process to its end, alone and without a fault."""
    while True:
        step = next(process.moves(redis, db, frozenset(part for part, _, _ in redis.open)), None)
        if step is None:
            return redis, db
        _, redis, db, process = step


def wrong_read(processes: Iterable[Any]) -> str:
    return next((f"READ: a reader returned {p.seen}" for p in processes if type(p) is Reader and p.wrong), "")


def wrong_total(redis: Redis, db: Database) -> str:
    if is_lost(redis, db):
        return ""
    for user, waiting in enumerate(redis.users):
        ready, total = waiting.total or (None, 0)
        if ready is not None and ready == redis.ready and not waiting.dirty and total != counter(redis, db, user):
            return f"TOTAL: {total} is cached, the counter is {counter(redis, db, user)}"
    return ""


def wrong_end(redis: Redis, db: Database) -> str:
    for _ in range(2):
        doubts = redis.open or db.requests or any(w.dirty for w in redis.users)
        if is_lost(redis, db) or redis.ready is None or redis.phase or doubts:
            redis, db = run(Healer("last", 2), redis, db)  # the audit, then those in doubt
        redis, db = run(Flusher(2), redis, db)  # what was left unfinished, then what is pending
    for user, (rows, count, _) in enumerate(db.users):
        waiting = redis.users[user]
        total = waiting.total[1] if waiting.total and waiting.total[0] == redis.ready else rows
        ready, stamp, in_group = waiting.group or (None, "", 0)
        if ready != redis.ready or isinstance(stamp, str):
            in_group = rows
        if not (redis.ready and not redis.phase and counter(redis, db, user) == count == rows == total == in_group):
            now = counter(redis, db, user)
            return f"END: rows {rows}, counter {now}, stored {count}, total {total}, in its group {in_group}"
    if redis.open or db.requests or any(w.dirty or w.flushing is not None for w in redis.users):
        return "END: something is left"
    return ""


def explore(scenario: str, drop: Iterable[str] = (), first_only: bool = False) -> Found:
    """Explore a scenario, breadth first: the first violation is a shortest one."""
    processes = (SCENARIOS | LARGE)[scenario]
    number = max((len(deltas) for p in processes if type(p) is Writer for _, deltas in p.parts + p.unsaid), default=1)
    fresh = Redis((Waiting(),) * number), Database((Row(),) * number)
    begun = {"recovery": LOST, "declaration": DECLARED}.get(scenario.partition(":")[0], fresh)
    start = STARTS.get(scenario, begun)
    space = Space(World(*start, processes))
    totals: dict[tuple[int, ...], str] = {}
    ends: dict[tuple[int, ...], str] = {}

    def wrong(state: tuple[int, ...], final: bool) -> str:
        where = state[:2]
        if where not in totals:
            totals[where] = wrong_total(space.things[state[0]], space.things[state[1]])
        broken = totals[where] or wrong_read(space.things[state[i]] for i in space.readers)
        if not final or broken:
            return broken
        if where not in ends:
            ends[where] = wrong_end(space.things[state[0]], space.things[state[1]])
        return ends[where]

    def show(state: tuple[int, ...], step: tuple) -> tuple[Move, World]:
        i, label, following = step
        return Move(i - 2, space.things[state[i]].step, label), space.world(following)

    dropped.update(drop)
    try:
        found = search(space.start, space.successors, wrong, show, first_only)
    finally:
        dropped.difference_update(drop)
    return found._replace(history=((None, space.world(space.start)), *found.history))


# ---------------------------------------------------------------------------------------------------------- scenarios
def W(part: int, delta: int, *faults: str) -> Writer:
    return Writer(((part, (delta,)),), frozenset(faults))


def D(part: int, delta: int, *faults: str) -> Writer:
    """A doubt about everyone."""
    return Writer((), frozenset(faults), "statement", ((part, (delta,)),))


TOKENS = map("r{}".format, itertools.count())


def R(*flags: str, user: int = 0) -> Reader:
    return Reader(frozenset(flags), user, token=next(TOKENS))


def B(token: str, *flags: str) -> Reader:
    """A reader of groups."""
    return Reader(frozenset(flags), token=token, of_group=True)


F = Flusher
REFUSED = F(2, frozenset({"refused"}))
H, SUSPECTS = Healer, frozenset({"suspects"})
LOSS, RESTART, FAILOVER = Fault("loss"), Fault("restart"), Fault("failover")
EVICTION, EXPIRY = Fault("eviction"), Fault("expiry")
ROLLBACK, BACK, LOADED = Fault("rollback"), Fault("back"), Fault("loaded")
G = F(1, token="g")


def old(part: int, delta: int, tells: int, *faults: str) -> Writer:
    return Writer(((part, (delta,)),), frozenset(faults), declared=OLD, tells=(tells,))


BEGUN = Writer(((9, (-1,)),), step="db", begun=1)  # a part of epoch 1
LATE = F(1, step="apply", seen=(BATCHES + 1, 0, 1, (1, 0)))  # has fetched a batch of epoch 1

# Epoch 2 has begun: there is one row, whose +1 was lost.
LOST = Redis((Waiting(),), epoch=2, batch=2 * BATCHES, ready=2, phase="?"), Database((Row(1),), 2, finished=2 * BATCHES)
LOST_TWO = LOST[0]._replace(users=(Waiting(),) * 2), LOST[1]._replace(users=(Row(1),) * 2)
LOST_AND_BEGUN = LOST[0]._replace(seq=1, open=((9, 1, (1, "")),)), LOST[1]
RIGHT = LOST[0], LOST[1]._replace(users=(Row(1, 1, BATCHES + 1),))  # the +1 was flushed before
CUT = Redis((Waiting(flushing=1),), batch=BATCHES + 1, server=-1), Database((Row(1),))  # before epoch 2

# By the old declaration 2 rows count, by the new one 1.
DECLARED = Redis((Waiting(),), declared=OLD), Database((Row(1, 2),), declared=OLD)

ELSEWHERE = (  # totals of another database, and a Redis that is new
    Redis((Waiting(),), epoch=None, batch=0, server=-1, ready=None),
    Database((Row(batch=9 * BATCHES + 5),), epoch=0, finished=0),
)
STARTS = {
    "totals from elsewhere, writer, flusher, healer": ELSEWHERE,
    "totals from elsewhere, writer, flusher, healer, reader": ELSEWHERE,
    "totals from elsewhere, writer, 2 healers": ELSEWHERE,
    "recovery: 2 users, 2 healers": LOST_TWO,
    "recovery: 2 users, writer, 2 healers": LOST_TWO,
    "recovery: part from before, healer, reader": LOST_AND_BEGUN,
    "recovery: part from before, writer, healer, flusher, reader": LOST_AND_BEGUN,
    "recovery: nothing wrong, writer, healer, flusher, reader": RIGHT,
    "recovery begins: late flusher, healer, 2 readers": CUT,
    "recovery begins: late flusher, writer, healer, reader": CUT,
    "recovery begins: late flusher, writer, 2 healers, reader": CUT,
}

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
    "writer under suspicion, 2 healers, reader": (W(1, 1), H("h", 1, SUSPECTS), H("i"), R()),
    "writer without begin, writer, healer, flusher": (W(1, 1, "begin"), W(2, 1), H("h"), F(1)),
    "writer without commit, flusher, healer twice, reader": (W(1, 1, "commit"), F(1), H("h", 2), R("lags")),
    "2 writers without begin or commit, healer": (W(1, 1, "begin", "commit"), W(2, -1, "commit"), H("h", 2)),
    "writer, flusher, healer, expiring total, reader": (W(1, 1), F(1), H("h"), EXPIRY, R()),
    "2 writers, flusher, healer, loss": (W(1, 1), W(2, -1), F(1), H("h"), LOSS),
    "writer without commit, 2 flushers, healer, loss": (W(1, 1, "commit", "retry"), F(1), F(1), H("h"), LOSS),
    "writer, flusher, healer, loss, reader": (W(1, 1), F(1), H("h"), LOSS, R("lags")),
    "writer, 2 healers, loss": (W(1, 1, "retry"), H("h"), H("i"), LOSS),
    "2 writers, flusher, healer, restart": (W(1, 1), W(2, -1), F(1), H("h"), RESTART),
    "writer, flusher, healer, restart, reader": (W(1, 1), F(1), H("h"), RESTART, R("lags")),
    "writer, flusher, 2 healers, restart": (W(1, 1), F(1), H("h"), H("i"), RESTART),
    "writer, healer, eviction of ready, reader": (W(1, 1), H("h"), EVICTION, R()),
    "writer, flusher, 2 healers, eviction of ready": (W(1, 1), F(1), H("h"), H("i"), EVICTION),
    # A recovery: while everyone is recounted, readers adopt their users.
    "recovery: writer, healer, 2 readers": (W(1, -1), H("h"), R(), R()),
    "recovery: 2 writers, flusher, healer, reader": (W(1, -1), W(2, 1), F(1), H("h"), R()),
    "recovery: writer of two parts, writer, healer, reader": (Writer(((1, (1,)), (2, (-1,)))), W(3, -1), H("h"), R()),
    "recovery: writer killed or retried, flusher, healer twice, reader": (
        W(1, -1, "kill", "retry"),
        F(1),
        H("h", 2),
        R(),
    ),
    "recovery: 2 users, 2 healers": (H("h"), H("i")),
    "recovery: 2 users, writer, 2 healers": (Writer(((1, (-1, 0)),)), H("h"), H("i")),
    "recovery: nothing wrong, writer, healer, flusher, reader": (W(1, -1), H("h"), F(1), R()),
    "recovery: part from before, healer, reader": (BEGUN, H("h"), R()),
    "recovery: part from before, writer, healer, flusher, reader": (BEGUN, W(1, 1), H("h"), F(1), R()),
    "recovery: writer, 2 healers, reader": (W(1, -1), H("h"), H("i"), R()),
    "recovery: writer under suspicion, healer twice, reader": (W(1, -1), H("h", 2, SUSPECTS), R()),
    "recovery: writer without commit, flusher, healer, reader": (W(1, -1, "commit"), F(1), H("h"), R("lags")),
    "recovery: writer without begin, healer, reader": (W(1, -1, "begin"), H("h"), R("lags")),
    "recovery: writer, healer, expiring total, 2 readers": (W(1, -1), H("h"), EXPIRY, R(), R()),
    "recovery: writer, healer, eviction of ready, reader": (W(1, -1), H("h"), EVICTION, R()),
    "recovery: writer, healer, failover, reader": (W(1, -1), H("h"), FAILOVER, R("lags")),
    "recovery: writer, flusher twice, healer, remover, reader": (W(1, -1), F(2), H("h"), Remover(), R("unjudged")),
    "recovery: doubt about everyone, healer, 2 readers": (D(1, -1, "kill"), H("h"), R(), R()),
    "recovery begins: late flusher, healer, 2 readers": (LATE, H("h"), R("lags"), R("lags")),
    "recovery begins: late flusher, writer, healer, reader": (W(1, -1), LATE, H("h"), R("lags")),
    "2 writers, flusher twice, failover": (W(1, 1), W(2, 1), F(2), FAILOVER),
    "writer, 2 flushers, healer, failover": (W(1, 1, "retry"), F(1), F(1), H("h"), FAILOVER),
    "2 writers, healer, failover": (W(1, 1), W(2, -1), H("h", 2), FAILOVER),
    "writer, healer, failover, 2 readers": (W(1, 1), H("h"), FAILOVER, R("lags"), R("lags")),
    "writer, flusher, healer, failover, reader": (W(1, 1), F(1), H("h"), FAILOVER, R("lags")),
    "writer without knowledge, flusher, healer, reader": (W(1, 1, "unknown", "kill", "retry"), F(1), H("h"), R()),
    "2 writers, flusher that is refused, reader": (W(1, 1), W(2, 1), REFUSED, R("unjudged")),
    "2 writers, flusher that is refused, healer": (W(1, 1), W(2, 1), REFUSED, H("h")),
    "2 writers, 2 flushers, remover": (W(1, 1), W(2, -1), F(2), F(1), Remover()),
    "2 writers, flusher twice, healer, remover": (W(1, 1), W(2, -1), F(2), H("h"), Remover()),
    "2 writers, flusher twice, remover, reader": (W(1, 1), W(2, -1), F(2), Remover(), R("unjudged")),
    "writer, flusher, healer, failover, remover": (W(1, 1), F(1), H("h"), FAILOVER, Remover()),
    "writer of 2 rows, writer, flusher, healer, reader": (W(1, 2), W(2, 1), F(1), H("h"), R()),
    "writer, healer, reader of a group": (W(1, 1), H("h"), B("b")),
    "2 writers, 2 readers of a group": (W(1, 1), W(2, 1), B("b"), B("c")),
    "2 writers, flusher, reader of a group and of a total": (W(1, 1), W(2, -1), F(1), B("b"), R()),
    "writer without knowledge, 2 readers of a group": (W(1, 1, "unknown", "retry"), B("b"), B("c")),
    "writer without begin or commit, healer twice, 2 readers of a group": (
        W(1, 1, "begin", "commit"),
        H("h", 2),
        B("b", "lags"),
        B("c", "lags"),
    ),
    "writer under suspicion, healer, 2 readers of a group": (W(1, 1, "retry"), H("h", 1, SUSPECTS), B("b"), B("c")),
    "writer, healer, restart, 2 readers of a group": (W(1, 1), H("h"), RESTART, B("b", "lags"), B("c", "lags")),
    "writer, healer, failover, 2 readers of a group": (W(1, 1), H("h"), FAILOVER, B("b", "lags"), B("c", "lags")),
    "doubt about everyone, healer, 2 readers of a group": (D(1, 1, "kill"), H("h"), B("b"), B("c")),
    "doubt about everyone, flusher, reader": (D(1, 1, "kill"), F(1), R()),
    "doubt about everyone, healer, reader": (D(1, 1, "kill"), H("h"), R()),
    "doubt about everyone, writer, healer, reader": (D(1, 1, "kill"), W(2, 1), H("h"), R()),
    "doubt about everyone, 2 healers": (D(1, 1, "kill"), H("h"), H("i")),
    "writer, doubt about everyone, flusher twice, healer": (W(1, 1), D(2, -1, "kill"), F(2), H("h")),
    "2 doubts about everyone, healer, reader": (D(1, 1), D(2, 1, "kill"), H("h"), R()),
    "writer with a doubt about everyone, flusher, healer, reader": (
        Writer(((1, (1,)),), frozenset({"kill", "retry"}), "statement", ((2, (1,)),)),
        F(1),
        H("h"),
        R(),
    ),
    "doubt about everyone, writer without begin or commit, healer": (
        D(1, 1, "kill"),
        W(2, 1, "begin", "commit"),
        H("h"),
    ),
    "doubt about everyone not delivered, flusher, healer, reader": (D(1, 1, "forget"), F(1), H("h"), R("lags")),
    "doubt about everyone in a manual transaction, healer twice, reader": (
        D(1, 1, "manual", "kill"),
        H("h", 2),
        R("lags"),
    ),
    "doubt about everyone, healer, eviction of ready, reader": (D(1, 1, "kill"), H("h"), EVICTION, R()),
    "doubt about everyone, flusher, healer, restart, reader": (D(1, 1, "kill"), F(1), H("h"), RESTART, R("lags")),
    "doubt about everyone, healer, failover, reader": (D(1, 1, "kill"), H("h"), FAILOVER, R("lags")),
    "doubt about everyone, healer, loss, reader": (D(1, 1, "kill"), H("h"), LOSS, R("lags")),
    # The declaration changes, and processes of the old one go on.
    "declaration: silent old writer, healer, reader": (old(1, 1, 0, "silent"), H("h"), R()),
    "declaration: old writer, healer, flusher, reader": (old(1, 1, -1, "kill", "retry"), H("h"), F(1), R()),
    "declaration: old writer without begin or commit, healer, reader": (
        old(1, 1, 2, "begin", "commit"),
        H("h"),
        R("lags"),
    ),
    "declaration: old writer, silent old writer, writer, healer": (
        old(1, -1, 1),
        old(2, 1, 0, "silent"),
        W(3, 1),
        H("h"),
    ),
    "declaration: writer, old flusher, healer": (W(1, 1), F(2, declared=OLD), H("h")),
    "declaration: writer, old flusher, healer, reader": (W(1, 1), F(1, declared=OLD), H("h"), R()),
    "declaration: writer, old writer, old flusher, healer, flusher": (
        W(1, 1),
        old(2, 1, 2),
        F(1, declared=OLD),
        H("h"),
        F(1),
    ),
    "declaration: old writer, 2 healers, reader": (old(1, 1, 2), H("h"), H("i"), R()),
    "declaration: old writer, writer, healer, reader": (old(1, 1, 0), W(2, -1), H("h"), R()),
    "declaration: old writer, healer, restart, reader": (old(1, 1, 0), H("h"), RESTART, R("lags")),
    "declaration: old writer, doubt about everyone, healer, reader": (old(1, 1, 0), D(2, 1, "kill"), H("h"), R()),
    # Two users, the second one last in each tuple of deltas.
    "2 users, 2 writers, 2 flushers": (Writer(((1, (1, 0)),)), Writer(((2, (0, 1)),)), F(2), F(1)),
    "2 users in one part, 2 flushers, reader": (Writer(((1, (1, 1)),)), F(2), F(1), R()),
    "2 users in two parts, healer, flusher": (
        Writer(((1, (1, 0)), (2, (0, 1))), frozenset({"kill", "retry"})),
        H("h"),
        F(1),
    ),
    "2 users in two parts under suspicion, writer, healer": (
        Writer(((1, (1, 0)), (2, (0, 1)))),
        Writer(((3, (-1, 0)),)),
        H("h", 1, SUSPECTS),
    ),
    "2 users in two parts without begin or commit, healer": (
        Writer(((1, (1, 0)), (2, (0, 1))), frozenset({"begin", "commit"})),
        H("h", 2),
    ),
    "2 users, writer, doubt about everyone, flusher, healer": (
        Writer(((1, (1, 0)),)),
        Writer((), frozenset({"kill"}), "statement", ((2, (-1, 1)),)),
        F(1),
        H("h"),
    ),
    "2 users in two parts, flusher, healer, failover": (Writer(((1, (1, 0)), (2, (0, 1)))), F(1), H("h"), FAILOVER),
    # The database goes back, or gets totals from elsewhere.
    "2 writers, flusher twice, healer, database goes back": (W(1, 1), W(2, 1), F(2), H("h"), BACK),
    "2 writers, 2 flushers, database goes back": (W(1, 1), W(2, 1), F(2), G, BACK),
    "2 writers, flusher twice, remover, database goes back": (W(1, 1), W(2, -1), F(2), Remover(), BACK),
    "2 users, 2 writers, 2 flushers, database goes back": (
        Writer(((1, (1, 1)),)),
        Writer(((2, (1, 0)),)),
        F(2),
        G,
        BACK,
    ),
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
    "writer killed, healer twice, flusher, loss of dirty": (
        W(1, 1, "kill", "retry"),
        H("h", 2),
        F(1),
        Fault("dirty"),
    ),
    "2 writers, healer, loss of dirty": (W(1, 1), W(2, 1), H("h"), Fault("dirty")),
    "writer, healer, loss of fences": (W(1, 1), H("h"), Fault("fences")),
    "2 writers, flusher, healer, loss of fences": (W(1, 1), W(2, 1), F(1), H("h"), Fault("fences")),
}

LARGE: dict[str, tuple] = {  # for the command line only
    "recovery: writer of two parts, writer, flusher, healer, reader": (
        Writer(((1, (1,)), (2, (-1,)))),
        W(3, -1),
        F(1),
        H("h"),
        R(),
    ),
    "recovery: writer, flusher, healer twice, failover, reader": (W(1, -1), F(1), H("h", 2), FAILOVER, R("lags")),
    "recovery: writer, healer, failover, 2 readers": (W(1, -1), H("h"), FAILOVER, R("lags"), R("lags")),
    "recovery begins: late flusher, writer, 2 healers, reader": (W(1, -1), LATE, H("h"), H("i"), R("lags")),
    "doubt about everyone, 2 healers, eviction of ready, reader": (D(1, 1, "kill"), H("h"), H("i"), EVICTION, R()),
    "2 doubts about everyone, healer twice, reader": (D(1, 1), D(2, 1, "kill"), H("h", 2), R()),
    "writer, doubt about everyone, flusher, healer twice, reader": (W(1, 1), D(2, 1, "kill"), F(1), H("h", 2), R()),
}


def show(found: Found) -> None:
    before: dict[str, Any] = {}
    for move, (redis, db, processes) in found.history:
        now = {**redis._asdict(), "epoch in the database": db.epoch, "requests": set(db.requests)}
        del now["users"]
        for user, both in enumerate(zip(redis.users, db.users, strict=True)):
            of_redis, of_db = (part._asdict() for part in both)
            of_db["count at"] = (of_db.pop("count"), of_db.pop("batch"))
            now |= {f"{name}{user or ''}": v for name, v in {**of_redis, **of_db}.items()}
        changes = ", ".join(f"{name} {v}" for name, v in now.items() if before and before[name] != v)
        if move:
            process = type(processes[move.process]).__name__
            print(f"    {f'{process} {move.process}: {move.step} {move.label}':40s} {changes}")
        before = now


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--drop", action="append", default=[], choices=RULES, help="leave a rule out")
    options.add_argument("--only", choices=SCENARIOS | LARGE, help="one scenario")
    chosen = options.parse_args()
    bad = 0
    for scenario in [chosen.only] if chosen.only else SCENARIOS | LARGE:
        found = explore(scenario, chosen.drop)
        print(f"{scenario:66s} states {found.states:7d}  finals {found.finals:6d}  bad {found.bad}", flush=True)
        if found.bad:
            print(f"  {found.what}")
            show(found)
        bad += found.bad
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
