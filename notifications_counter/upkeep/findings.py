"""What walks and flushes find: wrong counts, and owners that cannot be stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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


def record_wrong(counter: Declaration, wrong: Sequence[Difference]) -> None:
    """Record wrong counts in the counter's row, the log and the history."""
    examples = [f"{found.owner}: {found.was} instead of {found.rows}" for found in wrong]
    _record("wrong", counter, examples)


def record_skipped(counter: Declaration, reasons: dict[str, str]) -> None:
    """Record owners that cannot be stored or counted, with the reasons, in the same places. Walks try again."""
    examples = [f"{owner_key!r}: {reason}" for owner_key, reason in reasons.items()]
    _record("skipped", counter, examples)


def _record(event: str, counter: Declaration, examples: Sequence[str]) -> None:
    if number := len(examples):
        state_row(counter).update(**{event: F(event) + number, f"{event}_at": timezone.now()})
        report(event, counter, owners=number, examples="; ".join(examples[:MAX_EXAMPLES]))
