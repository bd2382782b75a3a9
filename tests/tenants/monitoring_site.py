"""What is seen of a site with a schema for each tenant, from outside and inside of them. Run by ``test_tenants.py``."""

import re
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib import admin
from django.contrib.messages.storage.cookie import CookieStorage
from django.core.management import call_command
from django.db import connection
from django.http import HttpResponse
from django.test import RequestFactory
from django_tenants.utils import schema_context

from notifications_counter import events, tasks
from notifications_counter.checks.server import check_redis
from notifications_counter.counters import unread
from notifications_counter.events import EventLog
from notifications_counter.maintenance.history import history
from notifications_counter.models import Dashboard, Notification
from notifications_counter.monitoring.report import look
from notifications_counter.timeseries import TimeSeries, get_counter, update_counter
from tests.support import entries, stored

from .models import Client
from .site import NAMES, User, check, tenants, users  # noqa: F401
from .streams import Listener, each_hears_its_own, listen, short_waits

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("tenants")]


@pytest.fixture
def waiting() -> None:
    """One user of blue waits to be flushed, two of green, and nobody of red."""
    call_command("flush_counters", verbosity=0)
    for name, number in (("blue", 1), ("green", 2)):
        with schema_context(name):
            Notification.objects.bulk_create(Notification(user=user, title="new") for user in users()[:number])


def dashboard(method: str = "GET", at: str = "", **data: str) -> HttpResponse:
    """The page as a user sees it who may do everything in this schema."""
    request = getattr(RequestFactory(), method.lower())(f"/?at={at}", data)
    request.user = User(username="root", is_superuser=True)
    request._messages = CookieStorage(request)  # type: ignore[attr-defined]
    response: Any = admin.site._registry[Dashboard].changelist_view(request)
    return response.render() if hasattr(response, "render") else response


def shown(response: HttpResponse) -> str:
    html = response.content.decode()
    return html[html.index('<div id="content-main"') :]


def test_a_report_shows_all_schemas_from_outside_and_one_inside(waiting: None) -> None:
    seen = {(report.counter, report.place.schema): report.backlog_owners for report in look([unread]).counters}
    assert seen == {("unread", "blue"): 1, ("unread", "green"): 2, ("unread", "red"): 0}
    with schema_context("blue"):
        numbers = look([unread]).as_json()["counters"]
        assert [(name, about["schema"], about["backlog_owners"]) for name, about in numbers.items()] == [
            ("unread", "blue", 1)
        ]


def test_metrics_name_the_schema(waiting: None) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    from notifications_counter.contrib.prometheus import metrics

    def backlog() -> dict[str, float]:
        text = metrics(RequestFactory().get("/")).content.decode()
        return {
            sample.labels["schema"]: sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "notifications_counter_backlog_owners" and sample.labels["counter"] == "unread"
        }

    assert backlog() == {"blue": 1, "green": 2, "red": 0}
    with schema_context("green"):
        assert backlog() == {"green": 2}


def test_the_health_check_looks_at_all_schemas(waiting: None) -> None:
    pytest.importorskip("health_check.base")
    from health_check.exceptions import ServiceWarning

    from notifications_counter.contrib.health import Counters

    def warning() -> str:
        try:
            async_to_sync(Counters(max_age=-1).run)()
        except ServiceWarning as error:
            return str(error)
        return ""

    assert all(f"unread ({name})" in warning() for name in NAMES)
    with schema_context("blue"):
        assert warning().startswith("unread")
        assert not any(name in warning() for name in NAMES)


def test_the_dashboard_outside_of_tenants_shows_each(waiting: None) -> None:
    page = shown(dashboard())
    assert all(f"at=default%2F{name}" in page for name in NAMES)
    assert "in default/blue" in page
    page = shown(dashboard(at="default/green"))
    assert "in default/green" in page
    assert connection.schema_name == "public"


def test_the_dashboard_of_a_tenant_shows_no_other(waiting: None) -> None:
    with schema_context("green"):
        for at in ("", "default/green", "default/blue", "nonsense"):
            page = shown(dashboard(at=at))
            assert "<dd><bdi>2</bdi>" in page
            assert not re.search(r"\b(blue|red)\b", page)


def test_its_buttons_work_where_they_are(waiting: None) -> None:
    assert dashboard("POST", "default/green", counter="unread", flush="").status_code == 302
    with schema_context("green"):
        assert [stored(user) for user in users()] == [1, 1]
        assert dashboard("POST", "default/blue", counter="unread", flush="").status_code == 400
    with schema_context("blue"):
        assert [stored(user) for user in users()] == [0, 0]
        assert dashboard("POST", counter="unread", flush="").status_code == 302
        assert [stored(user) for user in users()] == [1, 0]


def test_the_schedulers_functions_go_through_all_schemas(waiting: None) -> None:
    assert tasks.flush()["unread"] == 3
    assert tasks.recount()["unread"] == 0
    for name in NAMES:
        check(name)


def test_a_deployment_is_checked_from_outside() -> None:
    assert not {message.id for message in check_redis()} & {
        "notifications_counter.W006",
        "notifications_counter.E022",
    }


# -------------------------------------------------------------------------------------------------------------- logs
def test_an_event_log_belongs_to_a_schema() -> None:
    shared = EventLog("audit", shared=True)
    for number, name in enumerate(NAMES, 1):
        with schema_context(name):
            events.record_events([{"type": "login", "tenant": name}] * number)
            shared.record_event({"type": "login", "tenant": name})
    for number, name in enumerate(NAMES, 1):
        with schema_context(name):
            assert [event["tenant"] for event in events.latest()] == [name] * number
            assert events.count_types() == {"login": number}
    assert [event["tenant"] for event in shared.oldest()] == [*NAMES]


def test_time_series_belong_to_a_schema() -> None:
    shared = TimeSeries(name="all", shared=True)
    for number, name in enumerate(NAMES, 1):
        with schema_context(name):
            update_counter("hits", number)
            shared.update_counter("hits", number)
    for number, name in enumerate(NAMES, 1):
        with schema_context(name):
            assert [count for _, count in get_counter("hits", 86400)] == [number]
    assert sum(count for _, count in shared.get_counter("hits", 86400)) == 6


def test_old_slices_of_all_schemas_are_cleaned() -> None:
    for name in NAMES:
        with schema_context(name):
            update_counter("hits", now=1_700_000_000)
    assert tasks.clean() == 3 * 7
    for name in NAMES:
        with schema_context(name):
            update_counter("hits", now=1_700_000_000)
    call_command("clean_counters", verbosity=0)
    assert tasks.clean() == 0


def test_the_history_of_a_schema_and_its_activity_are_its_own(waiting: None) -> None:
    with entries(RECORD_ACTIVITY=True):
        call_command("flush_counters", verbosity=0)
        with schema_context("blue"):
            Notification.objects.create(user=users()[0], title="new")
    for name, created in (("blue", 1), ("green", 0), ("red", 0)):
        with schema_context(name):
            assert history.count_type("recovered") == len(unread.buffers)
            assert sum(n for _, n in get_counter("unread:added", 86400)) == created


def drop(name: str) -> None:
    connection.set_schema_to_public()
    Client.objects.get(schema_name=name).delete(force_drop=True)


def test_streams_tell_of_their_own_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_waits(monkeypatch):
        listen(schema_context, ["blue", "green"], each_hears_its_own)


def test_a_stream_of_a_schema_that_is_dropped_disturbs_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def drop_red(red: Listener, blue: Listener) -> None:
        await sync_to_async(drop)("red")
        for number in range(1, 5):
            await blue.add()
            await blue.reach(number)

    with short_waits(monkeypatch):
        listen(schema_context, ["red", "blue"], drop_red)
    assert not [record for record in caplog.records if record.levelname != "INFO"]
