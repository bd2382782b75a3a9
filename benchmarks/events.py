"""Counts the types of events, by their sets and by reading every event."""

from notifications_counter import events

from .bench import OURS, Report, race, size
from .rivals import empty

TYPES = 10


def count_types(report: Report, quick: bool) -> str:
    count = 20_000 if quick else 1_000_000
    empty()
    for first in range(0, count, 10_000):
        events.record_events({"type": f"type{n % TYPES}", "timestamp": n} for n in range(first, first + 10_000))
    assert events.count_types() == events.count_types(scan=True)
    calls = 20

    def sets() -> None:
        for _ in range(calls):
            events.count_types()

    does = {OURS: (sets, calls), "reading each event": (lambda: events.count_types(scan=True), 1)}
    found = race(does, rounds=3, about=f"count_types() of {size(count)}")
    return report.matrix("counting types of events", {count: found}, "events:", size)
