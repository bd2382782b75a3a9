"""A counter's activity by minute, hour or day, as a table for charts."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.template.defaultfilters import date as date_format
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..timeseries import TimeSeries
from .display import Table, grouped


class Precision(NamedTuple):
    """A choice of precision for the charts: the length of a slice in ``seconds``, the ``title`` of the choice, the
    number of ``slots``, the date format for the ``name`` of a slice, and those of the ``labels`` on the axis, by the
    number of the minute, hour or day, which ``unit`` names."""

    seconds: int
    title: object
    slots: int
    name: str
    unit: str
    labels: dict[int, str]


QUARTERS = dict.fromkeys((0, 15, 30, 45), "TIME_FORMAT")
HALF_DAYS = {0: "MONTH_DAY_FORMAT", 12: "TIME_FORMAT"}
TENS = {1: "MONTH_DAY_FORMAT", 11: "j", 21: "j"}

PRECISIONS = {
    "minute": Precision(60, gettext_lazy("By minute"), 60, "TIME_FORMAT", "minute", QUARTERS),
    "hour": Precision(3600, gettext_lazy("By hour"), 48, "DATETIME_FORMAT", "hour", HALF_DAYS),
    "day": Precision(86400, gettext_lazy("By day"), 31, "DATE_FORMAT", "day", TENS),
}


def activity(counter: str, precision: Precision) -> dict[str, Any]:
    """Return the activity of a counter, in two round trips, one for each time-sliced counter: a table, newest slice
    first; and for the charts of its columns the totals by title, the labels of the axis as JSON, and the separator of
    thousands."""
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
    formats = [precision.labels.get(getattr(at, precision.unit), "") for at in times]
    return {
        "table": Table([_("Time"), *columns], rows),
        "totals": {title: grouped(sum(column)) for title, column in columns.items()},
        "labels": json.dumps([format and date_format(at, format) for at, format in zip(times, formats, strict=True)]),
        "separator": grouped(1000)[1:-3],
    }
