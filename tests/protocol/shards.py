"""A change of SHARDS as a model, explored exhaustively.

The old and the new shards have different keys, perhaps on different servers, so no script reaches both. A flusher with
another number than that of the shards' rows retires the old shards, and moves their intents to its own. It may be
killed between any two of these steps, and be started again with either number.

  READ   a read returns the number of rows at some moment between its start and its end
  END    when everything has stopped, a flusher with either number makes the counter equal to the rows

    python -m tests.protocol.shards                  # every scenario: 'bad 0' on each line
    python -m tests.protocol.shards --drop retire    # without one rule: the shortest history that breaks

There is one shard of each number, with one owner: what ``model.py`` explores is one number here.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .search import Found, command_line, interleavings, misread, rule, run, search, show

RULES = {  # with the scenario that soonest shows what breaks without it
    "retire": "writer, flusher, reader",
    "register": "writer, flusher, reader",
    "highest": "new writer, flusher, reader",
    "reuse": "taken back",
    "alone": "taken back",
}
OLD, NEW = 0, 1  # numbers of shards


# ---------------------------------------------------------------------------------------------------------- the state
class Intent(NamedTuple):
    part: int
    epoch: int = 0  # in which it was announced; 0: Redis was not ready
    grounded: bool = False


class Shard(NamedTuple):
    """In Redis."""

    epoch: int = 0
    ready: str = ""  # "?" during a recovery, "!" after it, or "retired"
    value: int = 0  # stored count, pending and total
    intents: tuple[Intent, ...] = ()
    dirty: bool = False
    lease: str = ""

    @property
    def retired(self) -> bool:
        return self.ready == "retired"

    @property
    def in_flight(self) -> bool:
        return any(not intent.grounded for intent in self.intents)

    def with_intent(self, intent: Intent) -> "Shard":
        return self._replace(intents=(*self.without(intent.part).intents, intent))

    def without(self, part: int) -> "Shard":
        return self._replace(intents=tuple(intent for intent in self.intents if intent.part != part))


class Row(NamedTuple):
    """In the database."""

    key: int
    epoch: int = 0
    is_new: bool = True  # no epoch has begun


class World(NamedTuple):
    shards: tuple[Shard, Shard]
    stored: tuple[Row | None, Row | None]
    keys: int = 1
    lock: int = 0  # the flusher that has it
    requested: bool = False  # a recount, in the database
    rows: int = 1

    def shard(self, number: int, **fields: Any) -> "World":
        shards = [*self.shards]
        shards[number] = shards[number]._replace(**fields)
        return self._replace(shards=(shards[0], shards[1]))

    def store(self, number: int, row: Row | None) -> "World":
        stored = [*self.stored]
        stored[number] = row
        return self._replace(stored=(stored[0], stored[1]))

    def add_row(self, number: int, epoch: int) -> "World":
        if self.stored[number]:
            return self
        return self.store(number, Row(self.keys, epoch))._replace(keys=self.keys + 1)

    @property
    def highest(self) -> int:
        return max((row.epoch for row in self.stored if row), default=0)

    def known(self, number: int) -> int:
        """The epoch that a process with this number learns from the database."""
        row = self.stored[number]
        return (row.epoch if row else 0) or (self.highest if rule("highest") else 0)


# ------------------------------------------------------------- the processes: a step yields (label, world, the process)
class Writer(NamedTuple):
    """Its call returns at the COMMIT, if its intent cannot have been grounded before, else after it is confirmed."""

    part: int
    number: int = OLD
    kill: bool = False
    delta: int = 1
    step: str = "ask"
    epoch: int = 0
    committed: bool = False
    returned: bool = False
    lives: bool = True

    def moves(self, w: World, dead: frozenset) -> Iterator:
        shard = w.shards[self.number]
        if self.kill and self.committed and self.step != "done" and self.lives:
            yield "killed", w, self._replace(step="killed", lives=False)
        mine = next((intent for intent in shard.intents if intent.part == self.part), None)
        if self.step == "ask":
            yield "", w, self._replace(step="announce", epoch=w.known(self.number))
        elif self.step == "announce" and (shard.retired or shard.epoch < self.epoch):
            w = w if shard.retired else w.shard(self.number, ready="")
            w = w._replace(rows=w.rows + self.delta, requested=True)
            yield "requests a recount", w, self._replace(step="done", committed=True, returned=True)
        elif self.step == "announce":
            intent = Intent(self.part, shard.epoch if shard.ready == "!" else 0)
            yield "", w.shard(self.number, intents=(*shard.intents, intent)), self._replace(step="COMMIT")
        elif self.step == "COMMIT":
            slow = any(i.part == self.part and i.grounded for each in w.shards for i in each.intents)
            following = self._replace(step="confirm", committed=True, returned=not slow)
            yield "", w._replace(rows=w.rows + self.delta), following
        elif self.step == "confirm" and shard.retired:
            yield "refused", w, self._replace(step="request")
        elif self.step == "confirm":
            done = self._replace(step="done", returned=True)
            w = w.shard(self.number, intents=shard.without(self.part).intents, lease="")
            if shard.ready == "!" and mine == Intent(self.part, shard.epoch):
                yield "", w.shard(self.number, value=shard.value + self.delta), done
            else:
                yield "", w.shard(self.number, dirty=True), done
        elif self.step == "request":
            yield "", w._replace(requested=True), self._replace(step="done", returned=True)


class Reader(NamedTuple):
    number: int = NEW
    step: str = "start"
    allowed: frozenset = frozenset()
    wrong: int | None = None

    def moves(self, w: World, dead: frozenset) -> Iterator:
        if self.step == "start":
            yield "", w, self._replace(step="get")
        elif self.step == "get":
            shard = w.shards[self.number]
            if not shard.retired and shard.epoch < w.known(self.number):
                yield "", w.shard(self.number, ready=""), self._replace(step="rows")
            elif shard.ready == "!" and not shard.dirty and not shard.in_flight:
                # What is requested may be missing until the next heal.
                yield "", w, self.returned(w.rows if w.requested else shard.value)
            else:
                yield "", w, self._replace(step="rows")
        elif self.step == "rows":
            yield "", w, self.returned(w.rows)

    def returned(self, value: int) -> "Reader":
        return self._replace(step="done", allowed=frozenset(), wrong=None if value in self.allowed else value)


class Flusher(NamedTuple):
    name: int
    number: int = NEW
    runs: int = 1
    kill: bool = False  # it is started again
    suspects: bool = False  # that the processes of all intents are dead
    has_run: bool = False
    step: str = "find"
    seen: Any = None

    def moves(self, w: World, dead: frozenset) -> Iterator:
        if not self.runs or (w.lock not in (0, self.name) and self.step in ("lock" if rule("alone") else "", "epoch")):
            return
        for label, moved, step, *seen in getattr(self, f"_{self.step}")(w, dead):
            end = {"runs": self.runs - 1, "step": "find", "seen": None, "has_run": True}
            going_on = {"step": step, "seen": seen[0] if seen else None}
            if step == "run ends" and moved.lock == self.name:
                moved = moved._replace(lock=0)
            yield label, moved, self._replace(**(end if step == "run ends" else going_on))
        if self.kill and self.step != "find":
            freed = w._replace(lock=0) if w.lock == self.name else w
            yield "killed", freed, self._replace(runs=self.runs - 1, step="find", seen=None, has_run=False, kill=False)

    @property
    def other(self) -> int:
        return 1 - self.number

    # ------------------------------------------------------------------------------------------------- another number
    def _find(self, w: World, dead: frozenset) -> Iterator:
        """Are others in force? The first run of a process changes that."""
        if w.stored[self.other] is None:
            yield "", w, "requests"
        else:
            yield "", w, "run ends" if self.has_run else "add"

    def _add(self, w: World, dead: frozenset) -> Iterator:
        yield "", w.add_row(self.number, w.highest if rule("highest") else 0), "lock"

    def _lock(self, w: World, dead: frozenset) -> Iterator:
        """Without the lock, it goes by the rows that it has just read."""
        if not rule("alone"):
            yield "", w, "reuse", w.stored[self.other]
        elif w.stored[self.other] and w.stored[self.number]:
            yield "", w._replace(lock=self.name), "reuse", w.stored[self.other]
        else:
            yield "", w, "find"

    def _reuse(self, w: World, dead: frozenset) -> Iterator:
        shard = w.shards[self.number]
        if shard.retired and rule("reuse"):
            w = w.shard(self.number, ready="")
        yield "", w, "retire", self.seen

    def _retire(self, w: World, dead: frozenset) -> Iterator:
        if rule("retire"):
            w = w.shard(self.other, **Shard(ready="retired", intents=w.shards[self.other].intents)._asdict())
        yield "", w, "intents", self.seen

    def _intents(self, w: World, dead: frozenset) -> Iterator:
        yield "", w, "register", (self.seen, w.shards[self.other].intents)

    def _register(self, w: World, dead: frozenset) -> Iterator:
        row, intents = self.seen
        shard = w.shards[self.number]
        if intents and shard.retired:
            yield "refused", w, "run ends"
            return
        for intent in intents if rule("register") else ():
            shard = shard.with_intent(Intent(intent.part, shard.epoch if shard.ready == "!" else 0))
        yield "", w.shard(self.number, **shard._asdict()), "drop", row

    def _drop(self, w: World, dead: frozenset) -> Iterator:
        yield "", w.shard(self.other, intents=()), "delete", self.seen

    def _delete(self, w: World, dead: frozenset) -> Iterator:
        if w.stored[self.other] and self.seen and w.stored[self.other].key == self.seen.key:
            w = w.store(self.other, None)
        yield "", w._replace(lock=0) if w.lock == self.name else w, "requests"

    # -------------------------------------------------------------------------------------------------------- a heal
    def _requests(self, w: World, dead: frozenset) -> Iterator:
        if w.shards[self.number].retired:
            yield "refused", w, "run ends"
        elif w.requested:
            yield "", w.shard(self.number, dirty=True, lease="")._replace(requested=False), "epoch"
        else:
            yield "", w, "epoch"

    def _epoch(self, w: World, dead: frozenset) -> Iterator:
        shard, row = w.shards[self.number], w.stored[self.number]
        if shard.retired:
            yield "refused", w, "run ends"
        elif row and not row.is_new and shard.epoch == row.epoch and shard.ready:
            yield "", w, "ground"
        else:
            w = w.add_row(self.number, 0)
            yield "", w._replace(lock=self.name), "recover", max(w.highest, shard.epoch) + 1

    def _recover(self, w: World, dead: frozenset) -> Iterator:
        if w.shards[self.number].retired:
            yield "refused", w, "run ends"
        else:
            yield "", w.shard(self.number, epoch=self.seen, ready="?"), "note", self.seen

    def _note(self, w: World, dead: frozenset) -> Iterator:
        if row := w.stored[self.number]:
            w = w.store(self.number, Row(row.key, self.seen, False))
        yield "", w._replace(lock=0), "ground"

    def _ground(self, w: World, dead: frozenset) -> Iterator:
        shard = w.shards[self.number]
        if shard.retired:
            yield "refused", w, "run ends"
            return
        for intent in shard.intents:
            if intent.part in dead:
                shard = shard.without(intent.part)._replace(dirty=True, lease="")
            elif self.suspects and not intent.grounded:
                shard = shard.with_intent(Intent(intent.part, 0, True))._replace(dirty=True, lease="")
        yield "", w.shard(self.number, **shard._asdict()), "look"

    def _look(self, w: World, dead: frozenset) -> Iterator:
        shard = w.shards[self.number]
        if shard.retired or (shard.ready == "!" and not shard.dirty):
            yield "", w, "run ends"
        else:
            yield "", w.shard(self.number, lease=f"{self.name}"), "rows", shard.epoch

    def _rows(self, w: World, dead: frozenset) -> Iterator:
        yield "", w, "fix", (self.seen, w.rows)

    def _fix(self, w: World, dead: frozenset) -> Iterator:
        """And complete."""
        shard, (epoch, rows) = w.shards[self.number], self.seen
        if shard.epoch == epoch:
            if shard.lease == f"{self.name}" and not shard.in_flight:
                shard = shard._replace(value=rows, dirty=False)
            else:  # left to the next run
                shard = shard._replace(dirty=True)
            shard = shard._replace(ready=shard.ready and "!", lease="")
        yield "", w.shard(self.number, **shard._asdict()), "run ends"


# -------------------------------------------------------------------------------------------------------- exploration
def wrong_end(w: World, processes: Iterable[Any], number: int) -> str:
    dead = frozenset(p.part for p in processes if hasattr(p, "part"))
    w = run(Flusher(99, number, 3), w, dead)
    shard = w.shards[number]
    right = shard.ready == "!" and not shard.dirty and shard.value == w.rows and not shard.intents
    right = right and w.stored[1 - number] is None
    return "" if right else f"END: rows {w.rows}, counter {shard.value}, ready {shard.ready!r}, number {number}"


def wrong(state: tuple[World, tuple], final: bool) -> str:
    world, processes = state
    ends = (wrong_end(world, processes, number) for number in (OLD, NEW) if final)
    return misread(processes) or next(filter(None, ends), "")


def explore(scenario: str, drop: Iterable[str] = (), first_only: bool = False) -> Found:
    start = World((Shard(1, "!", 1), Shard()), (Row(0, 1, False), None)), (SCENARIOS | LARGE)[scenario]
    return search(start, interleavings, wrong, show, first_only, drop)


W, R, F = Writer, Reader, Flusher

SCENARIOS: dict[str, tuple] = {
    "writer, flusher, reader": (W(1), F(1), R()),
    "writer killed, flusher, reader": (W(1, kill=True), F(1), R()),
    "writer, flusher under suspicion, reader": (W(1), F(1, suspects=True), R()),
    "writer, flusher killed, reader": (W(1), F(1, runs=2, kill=True), R()),
    "new writer, flusher, reader": (W(1, NEW), F(1), R(OLD)),
    "writer, new writer, flusher": (W(1), W(2, NEW), F(1)),
    "writer, 2 flushers": (W(1), F(1), F(2)),
    "taken back": (F(1, kill=True, runs=2), F(2, OLD)),
    "writer, taken back": (W(1, kill=True), F(1, kill=True), F(2, OLD)),
    "writer, taken back, reader": (W(1), F(1, kill=True), F(2, OLD), R(OLD)),
}

LARGE: dict[str, tuple] = {  # for the command line only
    "writer, taken back under suspicion by 2": (W(1), F(1, kill=True), F(2, OLD, suspects=True), F(3, OLD)),
}

if __name__ == "__main__":
    command_line(__doc__, RULES, SCENARIOS | LARGE, explore)
