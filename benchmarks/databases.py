"""Asks a few questions on every database and with Valkey, where the answers may differ."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from .bench import OURS, Report, race
from .reads import calls
from .rivals import (
    CounterRow,
    CountSql,
    CountStar,
    Deltas,
    Ours,
    Rival,
    Trigger,
    agree,
    empty,
    users,
)


def few(report: Report, quick: bool) -> str:
    """Add a line to each table of all stages."""
    them, rounds, times = 100, 5 if quick else 20, 50
    empty()
    users(them)
    rivals: list[Rival] = [Ours(), CountStar(), CountSql(), CounterRow(), Trigger(), Deltas()]
    for rival in rivals:
        rival.fill(them, 10)
    ways: dict[str, dict[str, Any]] = {
        "badge of 10": {rival.name: rival.read for rival in rivals},
        "one notification": {rival.name: rival.create for rival in rivals if not isinstance(rival, CountSql)},
    }
    for what, way in ways.items():
        does = {name: calls(do, cycle(range(1, them + 1)), times) for name, do in way.items()}
        found = race(does, rounds=rounds, units=times, about=what)
        report.lines[what] = {OURS: found.cell(OURS)} | {rival.name: found.ratio(rival.name) for rival in rivals[1:]}
    agree(rivals, them)
    return ""
