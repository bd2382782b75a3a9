"""A schema for each tenant. Run by ``test_tenants.py``, because it needs settings of its own."""

import re
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib import admin
from django.contrib.messages.storage.cookie import CookieStorage
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.http import HttpResponse
from django.test import RequestFactory

from notifications_counter import events, tasks
from notifications_counter.counters import unread
from notifications_counter.models import Dashboard, Notification, RecountRequest
from notifications_counter.monitoring.status import read_counter
from tests.support import assert_exact, assert_reads, entries, redis_out_of_reach, stored, unheard

from .common import NAMES, User, at, check, drop, make, notify, tenants, users  # noqa: F401
from .models import Client
from .streams import Listener, listen, short_waits

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("tenants")]


def test_a_schema_that_is_made_again_begins_without_counts() -> None:
    with at("blue"):
        unread.heal()
        notify()
        assert_reads(*users())
    drop("blue")
    call_command("flush_counters", verbosity=0)
    make("blue")
    with at("blue"):
        assert_reads(*users())
        assert unread.count(users()[0]) == 0
        notify()
    call_command("flush_counters", verbosity=0)
    check("blue")


def test_one_transaction_in_two_schemas() -> None:
    call_command("flush_counters", verbosity=0)
    with transaction.atomic():
        with at("blue"):
            Notification.objects.create(user=users()[0], title="blue")
        with transaction.atomic(), at("green"):
            Notification.objects.bulk_create(Notification(user=users()[0], title="green") for _ in range(2))
        try:
            with transaction.atomic(), at("red"):
                Notification.objects.create(user=users()[0], title="red")
                raise KeyError
        except KeyError:
            pass
    for name, count in (("blue", 1), ("green", 2), ("red", 0)):
        with at(name):
            assert unread.count(users()[0]) == count
            assert_exact(*users(), in_doubt=None)


def test_requests_go_to_the_schema_of_their_rows() -> None:
    call_command("flush_counters", verbosity=0)
    with redis_out_of_reach(), transaction.atomic(), at("blue"):
        Notification.objects.create(user=users()[0], title="blue")
        connection.set_schema("green")  # the transaction commits there
    connection.set_schema_to_public()
    for name, asked in (("blue", True), ("green", False)):
        with at(name):
            assert RecountRequest.objects.exists() == asked
    call_command("flush_counters", verbosity=0)
    check("blue")


def test_each_tenant_is_compared_with_its_rows() -> None:
    call_command("flush_counters", verbosity=0)
    for name in NAMES:
        with at(name):
            unheard(Notification.objects.bulk_create, [Notification(user=users()[0], title="unheard")])
    with entries(WALK_SECONDS=0.001):
        call_command("flush_counters", verbosity=0)
    call_command("flush_counters", verbosity=0)
    for name in NAMES:
        with at(name):
            assert read_counter(unread).mismatched == 1
        check(name)


def test_a_schema_is_known_while_its_database_is_out_of_reach(monkeypatch: Any) -> None:
    with pytest.raises(CommandError, match="'pink'"):
        call_command("flush_counters", schema="pink")
    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", "1")
        with pytest.raises(CommandError, match="refused"):
            call_command("flush_counters", schema="blue")
    connection.close()


def test_a_clone_begins_without_the_counts_of_an_earlier_one(settings: Any) -> None:
    call_command("flush_counters", verbosity=0)
    settings.TENANT_CREATION_FAKES_MIGRATIONS, settings.TENANT_BASE_SCHEMA = True, "green"
    for number in (2, 0):
        Client.objects.create(schema_name="pink", name="pink")
        with at("pink"):
            assert (unread.count(users()[0]), events.count_events()) == (0, 0)
            notify(number)
            events.record_event({"type": "login"})
            assert_reads(*users())
        call_command("flush_counters", verbosity=0)
        check("pink")
        drop("pink")


# ---------------------------------------------------------------------------------------------- from outside and inside
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
        samples = [each for family in parser.text_string_to_metric_families(text) for each in family.samples]
        name = "notifications_counter_waiting_owners"
        of_unread = [each for each in samples if each.name == name and each.labels["counter"] == "unread"]
        return {each.labels["schema"]: each.value for each in of_unread}

    assert backlog() == {"blue": 1, "green": 2, "red": 0}
    with at("green"):
        assert backlog() == {"green": 2}


def test_the_dashboard_shows_each_tenant_outside_and_no_other_inside(waiting: None) -> None:
    page = shown(dashboard(counter="unread (green)"))
    assert all(f"counter=unread+%28{name}%29" in page for name in NAMES)
    assert "Counter unread (green)" in page
    assert connection.schema_name == "public"
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
    assert tasks.flush()["unread"] == 0
    assert tasks.recount()["unread"] == 0


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
