"""The measurements and the checks of the demo."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from django.contrib.auth import get_user_model
from django.core.management import CommandError
from django.db import connection
from django.db.models import Count

from notifications_counter.counters import all_counters, unread
from notifications_counter.models import Notification

from .traffic import KINDS

SAMPLES = 200


@dataclass(frozen=True)
class Verdict:
    """The count of an owner, from three sources."""

    counter: str
    user: object
    badge: int
    stored: int
    rows: int

    @property
    def right(self) -> bool:
        return self.badge == self.stored == self.rows


@dataclass
class Latencies:
    """The times of the badge and of the query that it replaces, measured in turn, in seconds."""

    badge: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)

    def sample(self, user) -> None:
        measure = [
            lambda: self.badge.append(_timed(lambda: unread.count(user))),
            lambda: self.rows.append(_timed(Notification.objects.filter(user=user, read_at=None).count)),
        ]
        # The second one finds the processor warmed up, so they take turns.
        for one in measure if len(self.rows) % 2 else reversed(measure):
            one()

    def __str__(self) -> str:
        badge, rows = (statistics.median(seconds) for seconds in (self.badge, self.rows))
        return f"{_time(badge)}; COUNT(*) takes {_time(rows)}, {rows / badge:.1f} ×"


@dataclass
class Outcome:
    done: Counter = field(default_factory=Counter)  # by the visitors
    seconds: float = 0
    kills: int = 0
    kills_in_batch: int = 0
    latencies: dict[int, Latencies] = field(default_factory=dict)  # by the number of rows
    verdicts: list[Verdict] = field(default_factory=list)
    over_http: dict[Verdict, int] = field(default_factory=dict)
    trouble: str = ""

    @property
    def wrong(self) -> list[Verdict]:
        return [
            verdict
            for verdict in self.verdicts
            if not verdict.right or self.over_http.get(verdict, verdict.rows) != verdict.rows
        ]

    @property
    def good(self) -> bool:
        return not self.wrong and not self.done["failed"]

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
            yield f"a badge of {number:,} rows", str(latencies)

    def sentence(self) -> str:
        wrong = f"{len(self.wrong):,} of {len(self.verdicts):,} badges are wrong"
        right = f"all {len(self.verdicts):,} badges are right"
        return f"The flusher was killed {self.kills} times under traffic, and {wrong if self.wrong else right}."

    def complaints(self) -> Iterator[str]:
        for verdict in self.wrong[:20]:
            over_http = self.over_http.get(verdict, "not asked")
            yield (
                f"{verdict.user}, {verdict.counter}: COUNT(*) {verdict.rows}, badge {verdict.badge}, "
                f"stored {verdict.stored}, over HTTP {over_http}"
            )
        if self.done["failed"]:
            yield self.trouble


def drain(seconds: float = 20) -> None:
    """Flush until nothing waits in Redis."""
    deadline = time.monotonic() + seconds
    while any(s.pending or s.flushing or s.intents or s.dirty for s in _shards()):
        if time.monotonic() > deadline:
            raise CommandError(f"Not drained after {seconds:.0f} seconds: {_shards()}")
        for counter in all_counters():
            counter.heal()
            counter.flush()


def latencies(numbers: Iterable[int]) -> dict[int, Latencies]:
    """Measure the badges of new users with these numbers of unread notifications, in turn."""
    users = {number: get_user_model().objects.create_user(f"reader of {number}") for number in numbers}
    for number, user in users.items():
        Notification.objects.bulk_create((Notification(user=user, title="x") for _ in range(number)), batch_size=10_000)
    drain()
    found = {number: Latencies() for number in users}
    for _ in range(SAMPLES):
        for number, user in users.items():
            found[number].sample(user)
    return found


def batch_under_way() -> bool:
    return any(s.flushing for s in _shards())


def _shards() -> list:
    return [shard.status for counter in all_counters() for shard in counter.status()]


def verdicts(users) -> list[Verdict]:
    """Return a verdict for each counter and owner. All are right if nothing is in flight and everything is flushed."""
    found = []
    for counter in all_counters():
        names = [field.attname for field in counter.total_fields]
        stored = _by_owner(counter, counter.totals.objects.values_list(*names, counter.field))
        counted = Notification.objects.filter(counter.q).order_by().values_list(*counter.owner_attnames)
        rows = _by_owner(counter, counted.annotate(Count("pk")))
        kinds = [(user.pk, kind) for user in users for kind in KINDS]
        owners = list(map(counter.key, kinds if counter.has_several_columns else users))
        badges = counter.counts(owners)
        found += [Verdict(counter.name, o, badges[o], stored.get(o, 0), rows.get(o, 0)) for o in owners]
    return found


def _by_owner(counter, rows) -> dict:
    return {counter.key_of(key): count for *key, count in rows}


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
