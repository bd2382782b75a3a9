"""Cached totals as Redis has them: ``12``, or ``12!`` while the owner is in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from .types import decode, parse_int

ROW_SECONDS = 5e-8
"""Seconds that a database takes to count a row."""

FIRST_PAUSE = 0.0002
"""Seconds before Redis is asked again for the total of an owner in flight, which usually lands within a millisecond.
Each pause is twice as long as the one before."""

LONGEST = 0.05
"""The most seconds that these pauses take together, because the total may be foreign."""

MARK_SECONDS = 1
"""Seconds after which a process that finds a mark asks Redis whether the owner is in flight. It is not if something
else has deleted the intent."""

SMALL = {text: number for number in range(1000) for text in (str(number), b"%d" % number)}
"""Totals to look up, in half the time of ``int()``."""


def as_integers(totals: Sequence[Any]) -> list[int | None]:
    """Return totals as integers, with None for those that are missing, in flight or foreign."""
    with suppress(KeyError):
        return list(map(SMALL.__getitem__, totals))
    with suppress(TypeError, ValueError):
        return list(map(int, totals))
    return [None if total is None else parse_int(total) for total in totals]


def are_counts(totals: Sequence[int | None], least: float) -> bool:
    """Return whether no total is missing, or below the ``least`` possible count."""
    try:
        return min(totals) >= least  # type: ignore[operator, type-var]
    except TypeError:
        return False


def is_in_flight(total: Any) -> bool:
    """Return whether a total has the mark of an owner in flight."""
    return decode(total).endswith("!")


def pauses_before_rows(total: Any) -> Iterator[float]:
    """Yield the seconds to wait before Redis is asked again for the total of an owner in flight. Together, they take no
    longer than counting the owner's rows would: if there are few rows, nothing is yielded."""
    rows = parse_int(decode(total)[:-1]) or 0
    left, pause = min(rows * ROW_SECONDS, LONGEST), FIRST_PAUSE
    while pause <= left:
        yield pause
        left, pause = left - pause, 2 * pause
