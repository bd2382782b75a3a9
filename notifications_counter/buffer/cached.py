"""Cached totals as Redis has them: ``12``, or ``12!`` while the owner is in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from .types import decode, parse_int

ROW_SECONDS = 5e-8
"""Seconds that a database takes to count a row."""

FIRST_PAUSE = 0.0002
"""Seconds after which Redis is asked again for the total of an owner in flight, who has usually landed a millisecond
later. Each pause is twice as long as the one before."""

LONGEST = 0.05
"""Seconds that these pauses take together at most: something else may have written the total."""

MARK_SECONDS = 1
"""Seconds after which a process no longer takes the mark of a total for granted, and asks Redis whether its owner is in
flight. If something else has deleted the intent, it is not."""

SMALL = {text: number for number in range(1000) for text in (str(number), b"%d" % number)}
"""Totals that are looked up, which takes half the time of ``int()``."""


def as_integers(totals: Sequence[Any]) -> list[int | None]:
    """Return totals as integers; None for each that is missing, or in flight, or that something else wrote."""
    with suppress(KeyError):
        return list(map(SMALL.__getitem__, totals))
    with suppress(TypeError, ValueError):
        return list(map(int, totals))
    return [None if total is None else parse_int(total) for total in totals]


def are_counts(totals: Sequence[int | None], least: float) -> bool:
    """Return whether none is missing, nor below the least that it can be."""
    try:
        return min(totals) >= least  # type: ignore[operator, type-var]
    except TypeError:
        return False


def is_in_flight(total: Any) -> bool:
    """Return whether a total has the mark of an owner in flight."""
    return decode(total).endswith("!")


def pauses_before_rows(total: Any) -> Iterator[float]:
    """Yield the pauses before Redis is asked again for the total of an owner in flight. Together, they take no longer
    than to count the owner's rows. Few rows are counted at once."""
    rows = parse_int(decode(total)[:-1]) or 0
    left, pause = min(rows * ROW_SECONDS, LONGEST), FIRST_PAUSE
    while pause <= left:
        yield pause
        left, pause = left - pause, 2 * pause
