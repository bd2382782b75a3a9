"""The samples of docs/howto/monitor.md that trace Redis, with the packages that they are for."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.signals import redis_called
from tests.docs.test_docs import FENCE, page, section
from tests.support import entries

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.usefixtures("healed")]


@pytest.fixture
def connect() -> Iterator[Any]:
    """A function that runs a sample. Its receiver is gone after the test."""
    before = redis_called.receivers
    redis_called.receivers = []
    namespace: dict[str, Any] = {"__name__": "sample"}

    def run(heading: str) -> None:
        [(_, code)] = FENCE.findall(section(page("howto/monitor.md"), heading))
        exec(code, namespace)

    yield run
    redis_called.receivers = before


@pytest.fixture(autouse=True)
def _scripts_known(healed: Any, alice: Any) -> None:
    """A server that does not know a script is sent it in a second call."""
    act(alice)


def act(user: Any) -> None:
    with transaction.atomic():
        Notification.objects.create(user=user, title="x")
    unread.counts([user])


def test_opentelemetry(connect, alice):
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    connect("OpenTelemetry")
    with provider.get_tracer("site").start_as_current_span("request") as request:
        act(alice)
    *spans, _ = exporter.get_finished_spans()
    assert [span.name for span in spans][:3] == ["announce", "confirm", "MGET"]
    for span in spans:
        assert span.parent.span_id == request.context.span_id
        assert span.start_time < span.end_time


def test_sentry(connect, alice):
    sentry_sdk = pytest.importorskip("sentry_sdk")
    events: list[Any] = []
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        traces_sample_rate=1.0,
        default_integrations=False,
        before_send_transaction=lambda event, _: events.append(event),
    )
    connect("Sentry")
    with sentry_sdk.start_transaction(name="request"):
        act(alice)
    sentry_sdk.init(default_integrations=False)  # those would patch Django for the tests to come
    spans = [span for span in events[0]["spans"] if span["op"] == "db.redis"]
    assert [span["description"] for span in spans][:3] == ["announce", "confirm", "MGET"]
    assert all(span["start_timestamp"] < span["timestamp"] for span in spans)


def test_what_the_signal_says(alice, unreachable_redis):
    calls: list[dict[str, Any]] = []

    def note(**about: Any) -> None:
        calls.append(about)

    redis_called.connect(note)
    try:
        with entries(RETRY_AFTER=0):
            unread.count(alice)
    finally:
        redis_called.disconnect(note)
    assert (calls[0]["name"], calls[0]["cache"], calls[0]["error"] is None) == ("MGET", "default", False)
    assert calls[0]["started"] <= calls[0]["ended"]
