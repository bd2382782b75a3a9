"""What the counters read, beside what COUNT(*) and SUM() find."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

from notifications_counter.counters import Counter
from notifications_counter.models import DoubtRequest
from tests.support import doubted, entries, truth

from .counters import COUNTERS


def assert_counted(owners: Iterable[Any], *counters: Counter, doubt: bool = False) -> None:
    """Every read is right. Once the transaction is over, nobody is in doubt, unless ``doubt`` allows it, or the counter
    sums, which MariaDB may clip."""
    owners = list(owners)
    for counter in counters or COUNTERS:
        right = dict.fromkeys((key for key in owners if fits(counter, key)), 0) | truth(counter)
        assert counter.counts(right) == right, counter.name
        for key in list(right)[:2]:
            assert counter.count(key) == right[key], counter.name
        in_doubt = doubt or (counter.sum and connection.vendor == "mysql")
        if not in_doubt and not connection.in_atomic_block:
            assert doubts(counter) == 0, counter.name


def doubts(counter: Counter) -> int:
    """How many owners are in doubt, or will be; more than any if everyone is."""
    status, waiting = counter.buffer.status(), DoubtRequest.objects.filter(counter=counter.name).count()
    everyone = 0 if status.ready else 10**6
    return everyone + waiting + len(doubted(counter)) + status.intents


def fits(counter: Counter, key: Any) -> bool:
    """Whether it could be an owner of this counter."""
    try:
        return counter.pk_of(key) == key
    except ValueError:
        return False


def heal(*counters: Counter) -> None:
    with entries(HEAL_AFTER=0):
        for counter in counters or COUNTERS:
            counter.heal()
            counter.flush()


def assert_stored(owners: Iterable[Any], *counters: Counter) -> None:
    """Once healed and flushed, the stored totals are right as well."""
    heal(*counters)
    owners = list(owners)
    for counter in counters or COUNTERS:
        counter.flush()
        names = [field.attname for field in counter.total_fields]
        found = counter.totals._base_manager.values_list(*names, counter.field)
        stored = {tuple(owner) if len(names) > 1 else owner[0]: count for *owner, count in found if count}
        assert stored == {key: count for key, count in truth(counter).items() if count}, counter.name
    assert_counted(owners, *counters)


@contextmanager
def named(case: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"… in the case {case!r}")
        raise
