"""Metrics for Prometheus (the extra `prometheus`). Any process of the site can answer, and for all of them: each
request reads the state from Redis and the database."""

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

from ..databases.isolation import outside_transactions
from ..monitoring.status import CounterStatus, Status, read_status
from ..upkeep.phases import Phase

PREFIX = "notifications_counter_"

METRICS: list[tuple[str, str, Callable[[CounterStatus], float]]] = [
    ("up", "Could the state of the counter be read?", lambda c: not c.error),
    ("wrong", "Wrong counts that walks have found.", lambda c: c.wrong),
    ("skipped", "How often a count could not be stored.", lambda c: c.skipped),
    ("waiting_owners", "Owners that wait for the flusher.", lambda c: c.waiting),
    ("waiting_seconds", "For how long the flusher's oldest work has waited.", lambda c: c.age),
    ("failing", "Did the last run of the flusher fail?", lambda c: bool(c.failure)),
    ("refuses_changes", "Does Redis refuse changes, as when it is full?", lambda c: bool(c.refusal)),
    ("intents_in_flight", "Intents that are announced to Redis and not confirmed.", lambda c: c.in_flight),
    ("overdue_intents", "Intents in flight for longer than HEAL_AFTER.", lambda c: c.overdue),
    (
        "new_generation",
        "Is a generation due, its walk running, or another declaration in force?",
        lambda c: c.phase not in (Phase.NORMAL, Phase.OFF),
    ),
]


class CounterCollector(Collector):
    """Collects the state of all counters, in every database and schema. If Redis is unreachable, it does not raise:
    ``up`` is 0, and unknown values are left out."""

    def collect(self) -> Iterator[Metric]:
        """Yield each metric, with a sample for each counter at each place."""
        return _metrics(read_status())

    def describe(self) -> Iterator[Metric]:
        """Yield each metric without samples, so that registering the collector does not ask Redis."""
        return _metrics(Status())


def _metrics(status: Status) -> Iterator[Metric]:
    for name, about, value in METRICS:
        kind = CounterMetricFamily if name in ("wrong", "skipped") else GaugeMetricFamily
        metric = kind(PREFIX + name, about, labels=["counter", "database", "schema"])
        for each in status.counters.values():
            if name == "up" or not each.error:
                metric.add_metric([each.counter, each.database, each.schema or ""], value(each))
        yield metric
    trouble = GaugeMetricFamily(f"{PREFIX}redis_trouble", "Did processes have trouble with Redis in the last minute?")
    if not all(each.error for each in status.counters.values()):
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
