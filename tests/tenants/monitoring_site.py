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

from notifications_counter import tasks
from notifications_counter.models import Dashboard, Notification
from tests.support import stored

from .common import NAMES, User, at, check, drop, tenants, users  # noqa: F401
from .streams import Listener, listen, short_waits

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("tenants")]


@pytest.fixture
def waiting() -> None:
    """One user of blue waits to be flushed, two of green, and nobody of red."""
    call_command("flush_counters", verbosity=0)
    for name, number in (("blue", 1), ("green", 2)):
        with at(name):
            Notification.objects.bulk_create(Notification(user=user, title="new") for user in users()[:number])


def dashboard(method: str = "GET", **data: str) -> HttpResponse:
    """The page as a user sees it who may do everything in this schema."""
    request = getattr(RequestFactory(), method.lower())("/", data)
    request.user = User(username="root", is_superuser=True)
    request._messages = CookieStorage(request)  # type: ignore[attr-defined]
    response: Any = admin.site._registry[Dashboard].changelist_view(request)
    return response.render() if hasattr(response, "render") else response


def shown(response: HttpResponse) -> str:
    html = response.content.decode()
    return html[html.index('<div id="content-main"') :]


def test_metrics_name_the_schema(waiting: None) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    from notifications_counter.contrib.prometheus import metrics

    def backlog() -> dict[str, float]:
        text = metrics(RequestFactory().get("/")).content.decode()
        return {
            sample.labels["schema"]: sample.value
            for family in parser.text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "notifications_counter_waiting_owners" and sample.labels["counter"] == "unread"
        }

    assert backlog() == {"blue": 1, "green": 2, "red": 0}
    with at("green"):
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
    with at("blue"):
        assert "unread: " in warning()
        assert not any(name in warning() for name in NAMES)


def test_the_dashboard_outside_of_tenants_shows_each(waiting: None) -> None:
    page = shown(dashboard())
    assert all(f"counter=unread+%28{name}%29" in page for name in NAMES)
    assert "Counter unread (blue)" in page
    page = shown(dashboard(counter="unread (green)"))
    assert "Counter unread (green)" in page
    assert connection.schema_name == "public"


def test_the_dashboard_of_a_tenant_shows_no_other(waiting: None) -> None:
    with at("green"):
        for name in ("", "unread", "unread (blue)", "nonsense"):
            page = shown(dashboard(counter=name))
            assert '<td class="nc-number"><bdi>2</bdi>' in page
            assert not re.search(r"\b(blue|red)\b", page)


def test_its_buttons_work_where_they_are(waiting: None) -> None:
    assert dashboard("POST", counter="unread (green)", flush="").status_code == 302
    with at("green"):
        assert [stored(user) for user in users()] == [1, 1]
        assert dashboard("POST", counter="unread (blue)", flush="").status_code == 400
    with at("blue"):
        assert [stored(user) for user in users()] == [0, 0]
        assert dashboard("POST", counter="unread", flush="").status_code == 302
        assert [stored(user) for user in users()] == [1, 0]


def test_the_schedulers_functions_go_through_all_schemas(waiting: None) -> None:
    assert tasks.flush()["unread"] == 3
    assert tasks.recount()["unread"] == 0
    for name in NAMES:
        check(name)


def test_a_stream_of_a_schema_that_is_dropped_disturbs_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def drop_red(red: Listener, blue: Listener) -> None:
        await sync_to_async(drop)("red")
        for number in range(1, 5):
            await blue.add()
            await blue.reach(number)

    with short_waits(monkeypatch):
        listen(at, ["red", "blue"], drop_red)
    assert not [record for record in caplog.records if record.levelname != "INFO"]
