"""A counter's activity by minute, hour or day, as a table for charts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from django.template.defaultfilters import date as date_format
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..timeseries import TimeSeries
from .display import Table, grouped


@dataclass(frozen=True, slots=True)
class Precision:
    """A choice of precision for the charts: the length of a slice in ``seconds``, the ``title`` of the choice, the
    number of ``slots``, the date format for the ``name`` of a slice, and its ``label`` on the axis, if any."""

    seconds: int
    title: object
    slots: int
    name: str
    label: Callable[[datetime], str]


@dataclass(frozen=True, slots=True)
class Activity:
    """A ``table``, newest slice first, and for the charts of its columns the ``totals`` by title, the ``labels`` of the
    axis as JSON and the thousands ``separator``."""

    totals: dict[str, str]
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


def activity(counter: str, precision: Precision) -> Activity:
    """Return the activity of a counter, in two round trips: one for each time-sliced counter."""
    last = int(time.time()) // precision.seconds * precision.seconds
    starts = range(last, last - precision.slots * precision.seconds, -precision.seconds)
    # Slices of a day are days in UTC. West of Greenwich, they would be named after the previous day.
    tz = timezone.get_current_timezone() if precision.seconds < 86400 else UTC
    times = [datetime.fromtimestamp(start, tz) for start in starts]
    columns: dict[str, list[int]] = {}
    for title, what in ((_("Added"), "added"), (_("Removed"), "removed")):
        found = dict(TimeSeries().get_counter(f"{counter}:{what}", precision.seconds))
        columns[title] = [found.get(start, 0) for start in starts]
    rows = [
        [date_format(at, precision.name), *map(grouped, counts)]
        for at, *counts in zip(times, *columns.values(), strict=True)
    ]
    return Activity(
        {title: grouped(sum(column)) for title, column in columns.items()},
        json.dumps([precision.label(at) for at in times]),
        grouped(1000)[1:-3],
        Table([_("Time"), *columns], rows),
    )
