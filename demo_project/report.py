"""What the demo measures and checks."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from django.core.management import CommandError
from django.db.models import Count

from notifications_counter.counters import all_counters, unread
from notifications_counter.models import Notification

from .traffic import KINDS


@dataclass(frozen=True)
class Verdict:
    """A count of one user, or of one user and kind, told three ways."""

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
    """The badge and the query that it replaces, measured in alternation. In seconds."""

    badge: list[float] = field(default_factory=list)
    rows: list[float] = field(default_factory=list)

    def sample(self, user) -> None:
        measure = [
            lambda: self.badge.append(_timed(lambda: unread.count(user))),
            lambda: self.rows.append(_timed(Notification.objects.filter(user=user, read_at=None).count)),
        ]
        # The second finds the processor warmed up: each has its turn.
        for one in measure if len(self.rows) % 2 else reversed(measure):
            one()

    @property
    def ratio(self) -> float:
        """How many times as long one COUNT(*) takes, at the median."""
        return statistics.median(self.rows) / statistics.median(self.badge)


@dataclass
class Outcome:
    done: Counter = field(default_factory=Counter)  # what the visitors did
    seconds: float = 0
    kills: int = 0
    kills_in_batch: int = 0
    flushes: int = 0
    latencies: Latencies = field(default_factory=Latencies)
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
        yield "requests", f"{requests:,} ({requests / self.seconds:,.0f}/s)"
        yield "requests failed", f"{self.done['failed']:,}"
        yield "notifications", f"{self.done['notifications']:,}"
        yield "flushes", f"{self.flushes:,}"
        yield "flusher killed", f"{self.kills} ({self.kills_in_batch} in the middle of a batch)"
        yield "badges checked", f"{len(self.verdicts):,} ({len(self.over_http)} also over HTTP)"
        yield "badges wrong", f"{len(self.wrong):,}"
        yield "badge", _describe(self.latencies.badge)
        rows = statistics.mean(verdict.rows for verdict in self.verdicts if verdict.counter == unread.name)
        yield f"COUNT(*) of {rows:.0f} rows", _describe(self.latencies.rows)
        yield "COUNT(*) ÷ badge, medians", f"{self.latencies.ratio:.1f}"

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


def flushes() -> int:
    """Batches cut since the last recovery."""
    return sum(s.batch % 10**9 for s in _shards())


def batch_under_way() -> bool:
    return any(s.flushing for s in _shards())


def _shards() -> list:
    return [shard.status for counter in all_counters() for shard in counter.status()]


def verdicts(users) -> list[Verdict]:
    """One for each counter and user; all are right when nothing is in flight and everything is flushed."""
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


def _describe(seconds: list[float]) -> str:
    p99 = statistics.quantiles(seconds, n=100)[98]
    return f"median {statistics.median(seconds) * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms"
