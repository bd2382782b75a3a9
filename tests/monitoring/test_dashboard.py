"""The dashboard in the admin: is all well, and since when not?"""

import json
import re
import time
from html import unescape

import pytest
from django.core.management import call_command
from django.db import connection
from django.urls import reverse

from notifications_counter.counters import all_counters, unread
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.monitoring.display import moment
from notifications_counter.timeseries import update_counters
from notifications_counter.upkeep.generations import state_row
from notifications_counter.upkeep.history import history
from notifications_counter.upkeep.state import FULL_SPEED, WalkState
from tests.support import entries, messages, notify, redis_out_of_reach, unheard

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def url() -> str:
    return reverse("admin:notifications_counter_dashboard_changelist")


def said(html: str) -> str:
    """A part of a page as text."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def health(response) -> str:
    return said(re.search(r'<section class="nc-health.*?</section>', response.content.decode(), re.DOTALL)[0])


def since(timestamp: float) -> str:
    """The end of a sentence. That of p.m. ends it, too."""
    return f" since {moment(timestamp).removesuffix('.')} ."


def numbers(response, counter: str = "unread") -> dict[str, str]:
    """What the table says of a counter, by the titles of its columns."""
    table = response.context["counters"]
    [row] = [row for row in table.rows if f">{counter}<" in row[0]]
    return dict(zip(table.titles, row, strict=True))


# -------------------------------------------------------------------------------------------------------- state
def test_all_is_well_since_the_last_trouble_on_record(admin_client, url, few_healed):
    at = time.time() - 86400
    history.trim_events(max_length=0)
    assert health(admin_client.get(url)) == "All is well."
    history.record_event({"type": "recount", "counter": "unread", "owners": 1, "wrong": 1})
    assert health(admin_client.get(url)) == "All is well."
    for hours, type in enumerate(("walked", "aside", "mismatched")):
        history.record_event({"type": type, "counter": "unread", "timestamp": at + 3600 * hours})
        assert health(admin_client.get(url)).startswith(f"All has been well{since(at + 3600 * hours)}")


def test_something_is_wrong_since_the_oldest_of_it_began(admin_client, url, few_healed, redis_client):
    """The page shows the counter that has a problem."""
    at = (int(time.time()) // 3600 - 24) * 3600 + 1800
    first, second = all_counters()[:2]
    assert admin_client.get(url).context["counter"] == first.name
    second.buffer.set_aside({"\0": "1"})
    redis_client.hset(second.buffer.keys.state, "cut_at", at)
    redis_client.zadd(second.buffer.keys.pending, {"7": 1})
    response = admin_client.get(url)
    assert response.context["counter"] == second.name
    assert health(response).startswith(f"Something has been wrong{since(at)}")
    shown = numbers(response, second.name)
    assert (shown["Set aside"], shown["Waiting"], shown["State"]) == ("1", "1", "has a problem")
    assert admin_client.get(url, {"counter": first.name}).context["counter"] == first.name


def test_a_recovery_shows_how_far_it_has_come(admin_client, url, few_healed, redis_client):
    redis_client.delete(unread.buffer.keys.state)
    response = admin_client.get(url)
    assert health(response).startswith("Something is wrong. unread: Redis is new, or has lost data.")
    assert numbers(response)["State"] == "to be recovered"
    unread.heal()
    state_row(unread).update(walk=str(WalkState(FULL_SPEED, "7")))
    assert numbers(admin_client.get(url))["State"] == "recovering, up to owner 7"


def test_events_and_the_server(admin_client, url, few_healed, alice):
    notify(alice)
    call_command("flush_counters", verbosity=0)
    history.record_event({"type": "aside", "counter": "unread", "owner": "\0" * 1000, "reason": "full"})
    history.record_event({"type": "recount", "counter": "unread", "owners": 12345, "wrong": 1})
    response = admin_client.get(url)
    assert re.fullmatch(r"[\d.]+ m?s ago", numbers(response)["Last flush"])
    page = said(response.content.decode())
    for text in ("Recovery complete", "…: full", "12,345 compared, 1 wrong", "noeviction"):
        assert text in page
    assert re.search(r"(Redis|Valkey) \d+\.\d+", page)


def test_without_redis_the_page_says_so(admin_client, url, unreachable_redis):
    said = health(admin_client.get(url))
    assert said.startswith("Something is wrong.")
    assert "Counts are still right, but slower" in said


# ------------------------------------------------------------------------------------------------------- charts
def test_charts_and_the_same_numbers_as_a_table(admin_client, url, few_healed, settings):
    pytest.importorskip("chartkick")
    assert "set RECORD_ACTIVITY to True" in said(admin_client.get(url).content.decode())
    with entries(RECORD_ACTIVITY=True):
        assert "install django-notifications-counter[charts]" in said(admin_client.get(url).content.decode())
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "chartkick.django"]
        update_counters({"unread:added": 12345})
        for by, slots in (("minute", 60), ("hour", 48), ("day", 31), ("century", 60)):
            response = admin_client.get(url, {"by": by})
            html = response.content.decode()
            drawn = re.findall(r'<canvas role="img" aria-label="(.*?)"></canvas>(<p>Nothing in this time</p>)?', html)
            assert drawn == [("Added: 12,345", ""), ("Removed: 0", "<p>Nothing in this time</p>")]
            ours = html[html.index('<div id="content-main"') :]
            assert not re.search(r"<(style|script)|\s(style|on\w+)=|javascript:", ours), "for a strict CSP"
            assert "12,345 0" in said(re.search(r"<details open>.*</details>", html, re.DOTALL)[0])
            activity = response.context["activity"]
            assert len(activity["table"].rows) == len(json.loads(activity["labels"])) == slots


# ------------------------------------------------------------------------------------------ permissions and buttons
def test_it_has_its_permission_and_stands_in_the_menu(client, admin_client, allow, url, alice):
    client.force_login(alice)
    assert client.get(url).status_code == 302
    for permission, status in (("view_usernotificationscount", 403), ("view_dashboard", 200)):
        allow(permission)
        assert admin_client.get(url).status_code == status
        assert (url in admin_client.get(reverse("admin:index")).content.decode()) == (status == 200)


@pytest.mark.parametrize(
    ("button", "permission"), [("flush", "flush_unread_counts"), ("recount", "recount_unread_counts")]
)
def test_each_button_needs_its_permission(admin_client, allow, url, few_healed, button, permission):
    def buttons() -> list[str]:
        return re.findall(r'<button name="(\w+)"', admin_client.get(url).content.decode())

    allow("view_dashboard")
    assert buttons() == []
    assert admin_client.post(url, {button: "", "counter": "unread"}).status_code == 403
    allow("view_dashboard", permission)
    assert buttons() == [button]
    assert admin_client.post(url, {button: "", "counter": "unread"}).status_code == 302
    allow(permission)
    assert admin_client.post(url, {button: "", "counter": "unread"}).status_code == 403


def test_buttons_work_where_requests_are_transactions(admin_client, url, few_healed, alice, monkeypatch):
    """They say why if they cannot."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    def press(button: str) -> str:
        response = admin_client.post(f"{url}?by=day", {button: "", "counter": "unread"}, follow=True)
        assert response.redirect_chain == [(f"{url}?by=day", 302)]
        [message] = messages(response)
        return message

    Notification.objects.create(user=alice, title="waits")
    assert press("flush") == "Counter unread: 1 owner was flushed."
    assert UserNotificationsCount.objects.get(pk=alice.pk).unread_count == 1
    unheard(UserNotificationsCount.objects.update, unread_count=7)
    assert press("recount") == "Counter unread: 1 owner was compared with the rows, 1 wrong."
    with redis_out_of_reach():
        assert "Redis" in press("flush")
    assert admin_client.post(url, {"flush": "", "counter": "nothing"}).status_code == 400


def test_a_recount_ends_before_the_web_server_loses_patience(admin_client, url, few_healed, make_user, monkeypatch):
    monkeypatch.setattr("notifications_counter.admin.base.TIME_LIMIT", 0)
    monkeypatch.setattr("notifications_counter.upkeep.walk.PAGE", 1)
    for _ in range(3):
        notify(make_user())
    response = admin_client.post(url, {"recount": "", "counter": "unread"}, follow=True)
    [message] = messages(response)
    assert "1 owner was compared with the rows, 0 wrong. The recount ran out of time." in message
