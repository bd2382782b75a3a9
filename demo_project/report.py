"""The measurements and the checks of the demo."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import Count

from notifications_counter.counters import all_counters, unread, unread_by_kind
from notifications_counter.models import Notification

from .traffic import KINDS

SAMPLES = 200


class Verdict(NamedTuple):
    """The count of an owner, from three sources."""

    counter: str
    owner: object
    badge: int
    stored: int
    rows: int


@dataclass
class Outcome:
    done: Counter = field(default_factory=Counter)  # by the visitors
    seconds: float = 0
    kills: int = 0
    kills_in_batch: int = 0
    latencies: dict[int, str] = field(default_factory=dict)  # by the number of rows
    verdicts: list[Verdict] = field(default_factory=list)
    over_http: dict[Verdict, int] = field(default_factory=dict)
    trouble: str = ""

    @property
    def wrong(self) -> list[Verdict]:
        return [v for v in self.verdicts if {v.badge, v.stored, self.over_http.get(v, v.rows)} != {v.rows}]

    def lines(self) -> Iterator[tuple[str, str]]:
        requests = self.done["requests"]
        in_process = ", which answers without a round trip" if connection.vendor == "sqlite" else ""
        yield "database", f"{connection.display_name}{in_process}"
        yield "requests", f"{requests:,} ({requests / self.seconds:,.0f} a second), {self.done['failed']:,} failed"
        yield "notifications", f"{self.done['notifications']:,}"
        yield "flusher killed", f"{self.kills} times, {self.kills_in_batch} of them in the middle of a batch"
        yield "badges compared with the rows", f"{len(self.verdicts):,}, {len(self.over_http)} of them over HTTP"
        yield "badges wrong", f"{len(self.wrong):,}"
        for number, latencies in self.latencies.items():
            yield f"a badge of {number:,} rows", latencies

    def conclusion(self) -> Iterator[str]:
        wrong = f"{len(self.wrong):,} of {len(self.verdicts):,} badges are wrong"
        right = f"all {len(self.verdicts):,} badges are right"
        yield f"The flusher was killed {self.kills} times under traffic, and {wrong if self.wrong else right}."
        for verdict in self.wrong[:20]:
            yield f"{verdict}, over HTTP {self.over_http.get(verdict, 'not asked')}"
        if self.done["failed"]:
            yield self.trouble


def drain() -> None:
    """Flush what waits, once no flusher runs and nobody writes."""
    for counter in all_counters():
        counter.heal(seconds=60)
        counter.flush()


def latencies(numbers: Iterable[int]) -> dict[int, str]:
    """Time the badges of new users with these numbers of unread notifications, and the query that a badge replaces."""
    users = {number: get_user_model().objects.create_user(f"reader of {number}") for number in numbers}
    for number, user in users.items():
        Notification.objects.bulk_create((Notification(user=user, title="x") for _ in range(number)), batch_size=10_000)
    drain()
    taken: dict[int, tuple[list[float], list[float]]] = {number: ([], []) for number in users}
    for turn in range(SAMPLES):
        for number, user in users.items():
            badge, rows = taken[number]
            ways = [
                (badge, lambda user=user: unread.count(user)),
                (rows, Notification.objects.filter(user=user, read_at=None).count),
            ]
            # The second one finds the processor warmed up, so they take turns.
            for seconds, call in ways if turn % 2 else ways[::-1]:
                seconds.append(_timed(call))
    medians = {number: tuple(map(statistics.median, both)) for number, both in taken.items()}
    return {
        number: f"{badge * 1000:.2f} ms; COUNT(*) takes {rows * 1000:.2f} ms, {rows / badge:.1f} ×"
        for number, (badge, rows) in medians.items()
    }


def batch_under_way() -> bool:
    return any(shard.status.flushing for counter in all_counters() for shard in counter.status())


def verdicts(users) -> list[Verdict]:
    """Return a verdict for each counter and owner. All are right if nothing is in flight and everything is flushed."""
    found = []
    by_kind = list(product([user.pk for user in users], KINDS))
    for counter, owners in ((unread, [(user.pk,) for user in users]), (unread_by_kind, by_kind)):
        names = ["user", "kind"][: len(owners[0])]
        badges = counter.counts([owner if len(owner) > 1 else owner[0] for owner in owners]).values()
        stored = _by_owner(counter.totals.objects.values_list(*names, "unread_count"))
        rows = _by_owner(Notification.objects.unread().order_by().values_list(*names).annotate(Count("pk")))
        for owner, badge in zip(owners, badges, strict=True):
            found.append(Verdict(counter.name, owner, badge, stored.get(owner, 0), rows.get(owner, 0)))
    return found


def _by_owner(rows) -> dict[tuple, int]:
    return {tuple(owner): count for *owner, count in rows}


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
