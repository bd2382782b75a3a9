"""How processes agree on the database that a shard's keys belong to, as a model, explored exhaustively.

The keys of a shard contain the id of its database. ``manage.py flush``, a new dump in the place of the old one, or a
database that is made again change the id, while processes still know the one from before. Redis remembers the
database that came last. Who enters with another one leaves the keys of the last one for good.

The settings of the site may also name another Redis, and then the first one again; or the address leads a writer to
another one, which is new. Redis cannot know that, but the database knows the last epoch. While some processes use one
Redis and some the other, nobody promises READ.

  READ   a read returns the number of rows at some moment between its start and its end
  END    when everything has stopped, two runs of a healer make the counter equal to the rows, and leave nothing

    python -m tests.protocol.databases                  # every scenario: 'bad 0' on each line
    python -m tests.protocol.databases --drop leave     # without one rule: the shortest history that breaks

A space stands for the keys of one database in one Redis, and has one owner: what ``model.py`` explores is one number
here. The change of the database is a moment; its rows stay, so that what a process did with the old keys can be
compared with them.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .search import Found, command_line, interleavings, misread, rule, run, search, show

RULES = {  # with the scenario that soonest shows what breaks without it
    "leave": "writer, healer, reader",
    "announce": "writer, healer, reader",
    "confirm": "writer, healer under suspicion, reader",
    "along": "writer, healer, reader",
    "aloft": "writer, healer, reader",
    "last": "writer, healer, reader",
    "renew": "writer, healer, there and back",
    "fix": "writer, healer, reader",
    "elsewhere": "writer, healer, another Redis and back",
    "astray": "writer astray, healer",
}
MOVED = -1  # in place of the epoch of an intent
IDS = 8  # of databases; the keys in the other Redis come after them


# ---------------------------------------------------------------------------------------------------------- the state
class Intent(NamedTuple):
    part: int
    epoch: int  # in which it was announced; 0: while Redis was not ready
    grounded: bool = False


class Space(NamedTuple):
    """The keys of one database."""

    left: bool = False
    ready: bool = False
    epoch: int = 0
    value: int = 0  # stored count, pending and total
    intents: tuple[Intent, ...] = ()
    dirty: bool = False
    lease: str = ""

    @property
    def in_flight(self) -> bool:
        return any(not i.grounded and (i.epoch != MOVED or rule("aloft")) for i in self.intents)


class World(NamedTuple):
    spaces: tuple[Space, ...]
    last: tuple[int, int]  # the space that was entered last, of each Redis
    id: int  # of the database
    new: int  # an id that nobody has had
    epoch: int = 1  # that the database knows
    redis: int = 0  # in the site's settings
    requested: bool = False  # a recount, in the database
    rows: int = 1

    @property
    def here(self) -> int:
        """The space that who looks up now will use."""
        return self.redis * IDS + self.id

    def change(self, id: int, **fields: Any) -> "World":
        space = self.spaces[id]._replace(**fields)
        return self._replace(spaces=(*self.spaces[:id], space, *self.spaces[id + 1 :]))


# -------------------------------------------------------------------------------------------------------- the scripts
def enter(w: World, id: int, epoch: int) -> tuple[World, bool]:
    """Also whether these keys may be used."""
    if w.spaces[id].left and rule("last"):
        return w, False
    redis = id // IDS
    if (last := w.last[redis]) != id:
        old, new = w.spaces[last], w.spaces[id]
        if rule("along"):
            moved = tuple(Intent(intent.part, MOVED) for intent in old.intents)
            w = w.change(last, intents=()).change(id, intents=(*new.intents, *moved))
        if rule("leave"):
            w = w.change(last, left=True, ready=False)
        w = w.change(id, left=False)._replace(last=(id, w.last[1]) if redis == 0 else (w.last[0], id))
    return w.change(id, ready=False) if is_behind(w, id, epoch) and rule("elsewhere") else w, True


def is_behind(w: World, id: int, epoch: int) -> bool:
    return w.spaces[id].epoch < epoch


def announce(w: World, id: int, part: int) -> World | None:
    space = w.spaces[id]
    if space.left and rule("announce"):
        return None
    return w.change(id, intents=(*space.intents, Intent(part, space.epoch if space.ready else 0)))


def confirm(w: World, id: int, part: int, delta: int | None) -> World | None:
    """None for a delta: unknown."""
    space = w.spaces[id]
    if space.left and rule("confirm"):
        return None
    w = w.change(id, intents=tuple(intent for intent in space.intents if intent.part != part), lease="")
    if delta is not None and space.ready and Intent(part, space.epoch) in space.intents:
        return w.change(id, value=space.value + delta)
    return w.change(id, dirty=True)


def ground(w: World, id: int, part: int, drop: bool) -> World:
    space = w.spaces[id]
    rest = tuple(intent for intent in space.intents if intent.part != part)
    kept = () if drop else (Intent(part, 0, grounded=True),)
    return w.change(id, intents=(*rest, *kept), dirty=True, lease="")


# ------------------------------------------------------------- the processes: a step yields (label, world, the process)
def look_up(p: Any, w: World, then: str) -> Iterator:
    """The steps by which a process finds its keys."""
    if p.step == "ask":
        yield "", w, p._replace(step="enter", id=w.here, epoch=w.epoch)
    elif p.step == "enter":
        w, entered = enter(w, p.id, p.epoch)
        yield "", w, p._replace(step=then if entered else "ask again")
    elif p.step == "ask again":
        if w.here == p.id and rule("renew"):
            w = w._replace(id=w.new, new=w.new + 1)
        yield "", w, p._replace(step="enter", id=w.here, epoch=w.epoch)


LOOKS = {"ask", "enter", "ask again"}


class Writer(NamedTuple):
    """Its call returns at the COMMIT, if its intent cannot have been grounded before, else after it is confirmed."""

    part: int
    delta: int
    kill: bool = False
    may_stray: bool = False
    step: str = "ask"
    id: int = 0
    epoch: int = 0
    strayed: bool = False
    committed: bool = False
    returned: bool = False
    lives: bool = True

    def moves(self, w: World, dead: frozenset) -> Iterator:
        if self.step in LOOKS:
            yield from look_up(self, w, "confirm again" if self.committed else "announce")
        elif self.step == "announce" and self.is_behind(w):
            w = w._replace(rows=w.rows + self.delta, requested=True)
            yield "requests a recount", w, self._replace(step="confirm again", committed=True)
        elif self.step == "announce":
            announced = announce(w, self.id, self.part)
            following = self._replace(step="ask" if announced is None else "COMMIT")
            yield "refused" if announced is None else "", announced or w, following
            if self.may_stray and not self.strayed:
                yield "astray", w, self._replace(id=(self.id + IDS) % (2 * IDS), strayed=True)
        elif self.step == "COMMIT":
            if w.rows + self.delta >= 0:
                slow = any(i.part == self.part and i.grounded for s in w.spaces for i in s.intents)
                following = self._replace(step="confirm", committed=True, returned=not slow)
                yield "", w._replace(rows=w.rows + self.delta), following
        elif self.step in ("confirm", "confirm again"):
            done = confirm(w, self.id, self.part, self.delta if self.step == "confirm" else None)
            following = self._replace(step="ask") if done is None else self._replace(step="done", returned=True)
            yield "refused" if done is None else "", done or w, following
        if self.kill and self.committed and self.step != "done" and self.lives:
            yield "killed", w, self._replace(step="killed", lives=False)

    def is_behind(self, w: World) -> bool:
        """Whether this process knows that it is. Who has strayed finds out only if Redis is not ready."""
        if self.strayed:
            return is_behind(w, self.id, self.epoch) and not w.spaces[self.id].ready and rule("astray")
        return is_behind(w, self.id, self.epoch) and rule("elsewhere")


class Reader(NamedTuple):
    step: str = "ask"
    id: int = 0
    epoch: int = 0
    allowed: frozenset = frozenset()
    wrong: int | None = None

    def moves(self, w: World, dead: frozenset) -> Iterator:
        if self.step in LOOKS:
            yield from look_up(self, w, "start")
        elif self.step == "start":  # perhaps long after the keys were found
            yield "", w, self._replace(step="get")
        elif self.step == "get":
            space = w.spaces[self.id]
            if space.ready and not space.dirty and not space.in_flight:
                yield "", w, self.returned(space.value)
            else:
                yield "", w, self._replace(step="rows")
        elif self.step == "rows":
            yield "", w, self.returned(w.rows)

    def returned(self, value: int) -> "Reader":
        return Reader("done", wrong=None if value in self.allowed else value)


class Healer(NamedTuple):
    """``runs`` of a healer; each asks for the id."""

    runs: int
    name: str
    step: str = "ask"
    id: int = 0
    epoch: int = 0
    seen: int = 0
    suspects: bool = False  # that the processes of all intents are dead

    def moves(self, w: World, dead: frozenset) -> Iterator:
        end = self._replace(runs=self.runs - 1, step="ask")
        if not self.runs:
            return
        if self.step in LOOKS:
            yield from look_up(self, w, "doubt")
            return
        space = w.spaces[self.id]
        refused = space.left and rule("fix")
        if self.step == "doubt":
            if w.requested:
                w = w.change(self.id, dirty=True, lease="")._replace(requested=False)
            if not space.left and space.epoch != w.epoch:
                epoch = max(space.epoch, w.epoch) + 1
                w = w.change(self.id, epoch=epoch, ready=False)._replace(epoch=epoch)
            yield "", w, self._replace(step="ground")
        elif self.step == "ground":
            for intent in space.intents:
                if intent.part in dead:
                    w = ground(w, self.id, intent.part, drop=True)
                elif self.suspects and not intent.grounded:
                    w = ground(w, self.id, intent.part, drop=False)
            yield "", w, self._replace(step="look")
        elif self.step == "look":
            if refused:
                yield "refused", w, end
            elif space.ready and not space.dirty:
                yield "", w, end
            else:
                yield "", w.change(self.id, lease=self.name), self._replace(step="rows")
        elif self.step == "rows":
            yield "", w, self._replace(step="fix", seen=w.rows)
        elif self.step == "fix":
            if refused:
                yield "refused", w, end
            elif space.lease != self.name or space.in_flight:  # left to the next run
                yield "refused", w.change(self.id, dirty=True, ready=True, lease=""), end
            else:
                yield "", w.change(self.id, value=self.seen, dirty=False, ready=True, lease=""), end


class Change(NamedTuple):
    """The database gets these ids, one after another."""

    ids: tuple[int, ...] = (1,)
    step: str = "change"

    def moves(self, w: World, dead: frozenset) -> Iterator:
        if self.ids:
            yield "", w._replace(id=self.ids[0], epoch=0), Change(self.ids[1:])


class Move(NamedTuple):
    """The settings name another Redis, and then the first one again."""

    to: tuple[int, ...] = (1, 0)
    step: str = "move"

    def moves(self, w: World, dead: frozenset) -> Iterator:
        if self.to:
            yield "", w._replace(redis=self.to[0]), Move(self.to[1:])


# -------------------------------------------------------------------------------------------------------- exploration
def wrong_end(w: World, processes: Iterable[Any]) -> str:
    dead = frozenset(p.part for p in processes if type(p) is Writer)
    w = run(Healer(3, "last"), w, dead)
    space = w.spaces[w.here]
    right = space.ready and not space.dirty and space.value == w.rows and not space.intents
    right = right and w.last[w.redis] == w.here
    return "" if right else f"END: rows {w.rows}, counter {space.value}, ready {space.ready}"


def wrong(state: tuple[World, tuple], final: bool) -> str:
    world, processes = state
    return misread(processes) or (wrong_end(world, processes) if final else "")


def explore(scenario: str, drop: Iterable[str] = (), first_only: bool = False) -> Found:
    spaces = Space(ready=True, epoch=1, value=1), *[Space()] * (2 * IDS - 1)
    start = World(spaces, last=(0, IDS), id=0, new=2), (SCENARIOS | LARGE)[scenario]
    return search(start, interleavings, wrong, show, first_only, drop)


W, R, H = Writer, Reader, Healer
THERE_AND_BACK = Change((1, 0))

SCENARIOS: dict[str, tuple] = {
    "writer, healer, reader": (W(1, 1), H(1, "h"), R(), Change()),
    "writer, healer under suspicion, reader": (W(1, 1), H(1, "h", suspects=True), R(), Change()),
    "2 writers killed, healer": (W(1, 1, True), W(2, -1, True), H(1, "h"), Change()),
    "writer killed, 2 healers": (W(1, 1, True), H(1, "h"), H(1, "i"), Change()),
    "writer, healer, 2 readers": (W(1, 1), H(1, "h"), R(), R(), Change()),
    "writer, healer, there and back": (W(1, 1), H(2, "h"), THERE_AND_BACK),
    "writer, healer, another Redis and back": (W(1, 1), H(1, "h"), Move()),
    "writer astray, healer": (W(1, 1, may_stray=True), H(1, "h")),
    "2 writers astray and killed, healer": (W(1, 1, True, may_stray=True), W(2, -1, True, may_stray=True), H(1, "h")),
    "writer astray, healer, another Redis and back": (W(1, 1, may_stray=True), H(1, "h"), Move()),
    "2 writers killed, another Redis and back": (W(1, 1, True), W(2, 1, True), Move()),
    "writer killed, healer, reader, there and back": (W(1, 1, True), H(1, "h"), R(), THERE_AND_BACK),
}

LARGE: dict[str, tuple] = {  # for the command line only
    "2 writers, healer, reader": (W(1, 1), W(2, 1), H(1, "h"), R(), Change()),
    "writer, healer, reader, there and back": (W(1, 1), H(2, "h"), R(), THERE_AND_BACK),
}


if __name__ == "__main__":
    command_line(__doc__, RULES, SCENARIOS | LARGE, explore)
