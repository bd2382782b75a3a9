"""What happened by minute, hour and day, as charts and as a table: the time-sliced counters of RECORD_ACTIVITY."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .charts import Chart, Slot, Table, bar_chart, grouped
from .conf import options
from .counters import Counter
from .timeseries import TimeSeries


@dataclass(frozen=True, slots=True)
class Precision:
    """A choice of the charts: slices of so many ``seconds``, how many of them, how they are named, and which of them
    are labelled on the axis."""

    seconds: int
    title: str | Promise
    slots: int
    name: str
    label: Callable[[datetime, int], str]

    def slots_of(self, counts: Mapping[int, int], until: int, tz: tzinfo) -> list[Slot]:
        """The newest slots up to the time ``until``, oldest first."""
        last = until // self.seconds * self.seconds
        found = []
        for back in reversed(range(min(self.slots, options.SAMPLES))):
            start = last - back * self.seconds
            # A day of the counters is one of UTC, and would be called after the day before in the west.
            at = datetime.fromtimestamp(start, tz if self.seconds < 86400 else UTC)
            found.append(Slot(date_format(at, self.name), self.label(at, back), counts.get(start, 0)))
        return found


@dataclass(frozen=True, slots=True)
class Activity:
    """What happened, as charts and as the same numbers in a table."""

    charts: list[Chart]
    table: Table


def _quarters(at: datetime, back: int) -> str:
    return "" if at.minute % 15 else date_format(at, "TIME_FORMAT")


def _half_days(at: datetime, back: int) -> str:
    return "" if at.hour % 12 else date_format(at, "TIME_FORMAT" if at.hour else "MONTH_DAY_FORMAT")


def _tens(at: datetime, back: int) -> str:
    return "" if back % 10 != 4 else date_format(at, "MONTH_DAY_FORMAT")


PRECISIONS = {
    "minute": Precision(60, gettext_lazy("By minute"), 60, "TIME_FORMAT", _quarters),
    "hour": Precision(3600, gettext_lazy("By hour"), 48, "DATETIME_FORMAT", _half_days),
    "day": Precision(86400, gettext_lazy("By day"), 30, "DATE_FORMAT", _tens),
}


def precisions() -> dict[str, Precision]:
    """The choices of the charts, of those that are counted."""
    return {name: precision for name, precision in PRECISIONS.items() if precision.seconds in options.PRECISIONS}


def activity(counter: Counter, precision: Precision) -> Activity:
    """Charts of one counter: a round trip for each of five time-sliced counters."""
    series, now, tz = TimeSeries(), int(time.time()), timezone.get_current_timezone()

    def slots(what: str) -> list[Slot]:
        counts = dict(series.get_counter(f"{counter.activity}:{what}", precision.seconds))
        return precision.slots_of(counts, now, tz)

    created, read, deleted, flushed, flushes = map(slots, ("created", "read", "deleted", "flushed", "flushes"))
    sizes = [
        Slot(users.name, users.label, _mean(users.value, n.value)) for users, n in zip(flushed, flushes, strict=True)
    ]
    parts = [
        (_("Created"), created, _sum(created)),
        (_("Read"), read, _sum(read)),
        (_("Deleted"), deleted, _sum(deleted)),
        (_("Flushes"), flushes, _sum(flushes)),
        (_("Users flushed"), flushed, _sum(flushed)),
        (_("Users per flush"), sizes, _mean(_sum(flushed), _sum(flushes))),
    ]
    table = Table(
        [_("Time"), *(title for title, _slots, _total in parts)],
        [
            [row[0].name, *(grouped(slot.value) for slot in row)]
            for row in reversed(list(zip(*(slots for _title, slots, _total in parts), strict=True)))
        ],
    )
    return Activity([bar_chart(title, grouped(total), slots) for title, slots, total in parts], table)


def _sum(slots: Iterable[Slot]) -> int:
    return sum(slot.value for slot in slots)


def _mean(whole: int, parts: int) -> int:
    return round(whole / parts) if parts > 0 else 0
