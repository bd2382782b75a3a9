"""The time-sliced counters of RECORD_ACTIVITY by minute, hour and day, as a table for charts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..conf import options
from ..counters import Counter
from ..internals import Promise, date_format
from ..timeseries import TimeSeries
from .display import Table, grouped


@dataclass(frozen=True, slots=True)
class Precision:
    """A choice of the charts: slices of so many ``seconds``, how many of them, how they are named, and which of them
    are labelled on the axis."""

    seconds: int
    title: str | Promise
    slots: int
    name: str
    label: Callable[[datetime], str]

    def starts(self) -> range:
        """When the newest slices began, newest first."""
        last = int(time.time()) // self.seconds * self.seconds
        return range(last, last - min(self.slots, options.SAMPLES) * self.seconds, -self.seconds)


@dataclass(frozen=True, slots=True)
class Activity:
    """A ``table``, newest slice first. For the ``charts`` of its columns: title, total, and whether there is anything
    to draw; the ``labels`` of the axis as JSON; and the thousands ``separator``."""

    charts: list[tuple[str, str, bool]]
    labels: str
    separator: str
    table: Table


def _quarters(at: datetime) -> str:
    return "" if at.minute % 15 else date_format(at, "TIME_FORMAT")


def _half_days(at: datetime) -> str:
    return "" if at.hour % 12 else date_format(at, "TIME_FORMAT" if at.hour else "MONTH_DAY_FORMAT")


def _tens(at: datetime) -> str:
    return date_format(at, "MONTH_DAY_FORMAT" if at.day == 1 else "j") if at.day in (1, 11, 21) else ""


PRECISIONS = {
    "minute": Precision(60, gettext_lazy("By minute"), 60, "TIME_FORMAT", _quarters),
    "hour": Precision(3600, gettext_lazy("By hour"), 48, "DATETIME_FORMAT", _half_days),
    "day": Precision(86400, gettext_lazy("By day"), 31, "DATE_FORMAT", _tens),
}


def precisions() -> dict[str, Precision]:
    """The choices of the charts, of those that are counted."""
    return {name: precision for name, precision in PRECISIONS.items() if precision.seconds in options.PRECISIONS}


def activity(counter: Counter, precision: Precision) -> Activity:
    """Return the activity of one counter, in five round trips: one for each time-sliced counter."""
    series, starts = TimeSeries(), precision.starts()
    # A day of the counters is one of UTC, and would be called after the day before in the west.
    tz = timezone.get_current_timezone() if precision.seconds < 86400 else UTC
    times = [datetime.fromtimestamp(start, tz) for start in starts]

    def counts(what: str) -> list[int]:
        found = dict(series.get_slices(f"{counter.activity}:{what}", precision.seconds))
        return [found.get(start, 0) for start in starts]

    created, read, deleted, flushed, flushes = map(counts, ("created", "read", "deleted", "flushed", "flushes"))
    columns = [
        (_("Created"), created, sum(created)),
        (_("Read"), read, sum(read)),
        (_("Deleted"), deleted, sum(deleted)),
        (_("Flushes"), flushes, sum(flushes)),
        (_("Users flushed"), flushed, sum(flushed)),
        (_("Users per flush"), list(map(_mean, flushed, flushes)), _mean(sum(flushed), sum(flushes))),
    ]
    titles, numbers, _totals = zip(*columns, strict=True)
    return Activity(
        [(title, grouped(total), any(column)) for title, column, total in columns],
        json.dumps([precision.label(at) for at in times]),
        grouped(1000)[1:-3],
        Table(
            [_("Time"), *titles],
            [[date_format(at, precision.name), *map(grouped, row)] for at, *row in zip(times, *numbers, strict=True)],
        ),
    )


def _mean(whole: int, parts: int) -> int:
    return round(whole / parts) if parts > 0 else 0
