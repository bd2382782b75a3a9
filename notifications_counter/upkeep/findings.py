"""What walks and flushes find: wrong counts, and owners that cannot be stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import F
from django.utils import timezone

from ..declaration import Declaration
from ..declaration.primary_keys import Pk
from ..reports import report
from .phases import state_row

MAX_EXAMPLES = 5
"""How many owners the log names."""

MAX_DIFFERENCES = 1000
"""How many wrong counts a result describes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A wrong count: the primary key of the ``owner``, what the cached or stored count ``was``, and the number of
    ``rows``."""

    owner: Pk
    was: int
    rows: int

    def __str__(self) -> str:
        return f"{self.owner}: {self.was} instead of {self.rows}"


@dataclass
class Result:
    """What a flush, a heal or a recount did: how many ``owners`` it wrote or compared; how many counts were ``wrong``,
    because something wrote behind the ORM's back; how many owners were ``skipped``, because they cannot be counted or
    stored; and whether it is ``unfinished``, because its time ran out: call it again. ``differences`` describes the
    first thousand wrong counts."""

    owners: int = 0
    wrong: int = 0
    skipped: int = 0
    unfinished: bool = False
    differences: list[Difference] = field(default_factory=list, compare=False)

    def add_wrong(self, found: Sequence[Difference]) -> None:
        """Add wrong counts."""
        self.wrong += len(found)
        self.differences += found[: MAX_DIFFERENCES - len(self.differences)]


def record(event: str, counter: Declaration, found: Sequence[object]) -> None:
    """Record what was found, if anything, in the counter's row, the log and the history: ``wrong`` counts; or owners
    that were ``skipped``, with the reasons, until a walk tries again."""
    if number := len(found):
        state_row(counter).update(**{event: F(event) + number, f"{event}_at": timezone.now()})
        report(event, counter, owners=number, examples="; ".join(map(str, found[:MAX_EXAMPLES])))


def settle_wrong(counter: Declaration, before: datetime) -> None:
    """End the warning about wrong counts that were found before this time: everyone is right since."""
    state_row(counter).filter(wrong_at__lt=before).update(wrong_at=None)
