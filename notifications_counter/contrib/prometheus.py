"""Metrics for Prometheus (the extra `prometheus`).

Each request reads them from Redis and the database. So any process of the site can answer, and totals cover all
processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ..buffer.troubles import KINDS
from ..databases.transactions import outside_transactions
from ..maintenance.places import Place
from ..monitoring.report import Report, look
from ..monitoring.state import CounterReport

PREFIX = "notifications_counter_"
LABELS = ["counter", "database", "schema"]

Value = Callable[[CounterReport], float]

GAUGES: dict[str, tuple[str, Value]] = {
    "backlog_owners": ("Owners with a change that waits to be flushed.", lambda c: c.backlog_owners),
    "backlog_age_seconds": (
        "Age of the oldest change that waits to be flushed, or owner that waits for a recount.",
        lambda c: c.backlog_age,
    ),
    "dirty_owners": ("Owners that wait for a recount; their rows are counted.", lambda c: c.dirty_owners),
    "intents_in_flight": ("Intents that are announced to Redis and not confirmed.", lambda c: c.intents),
    "overdue_intents": ("Intents in flight for longer than HEAL_AFTER.", lambda c: c.overdue),
    "oldest_intent_age_seconds": ("Age of the oldest intent in flight.", lambda c: c.oldest_intent),
    "recovering_shards": (
        "Shards whose recovery is in progress or about to start: the first read of each owner counts rows.",
        lambda c: len(c.recovering),
    ),
    "epoch": ("Grows with each recovery.", lambda c: c.epoch),
    "recount_requests": ("Owners to recount, written while Redis was unreachable.", lambda c: c.requests),
    "recount_requests_age_seconds": ("Age of the oldest recount request.", lambda c: c.requests_age),
    "rejected_members": ("Members that could not be stored and are kept for inspection.", lambda c: c.rejected),
}

TOTALS: dict[str, tuple[str, Value]] = {
    "batches": ("Batches flushed.", lambda c: c.stats.batches),
    "flushed_owners": ("Owners flushed, once for each batch.", lambda c: c.stats.flushed),
    "flush_seconds": ("Time that it took to flush them.", lambda c: c.stats.flush_ms / 1000),
    "recounted_owners": ("Owners recounted.", lambda c: c.stats.recounted),
    "corrected_owners": ("Counts that a recount has corrected.", lambda c: c.stats.corrected),
    "verified": ("Owners compared with the rows by the flusher, once for each time.", lambda c: c.verified),
    "mismatched": ("How many of them had a wrong count, which was corrected.", lambda c: c.mismatched),
    "restored_owners": ("Counts that a recovery has corrected.", lambda c: c.stats.restored),
}


class CounterCollector(Collector):
    """Collects the state of all counters, in every database and schema. If Redis is unreachable, it does not raise:
    ``up`` is 0, and unknown values are left out."""

    def collect(self) -> Iterator[Metric]:
        """Yield each metric, with a sample for each counter at each place."""
        return _metrics(look())

    def describe(self) -> Iterator[Metric]:
        """Yield each metric without samples, so that registering the collector does not ask Redis."""
        return _metrics(Report([], [], [], None))


def _metrics(report: Report) -> Iterator[Metric]:
    up = GaugeMetricFamily(f"{PREFIX}up", "Could the state of the counter be read?", labels=LABELS)
    for counter in report.counters:
        up.add_metric(_labels(counter.counter, counter.place), 1)
    for local in report.unreachable:
        up.add_metric(_labels(local.counter.name, local.place), 0)
    yield up
    for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, TOTALS)):
        for name, (about, value) in table.items():
            metric = kind(PREFIX + name, about, labels=LABELS)
            for counter in report.counters:
                metric.add_metric(_labels(counter.counter, counter.place), value(counter))
            yield metric
    number = CounterMetricFamily(f"{PREFIX}redis_outages", "Times that a process was without Redis.", labels=[])
    seconds = CounterMetricFamily(
        f"{PREFIX}redis_outage_seconds", "Time from a failure to the next answer, all processes added up.", labels=[]
    )
    trouble = GaugeMetricFamily(f"{PREFIX}redis_trouble", "Has a process had it in the last minute?", labels=["kind"])
    if report.outages is not None:
        for name in sorted({*KINDS} - {"lost"}):
            trouble.add_metric([name], any(found.kind == name for found in report.troubles))
        number.add_metric([], report.outages.number)
        seconds.add_metric([], report.outages.seconds)
    yield number
    yield seconds
    yield trouble


def _labels(counter: str, place: Place) -> list[str]:
    return [counter, place.alias, place.schema or ""]


_registry = CollectorRegistry()
_registry.register(CounterCollector())


@login_not_required
@outside_transactions
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics of the counters; in a tenant's request, only that tenant's. The view is public. Restrict
    access to it in your web server."""
    encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encoder(_registry), content_type=content_type)
