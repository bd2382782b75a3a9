"""Finds out since when all has been well, or something has been wrong, as far as that is on record. The dashboard's
template has the sentence."""

from __future__ import annotations

import time
from contextlib import suppress

from ..buffer.client import client_of
from ..buffer.troubles import Trouble
from ..conf import options
from ..exceptions import CounterError
from ..maintenance.history import history
from ..maintenance.places import Place, at
from .problems import MAX_AGE, MAX_OVERDUE
from .report import Report


def well_since(report: Report) -> float | None:
    """Return when the last trouble ended, in seconds since 1970; None if there is none on record. This costs two round
    trips for each database or schema."""
    now = time.time()
    ends = [now - trouble.age for trouble in _troubles(report)]
    ends += [now - counter.mismatch_age for counter in report.counters if counter.mismatch_age is not None]
    for place in {counter.place for counter in report.counters}:
        ends += filter(None, (_last("recovered", place), _last("rejected", place)))
    return max(ends, default=None)


def wrong_since(report: Report) -> float | None:
    """Return when the oldest current problem began; None if that is not on record. This costs three round trips for
    each database or schema that is being recovered."""
    now = time.time()
    begins = [now - trouble.age - trouble.lasted for trouble in _troubles(report) if trouble.goes_on]
    begins += [now - counter.age for counter in report.counters if counter.age > MAX_AGE]
    begins += [now - counter.oldest_intent for counter in report.counters if counter.overdue > MAX_OVERDUE]
    for place in {counter.place for counter in report.counters if counter.recovering}:
        recovered = _last("recovered", place)
        begins += [began for began in (_last("declared", place), _last("recovery", place)) if began > recovered]
    with suppress(CounterError):
        if (down_since := client_of(options.CACHE_ALIAS).breaker.down_since) is not None:
            begins.append(now - time.monotonic() + down_since)
    return min(begins, default=None)


def _troubles(report: Report) -> list[Trouble]:
    """Return the trouble that processes have had with Redis, without single late replies."""
    found = report.outages.troubles if report.outages else ()
    return [trouble for trouble in found if trouble.kind != "slow" or trouble.lasted]


def _last(type: str, place: Place) -> float:
    """Return when the last event of a type was recorded at a place, or 0."""
    with suppress(CounterError), at(place):
        return max((event["timestamp"] for event in history.latest(1, type)), default=0)
    return 0
