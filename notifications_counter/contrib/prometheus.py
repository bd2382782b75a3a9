"""Metrics for Prometheus (the extra `prometheus`).

Each request reads them from Redis and the database. So any process of the site can answer, and they cover all
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

from ..databases.transactions import outside_transactions
from ..monitoring.status import CounterStatus, Status, look

PREFIX = "notifications_counter_"
LABELS = ["counter", "database", "schema"]

GAUGES: dict[str, tuple[str, Callable[[CounterStatus], float]]] = {
    "waiting_owners": ("Owners that wait for the flusher.", lambda c: c.waiting),
    "waiting_seconds": ("Age of the oldest change or request that waits for the flusher.", lambda c: c.age),
    "failing": ("Did the last run of the flusher fail?", lambda c: bool(c.failure)),
    "intents_in_flight": ("Intents that are announced to Redis and not confirmed.", lambda c: c.in_flight),
    "overdue_intents": ("Intents in flight for longer than HEAL_AFTER.", lambda c: c.overdue),
    "recovering": ("Is a recovery due or running? Until it begins, reads count rows.", lambda c: bool(c.recovery)),
    "set_aside": ("Owners whose count could not be stored.", lambda c: c.set_aside),
}


class CounterCollector(Collector):
    """Collects the state of all counters, in every database and schema. If Redis is unreachable, it does not raise:
    ``up`` is 0, and unknown values are left out."""

    def collect(self) -> Iterator[Metric]:
        """Yield each metric, with a sample for each counter at each place."""
        return _metrics(look())

    def describe(self) -> Iterator[Metric]:
        """Yield each metric without samples, so that registering the collector does not ask Redis."""
        return _metrics(Status([], [], []))


def _metrics(status: Status) -> Iterator[Metric]:
    up = GaugeMetricFamily(f"{PREFIX}up", "Could the state of the counter be read?", labels=LABELS)
    mismatched = CounterMetricFamily(
        f"{PREFIX}mismatched", "Wrong counts that walks and flushes have found.", labels=LABELS
    )
    gauges = {name: GaugeMetricFamily(PREFIX + name, about, labels=LABELS) for name, (about, _) in GAUGES.items()}
    for name, place, counter in (
        *((local.counter.name, local.place, None) for local in status.unreachable),
        *((counter.counter, counter.place, counter) for counter in status.counters),
    ):
        labels = [name, place.alias, place.schema or ""]
        up.add_metric(labels, counter is not None)
        if counter:
            mismatched.add_metric(labels, counter.mismatched)
            for gauge, (_, value) in GAUGES.items():
                gauges[gauge].add_metric(labels, value(counter))
    yield from (up, mismatched, *gauges.values())
    trouble = GaugeMetricFamily(f"{PREFIX}redis_trouble", "Had processes trouble with Redis in the last minute?")
    if status.counters:
        trouble.add_metric([], bool(status.trouble and status.trouble.goes_on))
    yield trouble


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
