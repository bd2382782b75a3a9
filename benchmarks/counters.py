"""Counters of the models with several counters or owner columns."""

from django.db.models import Q

from notifications_counter.counters import Counter

NUMBERS = {1: "OneCounter", 2: "TwoCounters", 4: "FourCounters"}
"""Models by the number of their counters."""


def counters_of(name: str, number: int) -> list[Counter]:
    """Declare counters that store their totals in the same rows."""
    return [
        Counter(
            f"{name}{i}",
            source=f"benchmarks.{name}",
            owner="user",
            condition=Q(read_at__isnull=True),
            totals=f"benchmarks.{name}Totals",
            field=f"count{i}",
            batch_field=f"batch{i}",
        )
        for i in range(number)
    ]


COUNTERS = {number: counters_of(name, number) for number, name in NUMBERS.items()}

COLUMNS = [
    Counter(
        name,
        source=f"benchmarks.{name}",
        owner=owner,
        condition=Q(read=False),
        totals=f"benchmarks.{name}Totals",
        field="unread_count",
    )
    for name, owner in (
        ("OneColumn", "user"),
        ("TwoColumns", ("user", "conversation")),
        ("ThreeColumns", ("user", "conversation", "device")),
    )
]
"""Counters with owners of one, two and three columns."""
