"""What the counters read, beside what GROUP BY finds."""

from collections.abc import Iterable
from typing import Any

from notifications_counter.counters import Counter
from tests.support import truth

from .counters import COUNTERS

TEXTS = [
    "likes", "Likes", "likes ", "", " ", "é", "e\u0301", "tab\there", 'a","b', "[1,2]", "\\", "\n", "1", "{用户}", "%s",
]  # fmt: skip
"""What must not be taken for another text, or for syntax."""


def grouped(counts: dict[Any, int]) -> dict[Any, dict[Any, int]]:
    """What each group of owners has below it."""
    groups: dict[Any, dict[Any, int]] = {}
    for (*first, last), n in counts.items():
        groups.setdefault(tuple(first), {}).update({last: n} if n else {})
    return groups


def assert_counted(*counters: Counter, also: Iterable[Any] = ()) -> None:
    """Every way of reading gives what GROUP BY finds, and 0 for the others."""
    for counter in counters or COUNTERS:
        right = dict.fromkeys(also, 0) | truth(counter)
        for _ in range(2):  # the first keeps what the second reads
            assert counter.counts(right) == right, counter.name
            assert {owner: counter.count(owner) for owner in right} == right, counter.name
        for first, below in grouped(right).items():
            assert counter.breakdown(first if len(first) > 1 else first[0]) == below, counter.name


def assert_stored(*counters: Counter) -> None:
    """Once healed and flushed, the stored totals are the same."""
    for counter in counters or COUNTERS:
        counter.heal()
        counter.flush()
        names = [field.attname for field in counter.total_fields]
        found = counter.totals._base_manager.values_list(*names, counter.field)
        right = {owner: n for owner, n in truth(counter).items() if n}
        assert {tuple(owner): n for *owner, n in found if n} == right, counter.name
        assert counter.recount(dry_run=True).wrong == 0, counter.name
        assert not counter.status().row.skipped
    assert_counted(*counters)
