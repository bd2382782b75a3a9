"""What tests/protocol/model.py explores, and which of it shows what breaks without a rule.

python -m tests.protocol.scenarios                 # every scenario, in a minute: 'bad 0' on each line
python -m tests.protocol.scenarios --deep          # larger ones, in several minutes
python -m tests.protocol.scenarios --drop lease    # without one rule: the shortest history that breaks
"""

import itertools
from collections.abc import Iterable
from typing import Any

from . import model
from .model import NEW, NONE, OLD, Database, Fault, Flusher, Healer, Owner, Reader, Redis, Row, World, Writer, of_all
from .search import Found, command_line


def W(number: int, delta: int | tuple[int, ...], *faults: str, **more: Any) -> Writer:
    """A writer: the delta of the only owner, or of each."""
    return Writer(number, delta if isinstance(delta, tuple) else (delta,), frozenset(faults), **more)


def E(number: int, delta: int | tuple[int, ...], *faults: str) -> Writer:
    """One that doesn't say whose counts it changes."""
    return W(number, delta, "everyone", *faults)


TOKENS = map("r{}".format, itertools.count())


def R(*flags: str, owner: int = 0, declared: int = NEW) -> Reader:
    return Reader(frozenset(flags), owner, token=next(TOKENS), declared=declared)


F, H, S = Flusher, Healer, model.Switch()
FX, G = F(can_die=True), F(1, "g")
HX = Healer("h", can_die=True)


def old(number: int, delta: int, tells: int, *faults: str) -> Writer:
    return W(number, delta, *faults, declared=OLD, old=(tells,))


OLD_H = Healer("o", declared=OLD, started=True)
OLD_LATE = OLD_H._replace(step="requests")  # has found its declaration in force
OLD_F = F(1, "o", declared=OLD)

FRESH = Redis((Owner(total=0),)), Database((Row(),))
STARTS = {  # by what the names of scenarios begin with
    "declaration": (  # by the old one 2 rows count, by the new one 1
        Redis((Owner(total=2),), ready=OLD),
        Database((Row(1, 2, 2),), declared=OLD),
    ),
    "shards": (  # declared before, and the old keys are retired
        Redis((Owner(),), "", None, -1, finished=NONE, pending=False),
        Database((Row(),), NONE),
    ),
    "first start": (Redis((Owner(),), "", None, -1, finished=NONE, pending=False), Database((Row(),), NONE)),
    "elsewhere": FRESH,
    "raw SQL": FRESH,
}

# fmt: off
SCENARIOS: dict[str, tuple] = {
    # A write and a read.
    "2 writers, 2 readers": (W(1, 1), W(2, 1), R(), R()),
    "2 writers, 2 readers, cold": (W(1, 1), W(2, 1), R(), R()),
    "3 writers, reader, cold": (W(1, 1), W(2, 1), W(3, -1), R()),
    "writer that is refused, writer, 2 readers": (W(1, 1, "refused"), W(2, 1), R(), R()),
    "retried confirm, writer, 2 readers": (W(1, 1, "retry"), W(2, 1), R(), R()),
    "lost confirm, writer, healer twice, reader": (W(1, 1, "confirm", "retry"), W(2, 1), H("h", 2), R("lags")),
    "lost announce, 2 readers": (W(1, 1, "announce"), R(), R()),
    "lost announce, writer, healer twice, reader": (W(1, 1, "announce"), W(2, 1), H("h", 2), R()),
    "lost announce and confirm, healer twice, 2 readers":
        (W(1, 1, "announce", "confirm"), H("h", 2), R("lags"), R("lags")),
    "unknown change, writer, 2 readers": (W(1, 1, "unknown"), W(2, 1), R(), R()),
    "elsewhere: writer, writer, healer": (W(1, 1, "elsewhere"), W(2, 1), H("h")),
    # An intent that nobody confirms.
    "killed writer, writer, healer twice, reader": (W(1, 1, "kill"), W(2, 1), H("h", 2), R()),
    "killed writer, flusher, healer, reader": (W(1, 1, "kill"), F(), H("h"), R()),
    "slow writer, healer twice, 2 readers": (W(1, 1, "slow"), H("h", 2), R(), R()),
    "slow writer, writer, healer twice, reader": (W(1, 1, "slow"), W(2, 1), H("h", 2), R()),
    "slow writer, writer, healer, 2 readers": (W(1, 1, "slow"), W(2, 1), H("h"), R(), R()),
    "slow writer that is refused, writer, healer, reader": (W(1, 1, "slow", "refused"), W(2, 1), H("h"), R()),
    "COMMIT under way, 2 healers, reader": (W(1, 1, "late"), H("h"), H("i"), R()),
    "COMMIT under way, writer, healer twice, 2 readers": (W(1, 1, "late"), W(2, 1), H("h", 2), R(), R()),
    # Everyone.
    "everyone: killed, healer, 2 readers": (E(1, 1, "kill"), H("h"), R(), R()),
    "everyone: writer, killed, healer twice, reader": (E(1, 1, "kill"), W(2, 1), H("h", 2), R()),
    "everyone: lost announce and confirm, healer twice, reader": (E(1, 1, "announce", "confirm"), H("h", 2), R("lags")),
    "everyone: COMMIT under way, flusher, healer twice, reader": (E(1, 1, "late"), F(), H("h", 2), R()),
    "everyone: slow, flusher, healer twice, reader": (E(1, 1, "slow"), F(), H("h", 2), R()),
    "everyone: refused, writer, flusher, healer": (E(1, 1, "refused"), W(2, 1), F(), H("h")),
    "everyone: healer twice, emptied, reader": (E(1, 1), H("h", 2), R("lags"), Fault("empty")),
    "everyone: healer twice, in_flight lost, reader": (E(1, 1), H("h", 2), R("lags"), Fault("in_flight")),
    "everyone: healer twice, intents lost, reader": (E(1, 1), H("h", 2), R("lags"), Fault("intents")),
    # Flushes.
    "2 writers, flusher twice": (W(1, 1), W(2, 1), F(2)),
    "2 writers, 2 flushers that die": (W(1, 1), W(2, 1), FX, G),
    "2 writers, 2 flushers, cold": (W(1, 1), W(2, 1), F(2), G),
    "2 writers, 2 flushers, reader, cold": (W(1, 1), W(2, 1), F(), G, R()),
    "3 writers, 2 flushers": (W(1, 1), W(2, 1), W(3, -1), F(), G),
    "2 owners, 2 writers, 2 flushers": (W(1, (1, 1)), W(2, (1, 0)), F(), G),
    "2 owners, 2 writers, 2 flushers, cold": (W(1, (1, 1)), W(2, (0, 1)), F(), G),
    # Redis comes back as it was before, or empty.
    "back: writer, flusher, healer, reader": (W(1, 1), F(), H("h"), R("lags"), Fault("back")),
    "back: 2 writers, healer, reader": (W(1, 1), W(2, 1), H("h"), R("lags"), Fault("back")),
    "back: 2 writers, flusher, healer": (W(1, 1), W(2, 1), F(), H("h"), Fault("back")),
    "back: lost confirm, healer twice, reader": (W(1, 1, "confirm"), H("h", 2), R("lags"), Fault("back")),
    "back: 2 owners, writer, 2 flushers, healer": (W(1, (1, 1)), F(), G, H("h"), Fault("back")),
    "emptied: writer, flusher, healer, reader": (W(1, 1), F(), H("h"), R("lags"), Fault("empty")),
    "emptied: writer, 2 healers that die, reader": (W(1, 1), HX, H("i"), R("lags"), Fault("empty")),
    "emptied: 2 writers, healer, reader": (W(1, 1), W(2, 1), H("h"), R("lags"), Fault("empty")),
    "rollback: 2 writers, flusher twice, healer": (W(1, 1), W(2, 1), F(2), H("h"), Fault("rollback")),
    # A key is lost.
    "ready lost: writer, healer, 2 readers": (W(1, 1), H("h"), R("lags"), R("lags"), Fault("ready")),
    "ready lost: 2 writers, flusher, healer": (W(1, 1), W(2, 1), F(), H("h"), Fault("ready")),
    "state lost: 2 writers, healer, reader": (W(1, 1), W(2, 1), H("h"), R("lags"), Fault("state")),
    "state lost: 2 writers, flusher, healer": (W(1, 1), W(2, 1), F(), H("h"), Fault("state")),
    "pending lost: 2 writers, flusher, healer": (W(1, 1), W(2, 1), F(), H("h"), Fault("pending")),
    "pending lost: writer, refused one, flusher, healer": (W(1, 1), W(2, 1, "refused"), F(), H("h"), Fault("pending")),
    "pending lost: writer, flusher, healer, reader": (W(1, 1), F(), H("h"), R("lags"), Fault("pending")),
    "flushing lost: 2 writers, flusher, healer": (W(1, 1), W(2, 1), F(), H("h"), Fault("flushing")),
    "flushing lost: 2 writers, 2 flushers": (W(1, 1), W(2, 1), F(), G, Fault("flushing")),
    "totals lost: 2 writers, 2 readers": (W(1, 1), W(2, 1), R(), R(), Fault("totals")),
    "totals lost: writer, flusher, 2 readers": (W(1, 1), F(), R(), R(), Fault("totals")),
    "in_flight lost: writer, healer, 2 readers, cold": (W(1, 1), H("h"), R("lags"), R("lags"), Fault("in_flight")),
    "in_flight lost: 2 writers, one refused, reader, cold":
        (W(1, 1), W(2, 1, "refused"), R("lags"), Fault("in_flight")),
    "intents lost: 2 writers, reader, cold": (W(1, 1), W(2, 1), R("lags"), Fault("intents")),
    "intents lost: 2 writers, healer, reader": (W(1, 1), W(2, 1), H("h"), R("lags"), Fault("intents")),
    # The database goes back, or changes behind the app's back.
    "database back: writer, flusher, healer": (W(1, 1), F(), H("h"), Fault("db back")),
    "database back: 2 writers, flusher twice, healer": (W(1, 1), W(2, 1), F(2), H("h"), Fault("db back")),
    "database back: 2 writers, 2 flushers": (W(1, 1), W(2, 1), F(), G, Fault("db back")),
    "database back: 2 owners, 2 writers, 2 flushers": (W(1, (1, 1)), W(2, (0, 1)), F(), G, Fault("db back")),
    "database back: 2 owners, writer, flusher that dies, healer": (W(1, (1, 1)), FX, G, H("h"), Fault("db back")),
    "raw SQL: writer, flusher, healer": (W(1, 1), F(), H("h"), Fault("raw SQL")),
    # Recoveries and walks.
    "first start: writer, killed writer, healer twice, reader": (W(1, 1), W(2, 1, "kill"), H("h", 2), R()),
    "first start: writer, flusher, 2 healers": (W(1, 1), F(), HX, H("i")),
    "2 owners, 2 healers that die, writer, ready lost": (W(1, (1, 1)), HX, H("i"), Fault("ready")),
    "2 owners, 2 healers, pending lost": (W(1, (1, 1)), H("h"), H("i"), Fault("pending")),
    "healer that dies, healer, flusher, pending lost": (W(1, 1), HX, H("i"), F(), Fault("pending")),
    # The declaration changes, and processes of the old one go on.
    "declaration: silent old writer, healer twice, reader": (old(1, 1, 0, "silent"), H("h", 2), R()),
    "declaration: old writer, healer twice, reader": (old(1, 1, -1, "kill", "retry"), H("h", 2), R()),
    "declaration: old writer, healer twice, flusher, reader": (old(1, 1, -1), H("h", 2), F(), R()),
    "declaration: old writer, writer, healer twice, reader": (old(1, 1, 2), W(2, -1), H("h", 2), R()),
    "declaration: old writer, writer, healer twice, old reader":
        (old(1, 1, 2), W(2, 1), H("h", 2), R("lags", declared=OLD)),
    "declaration: writer, old flusher, healer twice": (W(1, 1), OLD_F, H("h", 2)),
    "declaration: writer, old flusher, old healer, healer twice": (W(1, 1), OLD_F, OLD_H, H("h", 2)),
    "declaration: writer, late old healer, healer twice, reader": (W(1, 1), OLD_LATE, H("h", 2), R()),
    "declaration: writer, 2 healers twice": (W(1, 1), H("h", 2), H("i", 2)),
    "declaration: old writer, healer twice, back, reader": (old(1, 1, 2), H("h", 2), R("lags"), Fault("back")),
    "declaration: everyone, old writer, healer twice, reader": (old(1, 1, 2), E(2, 1, "kill"), H("h", 2), R()),
    # Counting is switched off, and on again.
    "off: writer, healer twice, reader": (S, W(1, 1), H("h", 2), R()),
    "off: writer, healer, reader, cold": (S, W(1, 1), H("h"), R()),
    "off: writer, killed writer, healer, reader": (S, W(1, 1), W(2, 1, "kill"), H("h"), R()),
    "off: writer, flusher, 2 healers": (S, W(1, 1), F(), H("h"), H("i")),
    "off: writer, flusher, healer that dies, reader": (S, W(1, 1), F(), HX, R()),
    "off: writer, healer twice, ready lost, reader": (S, W(1, 1), H("h", 2), R(), Fault("ready")),
    "off: writer, healer twice, back": (S, W(1, 1), H("h", 2), Fault("back")),
    "off: everyone, writer, healer, back": (S, E(1, 0), W(2, 1), H("h"), Fault("back")),
    "shards: old writer, writer, healer twice, reader":
        (W(1, 1, "old keys", declared=OLD), W(2, 1), H("h", 2), R("lags")),
    "shards: old writer that is killed, healer twice": (W(1, 1, "old keys", "kill", declared=OLD), H("h", 2)),
}

SHOWN = {  # which rules a history needs, or which part of a rule, after the dot
    "2 writers, 2 readers": "flagged flag_stays",
    "2 writers, 2 readers, cold": "flying lease lease.keep",
    "retried confirm, writer, 2 readers": "registry",
    "lost announce, 2 readers": "anyway doubt touch.doubt",
    "lost announce and confirm, healer twice, 2 readers": "request",
    "unknown change, writer, 2 readers": "unknown",
    "elsewhere: writer, writer, healer": "unknown_redis",
    "killed writer, flusher, healer, reader": "given_up",
    "slow writer, healer twice, 2 readers": "slow lease.doubt",
    "slow writer, writer, healer, 2 readers": "grounded",
    "COMMIT under way, 2 healers, reader": "stays",
    "COMMIT under way, writer, healer twice, 2 readers": "grounded.again",
    "everyone: killed, healer, 2 readers": "forget forget.confirm flying.everyone given_up.everyone generation",
    "everyone: lost announce and confirm, healer twice, reader": "request.everyone",
    "2 writers, flusher twice": "touch",
    "2 writers, 2 flushers that die": "mark.resume",
    "2 writers, 2 flushers, cold": "drop_batch",
    "back: 2 writers, healer, reader": "server",
    "pending lost: writer, flusher, healer, reader": "sentinel",
    "flushing lost: 2 writers, flusher, healer": "sentinel.flushing sentinel.drop",
    "in_flight lost: writer, healer, 2 readers, cold": "flying_lost",
    "intents lost: 2 writers, reader, cold": "intents",
    "intents lost: 2 writers, healer, reader": "intents.ready",
    "database back: writer, flusher, healer": "agree",
    "database back: 2 writers, 2 flushers": "agree.cut",
    "database back: 2 owners, writer, flusher that dies, healer": "mark",
    "raw SQL: writer, flusher, healer": "compared",
    "2 owners, 2 healers that die, writer, ready lost": "ready",
    "healer that dies, healer, flusher, pending lost": "claims",
    "declaration: silent old writer, healer twice, reader": "window",
    "declaration: old writer, healer twice, reader": "declared declared_read",
    "declaration: old writer, writer, healer twice, old reader": "declared_read.lease",
    "declaration: writer, old flusher, healer twice": "declared_flush",
    "declaration: writer, late old healer, healer twice, reader": "declared_flush.lock",
    "declaration: writer, old flusher, old healer, healer twice": "declared_walk",
    "off: writer, healer twice, reader": "window",
    "off: writer, healer, reader, cold": "window.lock",
    "off: writer, healer twice, back": "window.again window.refused",
    "off: everyone, writer, healer, back": "window.forget",
    "shards: old writer that is killed, healer twice": "unknown_redis.retired",
}

DEEP: dict[str, tuple] = {  # minutes: for the night
    "3 writers, one killed, healer, 2 readers, cold": (W(1, 1, "kill"), W(2, 1), W(3, -1), H("h"), R(), R()),
    "2 owners, 3 writers, 2 flushers, healer":
        (W(1, (1, 1)), W(2, (1, 0), "confirm"), W(3, (0, 1)), F(), G, H("h")),
    "2 owners, writer, 2 flushers, 2 healers, pending lost": (W(1, (1, 1)), F(), G, H("h"), H("i"), Fault("pending")),
    "back, ready lost: 2 writers, healer twice, reader":
        (W(1, 1), W(2, 1), H("h", 2), R("lags"), Fault("back"), Fault("ready")),
    "back, emptied: writer, flusher, 2 healers": (W(1, 1), F(), HX, H("i"), Fault("back"), Fault("empty")),
    "pending lost, back: 2 writers, flusher, healer twice":
        (W(1, 1), W(2, 1), F(), H("h", 2), Fault("pending"), Fault("back")),
    "COMMIT under way, writer, flusher, healer twice, reader": (W(1, 1, "late"), W(2, 1), F(), H("h", 2), R()),
    "everyone: killed, killed writer, flusher, healer twice, reader":
        (E(1, 1, "kill"), W(2, 1, "kill"), F(), H("h", 2), R()),
    "database back, totals lost: 2 writers, flusher twice, healer twice":
        (W(1, 1), W(2, 1), F(2), H("h", 2), Fault("db back"), Fault("totals")),
    "2 owners, back: 2 writers, flusher, healer, reader":
        (W(1, (1, 1)), W(2, (1, 1)), F(), H("h"), R("lags"), Fault("back")),
    "off: writer, healer twice, emptied, reader": (S, W(1, 1), H("h", 2), R("lags"), Fault("empty")),
    "off: writer, healer twice, back, reader": (S, W(1, 1), H("h", 2), R("lags"), Fault("back")),
    "off: everyone, writer, healer, back, reader": (S, E(1, 1), W(2, 1), H("h"), R("lags"), Fault("back")),
}
# fmt: on


HISTORIES = [(rule, scenario) for scenario, rules in SHOWN.items() for rule in rules.split()]
RULES = {rule for rule, _ in HISTORIES if "." not in rule}  # the page says what each means
TOGETHER = {"declared": ["window"], "unknown_redis.retired": ["window"]}  # rules needed once another one fails


def start_of(scenario: str) -> World:
    processes = (SCENARIOS | DEEP)[scenario]
    n = max((len(p.deltas) for p in processes if type(p) is Writer), default=1)
    redis, db = next((start for beginning, start in STARTS.items() if scenario.startswith(beginning)), FRESH)
    redis, db = redis._replace(owners=redis.owners * n), db._replace(owners=db.owners * n)
    return World(of_all(redis, total=None) if scenario.endswith("cold") else redis, db, processes)


def is_quiet(scenario: str) -> bool:
    """Whether nothing in it may begin a generation."""
    processes = (SCENARIOS | DEEP)[scenario]
    loud = ("everyone" in p.faults if type(p) is Writer else type(p) in (Fault, model.Switch) for p in processes)
    return not any(loud) and not scenario.startswith(tuple(STARTS))


def explore(scenario: str, drop: Iterable[str] = (), first_only: bool = False) -> Found:
    return model.explore(start_of(scenario), is_quiet(scenario), drop, first_only)


if __name__ == "__main__":
    command_line(__doc__, [rule for rule, _ in HISTORIES], SCENARIOS, DEEP, explore, model.lines)
