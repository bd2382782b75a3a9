"""What tests/protocol/model.py explores, and which of it shows what breaks without a rule.

python -m tests.protocol.scenarios                 # every scenario, in a minute
python -m tests.protocol.scenarios --drop lease    # without one rule: the shortest histories that break
"""

import argparse
import itertools
import sys
from collections.abc import Iterable
from typing import Any

from . import model
from .model import (
    DECLARED,
    NEW,
    NONE,
    OLD,
    Database,
    Fault,
    Flusher,
    Healer,
    Owner,
    Reader,
    Redis,
    Row,
    World,
    Writer,
    of_all,
)
from .search import Found


def W(number: int, delta: int | tuple[int, ...], *faults: str, **more: Any) -> Writer:
    """A writer: the delta of the only owner, or of each."""
    more["step"] = "early" if "early" in faults else "announce"
    return Writer(number, delta if isinstance(delta, tuple) else (delta,), frozenset(faults), **more)


def E(number: int, delta: int | tuple[int, ...], *faults: str) -> Writer:
    """One that doesn't say whose counts it changes."""
    return W(number, delta, "everyone", *faults)


TOKENS = map("r{}".format, itertools.count())


def R(*flags: str, declared: int = NEW) -> Reader:
    return Reader(frozenset(flags), token=next(TOKENS), declared=declared)


F, H, S = Flusher, Healer, model.Switch()
FX, G = F(can_die=True), F(1, "g")
HX = Healer("h", can_die=True)


def old(number: int, delta: int, tells: int, *faults: str) -> Writer:
    return W(number, delta, *faults, declared=OLD, old=(tells,))


OLD_H = Healer("o", declared=OLD, started=True)
OLD_LATE = OLD_H._replace(step="requests")  # has found its declaration in force
OLD_F = F(1, "o", declared=OLD)

FRESH = Redis((Owner(total=0),)), Database((Row(),))
UNKNOWN = Redis((Owner(),), "", None, -1, mark=DECLARED), Database((Row(),), NONE)
STARTS = {  # by what the names of scenarios begin with
    "declaration": (  # by the old one 2 rows count, by the new one 1
        Redis((Owner(total=2),), ready=OLD),
        Database((Row(1, 2, 2),), declared=OLD),
    ),
    "first start": UNKNOWN,
    "elsewhere": FRESH,
    "raw SQL": FRESH,
    "wrong": (Redis((Owner(total=2),)), Database((Row(1, 1, 1),))),
    "large and wrong": (Redis((Owner(total=6),)), Database((Row(5, 5, 5),), walk="w", walked=0, gentle=True)),
    "walk": (Redis((Owner(total=0),)), Database((Row(),), walk="w", walked=0, gentle=True)),
}
WRONG = ("raw SQL", "wrong", "large and wrong", "pending lost", "flushing lost", "in_flight lost", "database back")
"""The beginnings of scenarios in which counts may be wrong."""

# fmt: off
SCENARIOS: dict[str, tuple] = {  # the rules that a history of it shows to be needed, or parts of rules; the processes
    # A write and a read.
    "2 writers, 2 readers": ("flagged flag_stays", W(1, 1), W(2, 1), R(), R()),
    "2 writers, 2 readers, cold": ("flying lease lease.keep", W(1, 1), W(2, 1), R(), R()),
    "retried confirm, writer, 2 readers": ("registry", W(1, 1, "retry"), W(2, 1), R(), R()),
    "lost confirm, writer, healer twice, reader": ("", W(1, 1, "confirm", "retry"), W(2, 1), H("h", 2), R("lags")),
    "lost announce, 2 readers": ("anyway doubt touch.doubt", W(1, 1, "announce"), R(), R()),
    "lost announce, writer, healer twice, reader": ("", W(1, 1, "announce"), W(2, 1), H("h", 2), R()),
    "lost announce and confirm, healer twice, 2 readers":
        ("request", W(1, 1, "announce", "confirm"), H("h", 2), R("lags"), R("lags")),
    "unknown change, writer, 2 readers": ("unknown", W(1, 1, "unknown"), W(2, 1), R(), R()),
    "elsewhere: writer, writer, healer": ("unknown_redis", W(1, 1, "elsewhere"), W(2, 1), H("h")),
    # An intent that nobody confirms.
    "killed writer, writer, healer twice, reader": ("", W(1, 1, "kill"), W(2, 1), H("h", 2), R()),
    "killed writer, flusher, healer, reader": ("given_up", W(1, 1, "kill"), F(), H("h"), R()),
    "slow writer, healer twice, 2 readers": ("slow lease.doubt", W(1, 1, "slow"), H("h", 2), R(), R()),
    "slow writer, writer, healer, 2 readers": ("grounded", W(1, 1, "slow"), W(2, 1), H("h"), R(), R()),
    "COMMIT under way, 2 healers, reader": ("stays", W(1, 1, "late"), H("h"), H("i"), R()),
    "COMMIT under way, writer, healer twice, 2 readers":
        ("grounded.again", W(1, 1, "late"), W(2, 1), H("h", 2), R(), R()),
    "early, healer twice, 2 readers": ("stays.again", W(1, 1, "early"), H("h", 2), R(), R()),
    "early and killed, writer, healer twice, reader": ("", W(1, 1, "early", "kill"), W(2, 1), H("h", 2), R()),
    "early and refused, writer, healer, 2 readers": ("", W(1, 1, "early", "refused"), W(2, 1), H("h"), R(), R()),
    "early, then lost announce, healer twice, 2 readers": ("", W(1, 1, "early", "announce"), H("h", 2), R(), R()),
    # Everyone.
    "everyone: killed, healer, 2 readers":
        ("everyone everyone.confirm flying.everyone given_up.everyone generation", E(1, 1, "kill"), H("h"), R(), R()),
    "everyone: writer, killed, healer twice, reader": ("", E(1, 1, "kill"), W(2, 1), H("h", 2), R()),
    "everyone: lost announce and confirm, healer twice, reader":
        ("request.everyone", E(1, 1, "announce", "confirm"), H("h", 2), R("lags")),
    "everyone: COMMIT under way, flusher, healer twice, reader": ("", E(1, 1, "late"), F(), H("h", 2), R()),
    "everyone: refused, writer, flusher, healer":
        ("compared.walk compared.walks", E(1, 1, "refused"), W(2, 1), F(), H("h")),
    "everyone: early and killed, healer twice, 2 readers": ("", E(1, 1, "early", "kill"), H("h", 2), R(), R()),
    # Flushes.
    "2 writers, flusher twice": ("touch", W(1, 1), W(2, 1), F(2)),
    "2 writers, 2 flushers that die": ("mark.resume", W(1, 1), W(2, 1), FX, G),
    "2 writers, 2 flushers, cold": ("drop_batch", W(1, 1), W(2, 1), F(2), G),
    "3 writers, 2 flushers": ("", W(1, 1), W(2, 1), W(3, -1), F(), G),
    "2 owners, 2 writers, 2 flushers, cold": ("", W(1, (1, 1)), W(2, (0, 1)), F(), G),
    # Redis comes back as it was before, or empty.
    "back: writer, flusher, healer, reader": ("", W(1, 1), F(), H("h"), R("lags"), Fault("back")),
    "back: 2 writers, healer, reader": ("server", W(1, 1), W(2, 1), H("h"), R("lags"), Fault("back")),
    "back: 2 owners, writer, 2 flushers, healer": ("", W(1, (1, 1)), F(), G, H("h"), Fault("back")),
    "emptied: writer, flusher, healer, reader": ("", W(1, 1), F(), H("h"), R("lags"), Fault("empty")),
    "emptied: writer, 2 healers that die, reader": ("", W(1, 1), HX, H("i"), R("lags"), Fault("empty")),
    "rollback: 2 writers, flusher twice, healer": ("", W(1, 1), W(2, 1), F(2), H("h"), Fault("rollback")),
    # A key is lost.
    "ready lost: writer, healer, 2 readers": ("", W(1, 1), H("h"), R("lags"), R("lags"), Fault("ready")),
    "state lost: 2 writers, healer, reader": ("", W(1, 1), W(2, 1), H("h"), R("lags"), Fault("state")),
    "pending lost: 2 writers, flusher, healer": ("", W(1, 1), W(2, 1), F(), H("h"), Fault("pending")),
    "flushing lost: 2 writers, flusher, healer": ("", W(1, 1), W(2, 1), F(), H("h"), Fault("flushing")),
    "totals lost: 2 writers, 2 readers": ("", W(1, 1), W(2, 1), R(), R(), Fault("totals")),
    "in_flight lost: writer, healer, reader, cold": ("", W(1, 1), H("h"), R("any"), Fault("in_flight")),
    "in_flight lost: 2 writers, one refused, reader, cold":
        ("", W(1, 1), W(2, 1, "refused"), R("any"), Fault("in_flight")),
    # The database goes back, or changes behind the app's back.
    "database back: writer, flusher, healer": ("agree", W(1, 1), F(), H("h"), Fault("db back")),
    "database back: 2 writers, 2 flushers": ("agree.cut", W(1, 1), W(2, 1), F(), G, Fault("db back")),
    "database back: 2 owners, 2 writers, 2 flushers": ("", W(1, (1, 1)), W(2, (0, 1)), F(), G, Fault("db back")),
    "database back: 2 owners, writer, flusher that dies, healer":
        ("mark", W(1, (1, 1)), FX, G, H("h"), Fault("db back")),
    "raw SQL: writer, flusher, healer": ("", W(1, 1), F(), H("h"), Fault("raw SQL")),
    # Comparisons.
    "wrong: writer, flusher": ("compared", W(1, 1), F()),
    "large and wrong: writer, healer": ("compared.total compared.before compared.unsure", W(1, -1), H("h")),
    "large and wrong: 2 writers, healer": ("compared.flagged", W(1, 1), W(2, -1), H("h")),
    "walk: 3 writers, healer": ("compared.again", W(1, 1), W(2, 1), W(3, -1), H("h")),
    "walk: slow writer, flusher, healer twice": ("", W(1, 1, "slow", "young"), F(), H("h", 2)),
    "lost announce, writer, flusher": ("compared.announced", W(1, 1, "announce"), W(2, 1), F()),
    "back: 2 writers, flusher": ("compared.settled", W(1, 1), W(2, 1), F(), Fault("back")),
    # Generations and walks.
    "first start: writer, killed writer, healer twice, reader": ("", W(1, 1), W(2, 1, "kill"), H("h", 2), R()),
    "first start: writer, flusher, 2 healers": ("", W(1, 1), F(), HX, H("i")),
    "2 owners, 2 healers that die, writer, ready lost": ("ready", W(1, (1, 1)), HX, H("i"), Fault("ready")),
    "first start: writer, 2 healers, ready lost": ("position", W(1, 1), H("h"), H("i"), Fault("ready")),
    "healer that dies, healer, flusher, ready lost": ("position.done", W(1, 1), HX, H("i"), F(), Fault("ready")),
    # The declaration changes, and processes of the old one go on.
    "declaration: silent old writer, healer twice, reader": ("window", old(1, 1, 0, "silent"), H("h", 2), R()),
    "declaration: old writer, healer twice, reader":
        ("declared declared_read", old(1, 1, -1, "kill", "retry"), H("h", 2), R()),
    "declaration: old writer, writer, healer twice, reader": ("", old(1, 1, 2), W(2, -1), H("h", 2), R()),
    "declaration: old writer, writer, healer twice, old reader":
        ("declared_read.lease", old(1, 1, 2), W(2, 1), H("h", 2), R("lags", declared=OLD)),
    "declaration: writer, old flusher, healer twice": ("declared_flush", W(1, 1), OLD_F, H("h", 2)),
    "declaration: writer, old flusher, old healer, healer twice": ("declared_walk", W(1, 1), OLD_F, OLD_H, H("h", 2)),
    "declaration: writer, late old healer, healer twice, reader":
        ("declared_flush.lock", W(1, 1), OLD_LATE, H("h", 2), R()),
    "declaration: writer, 2 healers twice": ("", W(1, 1), H("h", 2), H("i", 2)),
    "declaration: everyone, old writer, healer twice, reader": ("", old(1, 1, 2), E(2, 1, "kill"), H("h", 2), R()),
    # Counting is switched off, and on again.
    "off: writer, healer twice, reader": ("window", S, W(1, 1), H("h", 2), R()),
    "off: writer, healer, reader, cold": ("window.lock", S, W(1, 1), H("h"), R()),
    "off: writer, killed writer, healer, reader": ("", S, W(1, 1), W(2, 1, "kill"), H("h"), R()),
    "off: writer, flusher, healer that dies, reader": ("", S, W(1, 1), F(), HX, R()),
    "off: writer, healer twice, ready lost, reader": ("", S, W(1, 1), H("h", 2), R(), Fault("ready")),
    "off: writer, healer that dies twice, back":
        ("window.again window.refused", S, W(1, 1), HX._replace(runs=2), Fault("back")),
    "off: everyone, writer, healer, back": ("window.doubt", S, E(1, 0), W(2, 1), H("h"), Fault("back")),
}
# fmt: on


HISTORIES = [(rule, scenario) for scenario, (rules, *_) in SCENARIOS.items() for rule in rules.split()]
RULES = {rule for rule, _ in HISTORIES if "." not in rule}  # the page says what each means
TOGETHER = {"declared": ["window"]}  # rules needed once another one fails


def start_of(scenario: str) -> World:
    processes = SCENARIOS[scenario][1:]
    n = max((len(p.deltas) for p in processes if type(p) is Writer), default=1)
    redis, db = next((start for beginning, start in STARTS.items() if scenario.startswith(beginning)), FRESH)
    redis, db = redis._replace(owners=redis.owners * n), db._replace(owners=db.owners * n)
    return World(of_all(redis, total=None) if scenario.endswith("cold") else redis, db, processes)


def is_quiet(scenario: str) -> bool:
    """Whether nothing in it may begin a generation."""
    processes = start_of(scenario).processes
    loud = ("everyone" in p.faults if type(p) is Writer else type(p) in (Fault, model.Switch) for p in processes)
    return not any(loud) and not scenario.startswith(tuple(STARTS))


def explore(scenario: str, drop: Iterable[str] = ()) -> Found:
    return model.explore(start_of(scenario), is_quiet(scenario), not scenario.startswith(WRONG), drop)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--drop", action="append", default=[], metavar="RULE")
    options.add_argument("--only", choices=SCENARIOS, metavar="SCENARIO")
    chosen = options.parse_args()
    broken = False
    for scenario in [chosen.only] if chosen.only else SCENARIOS:
        found = explore(scenario, chosen.drop)
        broken = broken or bool(found.what)
        print(f"{scenario:66s} {found.states:7,} states: {found.what or 'nothing breaks'}", flush=True)
        for line in model.lines(found):
            print(f"    {line}")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
