"""The protocol of docs/discussions/protocol.md as a model of one counter, explored exhaustively.

Every interleaving of a few processes is tried. Between any two steps a process may be killed, a reply may be lost,
Redis or one of its keys may be lost, and Redis or the database may come back with older data.

  READ   a read returns the number of rows at some moment between its start and its end. Only the rows of a transaction
         that was not in flight when it committed may be missing until it is confirmed
  END    when everything has stopped, a few runs of healer and flusher make stored and cached totals equal to the rows
  ALARM  nobody's count is called wrong unless something went behind the app's back

The scenarios, and how to run them: scenarios.py.

The steps are those of the Lua scripts and of the package. Time is not modelled: an intent whose transaction is over
may be taken for dead at once, and a total, or a lease, expires when a fault says so. Chunks and pages have one owner.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from .search import Found, Move, Space, State, rule, search

OLD, NEW, OFF = 0, 1, 2  # declarations; OFF counts nothing: reads count rows, and writers tell nobody
WALKED, EVERYONE = 99, -1
MAX_COMPARED_TOTAL = 3  # the largest cached total that a flush compares


# ---------------------------------------------------------------------------------------------------------- the state
class Owner(NamedTuple):
    """One owner in Redis."""

    pending: bool = False  # a member of the sorted set; with which delta doesn't matter
    flushing: bool = False
    total: int | str | None = None  # in the generation of `ready`: a number, or the token of a lease
    flagged: bool = False  # the number has a flag: 12!
    in_flight: int = 0  # intents


class Intent(NamedTuple):
    """Whose counts a transaction is about to change: owners, or EVERYONE."""

    number: int
    owners: tuple[int, ...]
    grounded: bool = False  # its transaction may be over, or not


class Mark(NamedTuple):
    """The last chunk of a flush that the database has. At first, the generation that has begun."""

    batch: str = ""
    rank: int = 0  # members that are written
    random: str = ""


NONE, DECLARED, FIRST = Mark(), Mark(random="declared"), Mark(random="1")


class Look(NamedTuple):
    """What Redis holds of an owner at a moment."""

    cached: tuple  # total or lease, flag
    waits: tuple[bool, bool]  # pending, flushing
    epoch: tuple  # the generation, and how far flushes have come


class Redis(NamedTuple):
    owners: tuple[Owner, ...]
    generation: str = "1"  # in `ready`: a random id, which never comes back
    ready: int | None = NEW  # the fingerprint that stands beside it, or OFF. None: the key is gone
    server: int = 0  # its name when the generation began
    run: int = 0  # its name now
    batch: str = ""  # what is cut and not dropped
    mark: Mark = FIRST  # of the last batch that was dropped; DECLARED before. NONE: the key `state` is gone
    intents: tuple[Intent, ...] = ()
    everyone: int = 0  # intents that name EVERYONE
    on: bool = False  # a healer has found OFF, and switched it on: some may still be silent

    @property
    def by_intents(self) -> tuple[int, ...]:
        """How often each owner is in flight, as the intents say; then everyone."""
        up = [owner for intent in self.intents if not intent.grounded for owner in intent.owners]
        return tuple(map(up.count, [*range(len(self.owners)), EVERYONE]))

    @property
    def flying(self) -> tuple[int, ...]:
        return (*(owner.in_flight for owner in self.owners), self.everyone)

    def look(self, owner: int) -> Look:
        it, counts = self.owners[owner], self.ready in (OLD, NEW)
        cached = (it.total, it.flagged) if counts else (None, False)
        epoch = (self.generation, self.ready, self.batch, self.mark)
        return Look(cached, (it.pending, it.flushing), epoch)


class Row(NamedTuple):
    """One owner in the database."""

    rows: int = 0  # COUNT(*): the truth
    stored: int = 0
    old_rows: int = 0  # by the old declaration

    def counted(self, declared: int) -> int:
        return self.rows if declared == NEW else self.old_rows


class Database(NamedTuple):
    owners: tuple[Row, ...]
    mark: Mark = FIRST  # NONE: another declaration was made
    declared: int = NEW
    walk: str = ""  # who began it
    walked: int = WALKED  # the walk is done with owners before this one; WALKED: with everyone
    gentle: bool = False  # the walk, which nothing has begun but time
    requests: frozenset = frozenset()  # DoubtRequests: {(intent, owner), ...}
    locked: bool = False  # by a healer that begins a generation
    switched: int = 0  # how often counting was switched on
    accused: bool = False  # somebody's count was called wrong


class World(NamedTuple):
    redis: Redis
    db: Database
    processes: tuple


def change(things: Any, owner: int, **fields: Any) -> Any:
    """Redis or the database with these fields of an owner."""
    owners = things.owners
    return things._replace(owners=(*owners[:owner], owners[owner]._replace(**fields), *owners[owner + 1 :]))


def of_all(redis: Redis, **fields: Any) -> Redis:
    """Redis with these fields of each owner."""
    return redis._replace(owners=tuple(owner._replace(**fields) for owner in redis.owners))


# -------------------------------------------------------------------------------------------------------- the scripts
def agree(redis: Redis, mark: Mark) -> bool:
    """Whether both are in one generation, and neither went back to before what the other one has of a flush."""
    return redis.mark == mark or (redis.batch != "" and redis.batch == mark.batch)


def is_lost(redis: Redis, db: Database) -> bool:
    return (
        db.mark == NONE
        or (redis.ready in (None, OFF) and rule("ready"))
        or (redis.server != redis.run and rule("server"))
        or (not agree(redis, db.mark) and rule("agree"))
    )


def doubt(redis: Redis, owner: int, name: str = "everyone") -> Redis:
    """EVERYONE is in doubt, by the rule of this name, until the next run begins a generation."""
    if owner == EVERYONE:
        if redis.ready == OFF and rule("window.doubt"):
            return redis
        return redis._replace(ready=None) if rule(name) else redis
    total = redis.owners[owner].total
    if rule("lease.doubt") if isinstance(total, str) else rule("doubt"):
        redis = change(redis, owner, total=None, flagged=False)
    return change(redis, owner, pending=redis.owners[owner].pending or rule("touch.doubt"))


def announce(redis: Redis, number: int, owners: tuple[int, ...]) -> Redis | None:
    """None if it is refused."""
    if redis.mark == NONE and rule("unknown_redis"):
        return None
    redis = redis._replace(intents=tuple(sorted((*redis.intents, Intent(number, owners)))))
    for owner in owners:
        if owner == EVERYONE:
            redis = doubt(redis._replace(everyone=redis.everyone + 1), owner)
            continue
        total = redis.owners[owner].total
        if isinstance(total, str):
            redis = change(redis, owner, total=None if rule("lease") else total)
        elif total is not None:
            redis = change(redis, owner, flagged=rule("flagged"))
        redis = change(redis, owner, in_flight=redis.owners[owner].in_flight + 1)
    return redis


def take_out(redis: Redis, number: int, known: str, stays: bool = False) -> tuple[Redis, Intent | None]:
    """An intent out of `intents`, or grounded, and its owners out of flight. By the rule ``known``, those of a grounded
    one are not any more."""
    intent = next((intent for intent in redis.intents if intent.number == number), None)
    if intent is None:
        return redis, None
    left = [other for other in redis.intents if other != intent] + [intent._replace(grounded=True)] * stays
    redis = redis._replace(intents=tuple(sorted(left)))
    flies = not intent.grounded or not rule(known)
    for owner in intent.owners if flies else ():
        if owner == EVERYONE:
            redis = redis._replace(everyone=max(0, redis.everyone - 1))
        else:
            redis = change(redis, owner, in_flight=max(0, redis.owners[owner].in_flight - 1))
    return redis, intent


def confirm(redis: Redis, number: int, owners: tuple[int, ...], deltas: tuple | None, declared: int) -> Redis:
    """``deltas``: of each owner, None if they are unknown."""
    if not rule("registry") and all(intent.number != number for intent in redis.intents):
        redis = redis._replace(intents=(*redis.intents, Intent(number, owners)))
    redis, intent = take_out(redis, number, "grounded")
    doubted = intent is None or (intent.grounded and rule("grounded")) or (deltas is None and rule("unknown"))
    doubted = doubted or (redis.ready != declared and rule("declared"))
    for owner in owners:
        waiting = redis.owners[owner]
        if doubted or owner == EVERYONE:
            redis = doubt(redis, owner, "everyone.confirm")
        elif deltas is not None:
            flagged = waiting.flagged and waiting.in_flight > 0 and rule("flag_stays")
            total = waiting.total + deltas[owner] if isinstance(waiting.total, int) else waiting.total
            pending = waiting.pending or (deltas[owner] != 0 and rule("touch"))
            redis = change(redis, owner, total=total, flagged=flagged, pending=pending)
    return redis


def ground(redis: Redis, number: int, over: bool) -> Redis:
    """Take the owners of an intent out of flight, and doubt them. It stays if its transaction may still commit."""
    redis, intent = take_out(redis, number, "grounded.again", not over and rule("stays"))
    if intent is None or not rule("given_up"):
        return redis
    for owner in intent.owners:
        redis = doubt(redis, owner, "given_up.everyone")
    return redis


def begin_generation(redis: Redis, generation: str, server: int, declared: int) -> Redis:
    """Begin a generation. Who is in flight stays so; no older total is found."""
    redis = of_all(redis, pending=False, flushing=False)
    if rule("generation"):
        redis = of_all(redis, total=None, flagged=False)
    redis = redis._replace(batch="", mark=Mark(random=generation), generation=generation, on=False)
    return redis._replace(server=server, ready=declared)


def declare(redis: Redis, db: Database, declared: int) -> tuple[Redis, Database]:
    """Nobody reads totals until a generation begins, and writers may announce."""
    return redis._replace(ready=None, mark=DECLARED), db._replace(declared=declared, mark=NONE)


def switched_on(redis: Redis, db: Database) -> tuple[Redis, Database]:
    return declare(redis, db._replace(switched=db.switched + 1), NEW)


# ------------------------------------------------------------------------------------------------------ a comparison
class Comparison(NamedTuple):
    """Looks at Redis, counts, looks again; if something differs, a second time, which asks for intents and requests,
    too. Then an owner is right, or wrong, or nothing is certain."""

    owner: int
    walk: tuple  # how far it had come
    is_again: bool = False
    before: Look | None = None
    counted: tuple[int, int] | None = None  # rows, stored
    announced: bool = False

    def steps(self, step: str, redis: Redis, db: Database, declared: int) -> Iterator[tuple[str, "Comparison"]]:
        """The next step, and the comparison before it."""
        look, row = redis.look(self.owner), db.owners[self.owner]
        if step == "look" and self.before is None:
            yield "compare", self._replace(before=look)
        elif step == "compare":
            following = "ask" if self.is_again or not rule("compared.again") else "look"
            yield following, self._replace(counted=(row.counted(declared), row.stored))
        elif step == "ask":
            asked = {owner for _, owner in db.requests}.union(*(intent.owners for intent in redis.intents))
            named = bool(asked & {self.owner, EVERYONE})
            yield "look", self._replace(announced=named and rule("compared.announced"))
        elif step == "look":
            rows, stored = self.counted
            total, flagged = look.cached
            differs = isinstance(total, int) and total != rows and rule("compared.total")
            changes = (flagged and rule("compared.flagged")) or (look != self.before and rule("compared.before"))
            if self.announced or changes:
                yield "unsure", self
            elif not differs and (stored == rows or any(look.waits)):
                yield "right", self
            elif self.is_again or not rule("compared.again"):
                yield "settled", self._replace(before=look)
            else:
                yield "compare", self._replace(is_again=True, before=look)
        elif step == "settled":
            is_same = self.walk == (db.walk, db.walked) or not rule("compared.walk")
            walks = db.walked <= len(db.owners) and not db.gentle and rule("compared.walks")
            is_settled = is_same and not walks and not is_lost(redis, db) and db.declared == declared
            yield "wrong" if is_settled or not rule("compared.settled") else "unsure", self


# ------------------------------------------------------- the processes: a step yields (label, redis, db, next process)
class Writer(NamedTuple):
    """A transaction, with a delta for each owner; ``old`` are those by the old declaration. Nobody waits for a
    confirmation of what was in flight. Who has met OFF is ``silent``, and says how often it
    had been switched on before.

    ``faults``: "kill", "late" (killed, the COMMIT is under way), "slow" (a healer may ground or drop its intent while
    it lives; only ground it if it is also "young"), "early" (it also announces long before the COMMIT, and doesn't know
    what has changed by then), "refused" (by the database), "announce", "confirm" or "retry" (not delivered, or the
    reply is lost), "unknown" (it doesn't know what has changed), "everyone" (nor whose). This Redis does not hear of
    one who is "silent" (it has no counter), or "elsewhere" (in a Redis that no flusher has seen). The number of an
    early intent is negative."""

    number: int
    deltas: tuple[int, ...]
    faults: frozenset[str] = frozenset()
    step: str = "announce"
    failed: bool = False  # to announce
    in_flight: bool = False  # when it committed: from then on, every reader sees it
    declared: int = NEW
    old: tuple[int, ...] = ()
    silent: int | None = None

    @property
    def owners(self) -> tuple[int, ...]:
        return (EVERYONE,) if "everyone" in self.faults else tuple(i for i, delta in enumerate(self.deltas) if delta)

    @property
    def is_over(self) -> bool:
        """Its transaction is, and nobody will confirm."""
        return self.step in ("killed", "rolled back", "done")

    @property
    def is_suspect(self) -> bool:
        return self.step == "db late" or ("slow" in self.faults and self.step in ("db", "confirm", "withdraw"))

    @property
    def is_away(self) -> bool:
        return bool(self.faults & {"silent", "elsewhere"})

    def delta(self, owner: int, declared: int) -> int:
        return self.deltas[owner] if declared == NEW or not self.old else self.old[owner]

    def requested(self, db: Database) -> Database:
        requests = {(self.number, owner) for owner in self.owners}
        return db._replace(requests=db.requests | requests) if rule("request") else db

    def announced(self, redis: Redis) -> Redis | None:
        if "elsewhere" in self.faults and rule("unknown_redis"):
            return None
        return redis if self.is_away else announce(redis, self.number, self.owners)

    def confirmed(self, redis: Redis, is_undone: bool = False) -> Redis:
        deltas = tuple(self.delta(owner, self.declared) for owner in range(len(self.deltas)))
        known = None if self.faults & {"unknown", "early"} or is_undone else deltas
        if self.failed and not self.is_away:  # if Redis has the intent all the same, healing grounds it
            for owner in self.owners:
                redis = doubt(redis, owner)
            return redis
        return redis if self.is_away else confirm(redis, self.number, self.owners, known, self.declared)

    def committed(self, db: Database) -> Database:
        db = self.requested(db) if self.failed else db
        for owner, row in enumerate(db.owners):
            rows, old_rows = row.rows + self.delta(owner, NEW), row.old_rows + self.delta(owner, OLD)
            db = change(db, owner, rows=rows, old_rows=old_rows)
        return db

    def moves(self, redis: Redis, db: Database, writers: tuple) -> Iterator:
        if self.step == "early":
            yield "", announce(redis, -self.number, self.owners) or redis, db, self._replace(step="announce")
        elif self.step == "announce" and "early" in self.faults and not rule("stays.again"):
            yield "", redis, db, self._replace(step="db")
        elif self.step == "announce" and redis.ready == OFF and not self.is_away:
            yield "", redis, db, self._replace(step="db", silent=db.switched)
        elif self.step == "announce":
            announced = self.announced(redis)
            yield "", announced or redis, db, self._replace(step="db", failed=announced is None)
            if "announce" in self.faults:
                yield "not delivered", redis, db, self._replace(step="db", failed=True)
                yield "reply lost", announced or redis, db, self._replace(step="db", failed=True)
        elif self.step in ("db", "db late"):
            committed = self.committed(db)
            if min(row.rows for row in committed.owners) >= 0:
                silent = self.silent is not None or (self.failed and not rule("anyway"))
                following = "done" if silent else "confirm early" if "early" in self.faults else "confirm"
                after = self._replace(in_flight=self.is_in_flight(redis), step=following)
                yield "", redis, committed, after._replace(step="killed") if self.step == "db late" else after
            if self.step == "db late" or "kill" in self.faults:
                yield "rolled back", redis, db, self._replace(step="rolled back")
            elif "late" in self.faults:
                yield "killed, its COMMIT under way", redis, db, self._replace(step="db late")
            if "refused" in self.faults:
                yield "refused", redis, db, self._replace(step=f"withdraw{' early' * ('early' in self.faults)}")
        elif self.step in ("confirm early", "withdraw early"):
            done = confirm(redis, -self.number, self.owners, None, self.declared)
            yield "", done, db, self._replace(step=self.step.removesuffix(" early"))
            if "kill" in self.faults:
                yield "killed", redis, db, self._replace(step="killed")
        elif self.step == "withdraw":
            yield "", self.confirmed(redis, is_undone=True), db, self._replace(step="rolled back")
        elif self.step in ("confirm", "confirm again"):
            done = self.confirmed(redis)
            yield "", done, db, self._replace(step="done")
            if "kill" in self.faults:
                yield "killed", redis, db, self._replace(step="killed")
            if "retry" in self.faults and self.step == "confirm":
                yield "reply lost", done, db, self._replace(step="confirm again")
            if "confirm" in self.faults:
                yield "not delivered", redis, db, self._replace(step="done")
                yield "reply lost", done, db, self._replace(step="done")

    def is_in_flight(self, redis: Redis) -> bool:
        """A slow writer knows that its intent may be grounded, and waits for the confirmation."""
        up = {intent.number for intent in redis.intents if not (intent.grounded and rule("slow"))}
        return (self.number in up or "early" in self.faults) and not self.failed


class Reader(NamedTuple):
    # It "lags": it may be behind as long as a fault was not noticed. "any": what it returns is not judged.
    flags: frozenset[str] = frozenset()
    owner: int = 0
    step: str = "get"
    seen: Any = None
    allowed: frozenset[int] | None = frozenset()
    lagged: bool = False
    wrong: bool = False
    token: str = "r"
    declared: int = NEW

    def moves(self, redis: Redis, db: Database, writers: tuple) -> Iterator:
        owner = redis.owners[self.owner]
        rows = db.owners[self.owner].counted(self.declared)
        foreign = redis.ready != self.declared and rule(
            "declared_read.lease" if self.step == "lease" else "declared_read"
        )
        ready = redis.ready is not None and not foreign
        if self.step == "get":
            if not ready or (isinstance(owner.total, int) and owner.flagged):
                yield "", redis, db, self._replace(step="rows")
            elif isinstance(owner.total, int):
                yield "", redis, db, self._replace(step="return", seen=owner.total)
            else:
                yield "", redis, db, self._replace(step="lease")
        elif self.step == "lease":
            flies = (owner.in_flight and rule("flying")) or (redis.everyone and rule("flying.everyone"))
            if not ready or (flies and redis.intents) or owner.total is not None:
                yield "", redis, db, self._replace(step="rows")
            else:
                leased = change(redis, self.owner, total=self.token)
                yield "", leased, db, self._replace(step="count", seen=redis.generation)
        elif self.step == "count":
            yield "", redis, db, self._replace(step="keep", seen=(self.seen, rows))
        elif self.step == "keep":
            generation, rows = self.seen
            leased = owner.total == self.token or (isinstance(owner.total, str) and not rule("lease.keep"))
            if leased and (redis.generation == generation or not rule("generation")):
                redis = change(redis, self.owner, total=rows, flagged=False)
            yield "", redis, db, self._replace(step="return", seen=rows)
        elif self.step == "rows":
            yield "", redis, db, self._replace(step="return", seen=rows)
        elif self.step == "return":
            wrong = not self.lagged and self.seen not in self.allowed and "any" not in self.flags
            yield "", redis, db, self._replace(step="end", seen=None, allowed=None, lagged=False, wrong=wrong)

    def observe(self, allowed: frozenset[int], unnoticed: bool) -> "Reader":
        if self.step == "end":
            return self
        if self.step == "get":
            return self._replace(allowed=allowed)
        return self._replace(allowed=self.allowed | allowed, lagged=self.lagged or (unnoticed and "lags" in self.flags))


class Flusher(NamedTuple):
    """Each chunk is one transaction, which moves the mark from what the flusher has seen, or does nothing."""

    runs: int = 1
    token: str = "f"
    can_die: bool = False
    step: str = "row"
    seen: Any = None
    declared: int = NEW
    compares: Comparison | None = None

    def moves(self, redis: Redis, db: Database, writers: tuple) -> Iterator:
        again = self._replace(runs=self.runs - 1, step="row", seen=None)
        name = f"{self.token}{self.runs}"
        if self.runs == 0:
            return
        if self.step == "row":
            foreign = db.declared != self.declared and rule("declared_flush")
            following = self._replace(step="cut", seen=db.mark)
            yield "", redis, db, again if foreign or db.mark == NONE else following
        elif self.step == "cut":
            mark = self.seen
            if not agree(redis, mark) and rule("agree.cut"):
                yield "", redis, db, again
                return
            if not redis.batch and any(owner.pending for owner in redis.owners):
                owners = tuple(owner._replace(pending=False, flushing=owner.pending) for owner in redis.owners)
                redis = redis._replace(owners=owners, batch=name)
            rank = mark.rank if mark.batch == redis.batch or not rule("mark.resume") else 0
            size = sum(owner.flushing for owner in redis.owners)
            following = self._replace(step="fetch", seen=(mark, redis.batch, rank, size))
            yield "", redis, db, following if redis.batch else again
        elif self.step == "fetch":
            _, batch, rank, size = self.seen
            chunk = [owner for owner, waiting in enumerate(redis.owners) if waiting.flushing]
            if rank >= size:
                yield "", redis, db, self._replace(step="drop")
            elif rank >= len(chunk):  # somebody has dropped the batch, or lost it
                yield "", redis, db, self._replace(step="apply", seen=(*self.seen, None, None))
            else:
                total = redis.owners[chunk[rank]].total if redis.ready in (OLD, NEW) else None
                if isinstance(total, int) and (total > MAX_COMPARED_TOTAL or not rule("compared")):
                    yield "", redis, db, self._replace(step="apply", seen=(*self.seen, chunk[rank], total))
                else:
                    total = total if isinstance(total, int) else None
                    yield "", redis, db, self._replace(step="count", seen=(*self.seen, chunk[rank], total))
        elif self.step == "count":
            *seen, owner, total = self.seen
            rows = db.owners[owner].counted(self.declared)
            counted = self._replace(step="apply", seen=(*seen, owner, rows))
            differs = total not in (None, rows)
            compares = Comparison(owner, (db.walk, db.walked))
            yield "", redis, db, counted._replace(step="look", compares=compares) if differs else counted
        elif self.compares and self.step == "wrong":
            doubted = doubt(redis, self.compares.owner)
            yield "", doubted, db._replace(accused=True), self._replace(step="apply", compares=None)
        elif self.compares:
            for step, compares in self.compares.steps(self.step, redis, db, self.declared):
                is_over = step in ("right", "unsure")
                following = self._replace(step="apply", compares=None) if is_over else self._replace(step=step)
                yield "", redis, db, following if is_over else following._replace(compares=compares)
        elif self.step == "apply" and not db.locked:
            mark, batch, rank, size, owner, total = self.seen
            if db.mark != mark and rule("mark"):
                yield "refused", redis, db, again
                return
            new = Mark(batch, rank + 1, f"{name}.{rank}")
            applied = (db if owner is None else change(db, owner, stored=total))._replace(mark=new)
            yield "", redis, applied, self._replace(step="fetch", seen=(new, batch, rank + 1, size))
            if self.can_die:
                yield "killed", redis, applied, again
        elif self.step == "drop":
            mark, batch, *_ = self.seen
            if redis.batch == batch or not rule("drop_batch"):
                redis = of_all(redis, flushing=False)._replace(batch="", mark=mark)
            yield "", redis, db, again


class Healer(NamedTuple):
    token: str
    runs: int = 1
    can_die: bool = False
    step: str = "begin"
    seen: Any = None
    declared: int = NEW
    started: bool = False  # a run of it has found or made a declaration
    compares: Comparison | None = None

    @property
    def name(self) -> str:
        return f"{self.token}{self.runs}"

    def to(self, step: str, seen: Any = None) -> "Healer":
        return self._replace(step=step, seen=seen)

    def looks_at(self, page: tuple[str, int], db: Database) -> "Healer":
        if page[1] == len(db.owners):
            return self.to("leave", page)
        compares = Comparison(page[1], page)
        return self._replace(step="look", seen=page, compares=compares) if db.gentle else self.to("compare", page)

    def moves(self, redis: Redis, db: Database, writers: tuple) -> Iterator:
        again = self._replace(step="begin", seen=None, started=True)
        end = again._replace(runs=self.runs - 1)
        untold = (w for w in writers if not w.is_over and (w.declared == OLD or w.silent in range(db.switched)))
        waits = db.mark == NONE and rule("window") and any(untold)
        silent = any(w.silent is not None and not w.is_over for w in writers)
        refused = (redis.ready == OFF and rule("window.refused")) or (redis.on and silent and rule("window.again"))
        if self.runs == 0 or (db.locked and self.step in ("begin", "check", "page", "leave")):
            return
        if self.step == "begin" and db.declared == OFF:  # under the lock of the rows
            yield "", redis._replace(ready=OFF), db, end
        elif self.step == "begin" and db.declared != self.declared:
            if self.started and rule("declared_flush"):
                yield "", redis, db, end
            else:
                yield "", *declare(redis, db, self.declared), again
        elif self.step == "begin" and not waits:
            yield "", redis, db, self.to("requests")
        elif self.step == "requests":
            if db.requests:
                request = min(db.requests)
                yield "", doubt(redis, request[1], "request.everyone"), db, self.to("delete", request)
            else:
                yield "", redis, db, self.to("ground", ())
        elif self.step == "delete":
            yield "", redis, db._replace(requests=db.requests - {self.seen}), self.to("requests")
        elif self.step == "ground":
            living = {w.number: w for w in writers if not w.is_over}
            for number, _, grounded in redis.intents:
                w, after = living.get(abs(number)), self._replace(seen=(*self.seen, number))
                if number in self.seen or (w and not w.is_suspect and number > 0):
                    continue
                if w is None or not grounded:
                    yield "", ground(redis, number, over=w is None), db, after
                if w and w.step != "db late" and "young" not in w.faults:
                    yield "dropped", ground(redis, number, over=True), db, after
                return
            yield "", redis, db, self.to("check")
        elif self.step == "check" and waits and rule("window.lock"):
            yield "", redis, db, end
        elif self.step == "check":  # under the lock of the row
            if is_lost(redis, db) and (db.declared == self.declared or not rule("declared_flush.lock")):
                yield "", redis, db._replace(locked=True), self.to("generation", redis.run)
            else:
                yield "", redis, db, self.to("page")
        elif self.step in ("generation", "generation late") and refused:
            on = redis._replace(ready=None, on=True) if redis.ready == OFF else redis
            yield "", on, db._replace(locked=db.locked and self.step != "generation"), end
        elif self.step in ("generation", "generation late"):  # with the name of the server that was seen
            begun = begin_generation(redis, self.name, self.seen, self.declared)
            yield "", begun, db, self.to("note") if self.step == "generation" else end
            if self.can_die and self.step == "generation":
                yield "loses its lock", redis, db._replace(locked=False), self.to("generation late", self.seen)
        elif self.step == "note":
            noted = db._replace(mark=Mark(random=self.name), walk=self.name, walked=0, gentle=False)
            yield "", redis, noted._replace(locked=False), self.to("page")
            if self.can_die:
                yield "killed", redis, db._replace(locked=False), end
        elif self.step == "page":
            if db.declared != self.declared and rule("declared_walk"):
                yield "", redis, db, end
            elif db.walked <= len(db.owners):  # the last page is empty
                page = (db.walk, db.walked)
                moved = db if rule("position.done") else db._replace(walked=db.walked + 1)
                yield "", redis, moved, self.looks_at(page, db)
                if self.can_die:
                    yield "killed", redis, moved, end
            else:
                yield "", redis, db, end
        elif self.compares and self.step in ("unsure", "wrong"):
            doubted = doubt(redis, self.seen[1]) if self.step == "wrong" or rule("compared.unsure") else redis
            accused = db._replace(accused=db.accused or self.step == "wrong")
            yield "", doubted, accused, self._replace(step="leave", compares=None)
        elif self.compares:
            for step, compares in self.compares.steps(self.step, redis, db, self.declared):
                is_over = step == "right"
                yield (
                    "",
                    redis,
                    db,
                    self._replace(step="leave" if is_over else step, compares=None if is_over else compares),
                )
        elif self.step == "compare":  # only what is stored
            row = db.owners[self.seen[1]]
            differs = row.stored != row.counted(self.declared)
            yield "", redis, db, self.to("doubt" if differs else "leave", self.seen)
        elif self.step == "doubt":
            yield "", doubt(redis, self.seen[1]), db, self.to("leave", self.seen)
        elif self.step == "leave" and not rule("position.done"):
            yield "", redis, db, self.to("page")
        elif self.step == "leave":  # another healer may have moved the walk, or begun the next
            is_there = (db.walk, db.walked) == self.seen or not rule("position")
            yield (
                "",
                redis,
                db._replace(walked=self.seen[1] + 1) if is_there else db,
                self.to("page") if is_there else end,
            )


class Switch(NamedTuple):
    """Somebody switches counting off, in the database, where no declaration is in force then, and in Redis; and on
    again."""

    step: str = "off"

    def moves(self, redis: Redis, db: Database, writers: tuple) -> Iterator:
        if db.locked:
            return
        if self.step == "off":
            off = db._replace(declared=OFF, mark=NONE)
            yield "", redis, off, Switch("tell")
            yield "killed", redis, off, Switch("on")
        elif self.step == "tell":
            yield "", redis._replace(ready=OFF), db, Switch("on")
        elif self.step == "on":
            yield "", *switched_on(redis, db), Switch("end")


KEYS_LOST: dict[str, Callable[[Redis], Redis]] = {
    "empty": lambda r: Redis(tuple(Owner() for _ in r.owners), "", None, -1, r.run, mark=NONE),
    "state": lambda r: r._replace(server=-1, batch="", mark=NONE),
    "ready": lambda r: r._replace(ready=None),
    "totals": lambda r: of_all(r, total=None, flagged=False),
}
UNNOTICED: dict[str, Callable[[Redis, Database], tuple[Redis, Database]]] = {
    "pending": lambda r, db: (of_all(r, pending=False), db),
    "flushing": lambda r, db: (of_all(r, flushing=False), db),
    "in_flight": lambda r, db: (of_all(r, in_flight=0)._replace(everyone=0), db),
    "raw SQL": lambda r, db: (r, change(db, 0, rows=db.owners[0].rows + 1)),
}


class Fault(NamedTuple):
    """Happens once. Redis comes back as it was at an earlier moment, under another name (``back``) or under none
    (``rollback``), or loses a key, or all (``empty``). The database goes back (``db back``). What nobody notices, such
    as a row behind the app's back (``raw SQL``), is found by the next gentle walk."""

    what: str
    step: str = "armed"
    seen: Any = None

    def moves(self, redis: Redis, db: Database, writers: tuple) -> Iterator:
        fired, seen = Fault(self.what, "fired"), self.seen
        if self.step == "fired" or (self.what == "db back" and db.locked):
            return
        if self.what in KEYS_LOST:
            yield "", KEYS_LOST[self.what](redis), db, fired
        elif self.what in UNNOTICED and self.step == "armed":
            yield "happens", *UNNOTICED[self.what](redis, db), Fault(self.what, "walk")
        elif self.what in UNNOTICED:
            if redis.intents or redis.batch or any(isinstance(owner.total, str) for owner in redis.owners):
                return  # who is still under way may hide it from this walk
            yield "", redis, db._replace(walk=self.what, walked=0, gentle=True), fired
        elif self.step == "armed":
            yield "copied", redis, db, Fault(self.what, "copied", db if self.what == "db back" else redis)
        elif self.what == "back":
            yield "", seen._replace(run=redis.run + 1), db, fired
        elif self.what == "rollback":  # to before the last flush: a later state can't be told apart
            if not agree(seen, db.mark):
                yield "", seen, db, fired
        elif self.what == "db back":  # commits that it loses since the last flush are a known limit
            same = [row.rows for row in seen.owners] == [row.rows for row in db.owners]
            if same or not agree(redis, seen.mark):
                yield "", redis, seen, fired


# ---------------------------------------------------------------------------------------------------------- exploring
class Explored(Space):
    """The states of one scenario."""

    def __init__(self, start: World):
        super().__init__(*start[:2], *start.processes)
        self.note, self.is_unnoticed = map(cache, (self._note, self._is_unnoticed))
        self.at_first = start.db.owners
        self.writers, self.readers, self.healers = (
            [i for i, p in enumerate(start.processes, 2) if type(p) is kind] for kind in (Writer, Reader, Healer)
        )

    def about(self, state: State, i: int) -> State:
        """A healer asks who lives."""
        return tuple(state[w] for w in self.writers) if i in self.healers else ()

    def seen(self, before: State, after: State) -> State:
        """Readers note what they may return."""
        unnoticed = self.is_unnoticed(*before[:2]) or self.is_unnoticed(*after[:2])
        for i in self.readers:
            writers = tuple(before[w] for w in self.writers), tuple(after[w] for w in self.writers)
            after = (*after[:i], self.note(after[i], unnoticed, *writers), *after[i + 1 :])
        return after

    def _note(self, reader: int, unnoticed: bool, *moments: State) -> int:
        mine, allowed = self.things[reader], set()
        for moment in moments:
            values = {self.at_first[mine.owner].counted(mine.declared)}
            for writer in map(self.things.__getitem__, moment):
                if writer.step.startswith(("confirm", "done", "killed")):
                    after = {value + writer.delta(mine.owner, mine.declared) for value in values}
                    values = after if writer.in_flight or writer.step == "done" else values | after
            allowed |= values
        return self.number(mine.observe(frozenset(allowed), unnoticed))

    def _is_unnoticed(self, redis: int, db: int) -> bool:
        """Whether a fault was not noticed yet."""
        there, stored = self.things[redis], self.things[db]
        return bool(is_lost(there, stored) or stored.requests or there.flying != there.by_intents)


def run(process: Any, redis: Redis, db: Database) -> tuple[Redis, Database]:
    """Run a process to its end, alone and without a fault."""
    while True:
        step = next(process.moves(redis, db, ()), None)
        if step is None:
            return redis, db
        _, redis, db, process = step


def wrong_end(redis: Redis, db: Database, quiet: bool, right: bool) -> str:
    redis, db = run(Switch("on"), redis, db) if db.declared == OFF else (redis, db)
    for i in range(3):
        redis, db = run(Healer(f"last{i}"), redis, db)
        redis, db = run(Flusher(2, f"last{i}"), redis, db)
    if quiet and redis.generation != "1":
        return "END: a generation for nothing hides what went wrong"
    if right and db.accused:
        return "ALARM: nobody's count is wrong"
    for owner, (rows, stored, _) in enumerate(db.owners):
        total = redis.owners[owner].total
        if stored != rows or (isinstance(total, int) and total != rows):
            return f"END: rows {rows}, stored {stored}, cached {total} of owner {owner}"
        if isinstance(total, int) and redis.owners[owner].flagged:
            return "END: a flag is left"
    again = announce(redis, 0, ())
    if again is None or redis.ready != db.declared or redis.intents or db.requests or redis.batch:
        return "END: something is left"
    if any(take_out(again, 0, "")[0].flying):
        return "END: somebody is in flight for ever"
    return ""


def explore(start: World, quiet: bool, right: bool, drop: Iterable[str] = ()) -> Found:
    """Explore up to the first violation, a shortest one. ``quiet``: nothing may begin a generation. ``right``: nobody's
    count is wrong."""
    space = Explored(start)

    @cache
    def end(redis: int, db: int) -> str:
        return wrong_end(space.things[redis], space.things[db], quiet, right)

    def wrong(state: State, final: bool) -> str:
        if any(space.things[state[i]].wrong for i in space.readers):
            return "READ: a reader returned something wrong"
        if right and space.things[state[1]].accused:
            return "ALARM: nobody's count is wrong"
        return end(*state[:2]) if final else ""

    def world(state: State) -> World:
        redis, db, *processes = map(space.things.__getitem__, state)
        return World(redis, db, tuple(processes))

    def show(state: State, step: tuple) -> tuple[Move, World]:
        i, label, following = step
        return Move(i - 2, space.things[state[i]].step, label), world(following)

    found = search(space.start, space.successors, wrong, show, drop)
    return found._replace(history=((None, start), *found.history))


def lines(found: Found) -> Iterator[str]:
    """Each move of a history, and what it changes, in the words of the page."""
    (_, before), *moves = found.history
    names = names_of(before.processes)
    for move, after in moves:
        old, new = told(before), told(after)
        changes = ", ".join(f"{name} {value}" for name, value in new.items() if old.get(name) != value)
        read = before.processes[move.process].seen if move.step == "return" else ""
        step = {"db": "COMMIT"}.get(move.step, move.step)
        yield f"{names[move.process]:6s} {f'{step} {move.label}{read}':30s} {changes}".rstrip()
        before = after


def names_of(processes: tuple) -> list[str]:
    """W1 and W2; W if there is only one."""
    kinds = [type(process).__name__ for process in processes]
    short = [kind if kind in ("Fault", "Switch") else kind[0] for kind in kinds]
    return [f"{name}{short[: i + 1].count(name) if short.count(name) > 1 else ''}" for i, name in enumerate(short)]


def told(world: World) -> dict[str, Any]:
    """The state by names; ``0!`` is a flagged total."""
    redis, db, _ = world
    things = redis._asdict() | {f"row.{name}": value for name, value in db._asdict().items()}
    things["intents"] = " ".join(f"{i.number}{' (grounded)' * i.grounded}" for i in redis.intents) or "none"
    for i, (owner, row) in enumerate(zip(things.pop("owners"), things.pop("row.owners"), strict=True)):
        both = owner._asdict() | row._asdict()
        both["total"] = f"{owner.total}{'!' * both.pop('flagged')}"
        if row.old_rows == row.rows:
            del both["old_rows"]
        things |= {f"{name}{i or ''}": value for name, value in both.items()}
    return {name: "/".join(map(str, value)) if type(value) is Mark else value for name, value in things.items()}
