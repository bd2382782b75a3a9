"""Several counters on one source."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from . import models
from .bench import Report, race
from .counters import COUNTERS, NUMBERS
from .reads import calls
from .rivals import empty, users


def create(report: Report, quick: bool) -> str:
    """One row, counted by 1, 2 and 4 counters, beside one that nobody counts."""
    them, times = 100, 50 if quick else 100
    empty()
    users(them)
    for counter in sum(COUNTERS.values(), []):
        counter.heal()
        counter.counts(range(1, them + 1))

    def one(model: Any) -> Any:
        return calls(lambda user: model.objects.create(user_id=user, title="Hello"), cycle(range(1, them + 1)), times)

    does = {"not counted": one(models.PlainNotification)}
    does |= {f"{number} counter{'s' * (number > 1)}": one(getattr(models, NUMBERS[number])) for number in NUMBERS}
    found = race(does, rounds=8 if quick else 40, units=times, about="create()")
    for number, counters in COUNTERS.items():
        rows = getattr(models, NUMBERS[number]).objects
        for counter in counters:
            assert counter.count(1) == rows.filter(user_id=1).count() > 0
    return report.matrix("counters on one model", {"": found})
