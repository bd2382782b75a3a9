"""What the counters read, beside what GROUP BY finds."""

from typing import Any

from notifications_counter.counters import Counter
from notifications_counter.upkeep.phases import state_row
from tests.statements import support as statements
from tests.support import truth

TEXTS = [
    "likes", "Likes", "likes ", "", " ", "é", "e\u0301", "tab\there", 'a","b', "[1,2]", "\\", "\n", "1", "{用户}", "%s",
]  # fmt: skip
"""What must not be taken for another text, or for syntax."""


def assert_stored(*counters: Counter) -> None:
    """Once healed and flushed, the stored totals are what GROUP BY finds, as is what each way of reading gives."""
    for counter in counters:
        statements.assert_stored([], counter)
        assert counter.recount(dry_run=True).wrong == 0, counter.name
        assert not state_row(counter).get().skipped
        right = truth(counter)
        assert {owner: counter.count(owner) for owner in right} == right, counter.name
        groups: dict[Any, dict[Any, int]] = {}
        for (*first, last), number in right.items():
            groups.setdefault(tuple(first), {}).update({last: number} if number else {})
        for first, below in groups.items():
            assert counter.breakdown(first if len(first) > 1 else first[0]) == below, counter.name
