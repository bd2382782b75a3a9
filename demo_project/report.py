"""The measurements and the checks of the demo."""

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import NamedTuple

from django.contrib.auth import get_user_model
from django.db.models import Count

from notifications_counter.counters import all_counters, unread, unread_by_kind
from notifications_counter.models import Notification
from notifications_counter.monitoring.status import read_counter

from .traffic import KINDS

SAMPLES = 200


class Verdict(NamedTuple):
    """The count of an owner, from three sources, and perhaps what the site shows."""

    counter: str
    owner: object
    badge: int
    stored: int
    rows: int
    over_http: int | None = None

    @property
    def is_wrong(self) -> bool:
        return {self.badge, self.stored, self.over_http} - {None} != {self.rows}


def drain() -> None:
    """Flush what waits, once no flusher runs and nobody writes."""
    for counter in all_counters():
        counter.heal(seconds=60)
        counter.flush()


def called_wrong() -> int:
    """Return how many counts the flusher has found wrong, for which the demo gives no reason."""
    return sum(read_counter(counter).wrong for counter in all_counters())


def latencies(numbers: Iterable[int]) -> dict[int, str]:
    """Time the badges of new users with these numbers of unread notifications, and the query that a badge replaces."""
    found = {}
    for number in numbers:
        user = get_user_model().objects.create_user(f"reader of {number}")
        Notification.objects.bulk_create((Notification(user=user, title="x") for _ in range(number)), batch_size=10_000)
        drain()
        badge = _median(partial(unread.count, user))
        query = _median(Notification.objects.filter(user=user, read_at=None).count)
        found[number] = f"{badge:.2f} ms; COUNT(*) takes {query:.2f} ms, {query / badge:.1f} ×"
    return found


def _median(call: Callable[[], int]) -> float:
    """Return the milliseconds of a call. Half of many calls find the processor warmed up."""
    taken = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1000


def batch_under_way() -> bool:
    return any(counter.buffer.status().flushing for counter in all_counters())


def verdicts(users) -> list[Verdict]:
    """Return a verdict for each counter and owner. All are right if nothing is in flight and everything is flushed."""
    keys = [user.pk for user in users]
    return compare(unread, keys, "user") + compare(unread_by_kind, list(product(keys, KINDS)), "user", "kind")


def compare(counter, owners: list, *names: str) -> list[Verdict]:
    def by_owner(rows) -> dict:
        return {tuple(owner) if names[1:] else owner[0]: count for *owner, count in rows}

    stored = by_owner(counter.totals.objects.values_list(*names, "unread_count"))
    rows = by_owner(Notification.objects.unread().order_by().values_list(*names).annotate(Count("pk")))
    badges = counter.counts(owners)
    return [Verdict(counter.name, one, badges[one], stored.get(one, 0), rows.get(one, 0)) for one in owners]
