"""The activity of a counter: how much the flusher has stored, by minute, hour or day."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..timeseries import TimeSeries
from .display import Table, grouped, moment, styled
from .history import history
from .status import MAX_MISSED_SECONDS, CounterStatus

MAX_LATE_EVENTS = 30
"""How many events of a late flusher the charts show."""


class Precision(NamedTuple):
    """A choice of precision for the charts: the length of a slice in ``seconds``, the ``title`` of the choice, the
    number of ``slots``, and the ``span`` of all, the styles of the ``name`` of a slice, and those of the
    ``labels`` on the axis, by the number of the minute, hour or day, which ``unit`` names."""

    seconds: int
    title: object
    slots: int
    span: object
    name: str
    unit: str
    labels: dict[int, str]


MINUTES = dict.fromkeys(range(0, 60, 10), "H:i")
HOURS = {0: "MONTH_DAY_FORMAT", 8: "H:i", 16: "H:i"}
DAYS = {1: "MONTH_DAY_FORMAT"} | dict.fromkeys(range(6, 31, 5), "j")

SPANS = gettext_lazy("last 60 minutes"), gettext_lazy("last 48 hours"), gettext_lazy("last 31 days")

PRECISIONS = {
    "minute": Precision(60, gettext_lazy("By minute"), 60, SPANS[0], "H:i", "minute", MINUTES),
    "hour": Precision(3600, gettext_lazy("By hour"), 48, SPANS[1], "MONTH_DAY_FORMAT H:i", "hour", HOURS),
    "day": Precision(86400, gettext_lazy("By day"), 31, SPANS[2], "MONTH_DAY_FORMAT", "day", DAYS),
}


LOOKS = {
    "incomplete": gettext_lazy("incomplete"),
    "late": gettext_lazy("stored late"),
    "unrecorded": gettext_lazy("not recorded"),
}
"""How a slice may look, and what is said of it."""


def activity(counter: CounterStatus, precision: Precision) -> dict[str, Any]:
    """Return the activity of a counter, in four round trips: a table, newest slice first, without numbers from before
    the first record; for the charts of its columns the totals by title, the span of time, the labels of the axis as
    JSON, what to say if all are empty, the net change, the separator of thousands, and the legend."""
    last = int(time.time()) // precision.seconds * precision.seconds
    starts = range(last, last - precision.slots * precision.seconds, -precision.seconds)
    # Slices of a day are days in UTC. West of Greenwich, they would be named after the previous day.
    tz = timezone.get_current_timezone() if precision.seconds < 86400 else UTC
    times = [datetime.fromtimestamp(start, tz) for start in starts]
    found = {
        title: dict(TimeSeries().get_counter(f"{counter.counter}:{what}", precision.seconds))
        for title, what in ((_("Added"), "added"), (_("Removed"), "removed"))
    }
    columns = {title: [counts.get(start, 0) for start in starts] for title, counts in found.items()}
    late = late_slices(counter.counter, precision.seconds)
    known = late.union(*found.values())
    events = [event["timestamp"] for event in history.oldest(1)]
    recorded_since = min([time.time(), *events, *(start + precision.seconds for start in known)])
    waited = counter.age if counter.age > MAX_MISSED_SECONDS else 0
    complete_until = counter.off_since or time.time() - waited
    looks = dict.fromkeys(late, "late")
    looks |= {start: "unrecorded" for start in starts if start + precision.seconds < recorded_since}
    looks |= {start: "incomplete" for start in starts if start + precision.seconds > complete_until}
    rows = [
        row(styled(at, precision.name), looks.get(start, ""), counts)
        for start, at, *counts in zip(starts, times, *columns.values(), strict=True)
    ]
    seen = [looks[start] for start in starts if start in looks]
    if seen.count("incomplete") == 1 and not any(column[0] for column in columns.values()):
        seen.remove("incomplete")  # it has no bar
    legend = [(look, str(text)) for look, text in LOOKS.items() if look in seen]
    if seen.count("incomplete") > 1:
        end = datetime.fromtimestamp(complete_until, tz)
        legend[0] = "late", _("waiting since %s") % styled(end, precision.name)
    added, removed = map(sum, columns.values())
    net = f"+{grouped(added - removed)}" if added > removed else grouped(added - removed)
    is_young, is_empty = "unrecorded" in seen, not any(map(sum, columns.values()))
    return {
        "table": Table([_("Time"), *columns], rows),
        "span": _("since %s") % moment(recorded_since) if is_young else precision.span,
        "nothing": is_empty and (_("Nothing recorded yet") if is_young else _("Nothing in this time")),
        "net": net,
        "totals": {title: grouped(sum(column)) for title, column in columns.items()},
        "labels": json.dumps([label(at, precision) for at in times]),
        "separator": grouped(1000)[1:-3],
        "legend": legend,
    }


def row(name: str, look: str, counts: Sequence[int]) -> list[str]:
    """Return a slice as a line of the table."""
    if look:
        name = format_html('{} <span class="nc-{}">{}</span>', name, look, LOOKS[look])
    return [name, *("–" if look == "unrecorded" else grouped(count) for count in counts)]


def label(at: datetime, precision: Precision) -> str:
    """Return the label of a slice on the axis, which may be empty."""
    return styled(at, precision.labels.get(getattr(at, precision.unit), ""))


def late_slices(counter: str, seconds: int) -> set[int]:
    """Return when the slices of this length begin whose changes the flusher has stored late, with those of others."""
    found = set[int]()
    for event in history.latest(MAX_LATE_EVENTS, "late"):
        end = int(event["timestamp"])
        slices = range((end - 60 * event["minutes"]) // seconds * seconds, end + 1, seconds)
        if event["counter"] == counter and len(slices) > 1:
            found.update(slices)
    return found
