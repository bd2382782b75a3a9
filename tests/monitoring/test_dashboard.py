"""The dashboard in the admin: is all well, and since when not?"""

import json
import re
import subprocess
import sys
import time
from html import unescape

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.translation import override

from notifications_counter.buffer.client import client_of
from notifications_counter.counters import all_counters, unread
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.monitoring.display import duration, grouped, moment
from notifications_counter.timeseries import update_counters
from notifications_counter.upkeep.history import history
from notifications_counter.upkeep.shards import shard_rows
from notifications_counter.upkeep.state import FULL_SPEED, WalkState
from tests.support import announce, entries, messages, notify, redis_out_of_reach, sent, unheard

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def url() -> str:
    return reverse("admin:notifications_counter_dashboard_changelist")


@pytest.fixture
def with_charts(settings) -> None:
    pytest.importorskip("chartkick")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "chartkick.django"]


def content(html: str) -> str:
    """What is ours of a page."""
    return html[html.index('<div id="content-main"') :]


def said(html: str) -> str:
    """A part of a page as text."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def health(response) -> str:
    return said(re.search(r'<section class="nc-health.*?</section>', response.content.decode(), re.DOTALL)[0])


def since(timestamp: float) -> str:
    """The end of a sentence. That of p.m. ends it, too."""
    return f" since {moment(timestamp).removesuffix('.')} ."


def charts(response):
    return response.context["activity"]


def numbers(response, counter: str = "unread") -> dict[str, str]:
    """What the table says of a counter, by the titles of its columns."""
    table = response.context["counters"]
    [row] = [row for row in table.rows if f">{counter}<" in row[0]]
    return dict(zip(table.titles, row, strict=True))


IDENTITY = {"run_id": "a", "master_replid": "b"}


# -------------------------------------------------------------------------------------------------------- state
def test_all_is_well_since_the_last_trouble_on_record(admin_client, url, few_healed):
    at = time.time() - 86400

    def says(time: float) -> bool:
        return health(admin_client.get(url)).startswith(f"All has been well{since(time)}")

    assert says(history.latest(1, "walked")[0]["timestamp"])
    history.trim_events(max_length=0)
    assert health(admin_client.get(url)) == "All is well."
    history.record_event({"type": "recount", "counter": "unread", "owners": 1, "wrong": 1})
    assert health(admin_client.get(url)) == "All is well."
    for hours, type in enumerate(("walked", "aside", "mismatched")):
        history.record_event({"type": type, "counter": "unread", "timestamp": at + 3600 * hours})
        assert says(at + 3600 * hours)
    client_of("default").note_trouble("Connection refused")
    assert not says(at + 7200)
    assert "All has been well since" in health(admin_client.get(url))


def test_something_is_wrong_since_the_oldest_of_it_began(admin_client, url, few_healed, redis_client):
    at = (int(time.time()) // 3600 - 24) * 3600 + 1800
    history.trim_events(max_length=0)
    unread.buffers[0].set_aside({"\0": "1"})
    for i in range(11):
        announce(unread.buffers[0], f"part {i}", ["7"])
    with entries(HEAL_AFTER=0):
        response = admin_client.get(url)
    assert health(response).startswith("Something is wrong. unread: 11 intents have been in flight")
    assert "The count of 1 owner could not be stored" in health(response)
    shown = numbers(response)
    assert (shown["In flight"], shown["Set aside"], shown["State"]) == ("11 11 overdue", "1", "has a problem")
    redis_client.hset(unread.buffers[0].keys.state, "cut_at", at)
    redis_client.zadd(unread.buffers[0].keys.pending, {"7": 1})
    assert health(admin_client.get(url)).startswith(f"Something has been wrong{since(at)}")


def test_one_counter_is_shown_with_its_charts(admin_client, url, few_healed):
    """The chosen one, or one that has a problem."""
    first, *others = [counter.name for counter in all_counters()]

    def shown(**query: str) -> str:
        return admin_client.get(url, query).context["counter"]

    assert shown() == shown(counter="nothing") == first
    assert shown(counter=others[0]) == others[0]
    all_counters()[1].buffers[0].set_aside({"\0": "1"})
    assert shown() == others[0]
    assert shown(counter=first) == first


def test_a_recovery_shows_how_far_it_has_come(admin_client, url, few_healed, redis_client):
    redis_client.delete(unread.buffers[0].keys.state)
    response = admin_client.get(url)
    assert health(response).startswith("Something is wrong. unread: Redis is new, or has lost data.")
    assert numbers(response)["State"] == "to be recovered"
    unread.heal()
    shard_rows(unread).update(walk=str(WalkState(FULL_SPEED, "7")))
    assert numbers(admin_client.get(url))["State"] == "recovering, up to owner 7"


def test_the_numbers_of_a_busy_counter(admin_client, url, few_healed, make_user):
    users = [make_user() for _ in range(3)]
    for user in users:
        notify(user)
    call_command("flush_counters", verbosity=0)
    Notification.objects.bulk_create(Notification(user=user, title="waits") for user in users[:2])
    history.record_event({"type": "aside", "counter": "unread", "owner": "\0" * 1000, "reason": "full"})
    history.record_event({"type": "recount", "counter": "unread", "owners": 12345, "wrong": 1})
    history.record_event({"type": "mismatched", "counter": "unread", "wrong": 2, "examples": "7: 1 instead of 2"})
    shard_rows(unread).update(walk=str(WalkState(wrong=2, wrong_at=time.time())))
    response = admin_client.get(url)
    assert "flush_counters found a wrong count" in health(response)
    shown = numbers(response)
    assert shown["Wrong counts"] == "2"
    assert (shown["State"], shown["Waiting"], shown["In flight"], shown["Set aside"]) == ("in order", "2", "0", "0")
    assert re.fullmatch(r"[\d.]+ m?s ago", shown["Last flush"])
    page = said(response.content.decode())
    assert "Recovery complete stored totals are up to date" in page
    assert "…: full" in page
    assert "12,345 compared, 1 wrong" in page
    assert "unread Wrong counts 2 wrong: 7: 1 instead of 2" in page
    assert "noeviction" in page
    assert re.search(r"(Redis|Valkey) \d+\.\d+", page)


def test_without_redis_the_page_says_so(admin_client, url, unreachable_redis):
    said = health(admin_client.get(url))
    assert said.startswith("Something is wrong.")
    assert "Counts are still right, but slower" in said


@pytest.mark.parametrize(
    ("about", "shown"),
    [
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": "1000000"}, "maxmemory-policy is allkeys-lru"),
        ({"role": "master"}, "All has been well"),  # a managed server may leave the rest out
    ],
)
def test_what_redis_says_of_itself(admin_client, url, few_healed, monkeypatch, about, shown):
    monkeypatch.setattr("notifications_counter.monitoring.dashboard.infos", lambda: [{**IDENTITY, **about}])
    assert shown in health(admin_client.get(url))


def test_what_the_page_costs(admin_client, url, few_healed, make_user):
    def cost() -> tuple[int, int]:
        with sent() as commands, CaptureQueriesContext(connection) as queries:
            assert admin_client.get(url).status_code == 200
        return len(commands), len(queries)

    with entries(RECORD_ACTIVITY=True):
        cost()  # the first use of each shard
        before = cost()
        for user in [make_user() for _ in range(30)]:
            notify(user)
        assert cost() == before
    counters = len(all_counters())
    # Status and server of each counter; trouble; events four times; time series of the first.
    assert before[0] == 2 * counters + 1 + 4 + 2
    assert before[1] <= 2 * counters + 5


# ------------------------------------------------------------------------------------------------------- charts
def test_charts_and_the_same_numbers_as_a_table(admin_client, url, few_healed, with_charts):
    with entries(RECORD_ACTIVITY=True):
        update_counters({"unread:added": 12345})
        for by, slots in (("minute", 60), ("hour", 48), ("day", 31), ("century", 60)):
            response = admin_client.get(url, {"by": by})
            html = response.content.decode()
            scripts = re.findall(r'<script src="/static/(.*?)" defer>', html)
            assert scripts[-2:] == ["chartkick/Chart.bundle.js", "notifications_counter/dashboard.js"]
            drawn = re.findall(r'<canvas role="img" aria-label="(.*?)"></canvas>(<p>Nothing in this time</p>)?', html)
            assert drawn == [("Added: 12,345", ""), ("Removed: 0", "<p>Nothing in this time</p>")]
            assert not re.search(r"<(style|script)|\s(style|on\w+)=|javascript:", content(html)), "for a strict CSP"
            assert "12,345 0" in said(re.search(r"<details open>.*</details>", html, re.DOTALL)[0])
            assert len(charts(response)["table"].rows) == len(json.loads(charts(response)["labels"])) == slots


def test_without_charts_the_page_says_how_to_get_them(admin_client, url, few_healed):
    html = content(admin_client.get(url).content.decode())
    assert "<details open" not in html
    assert "set RECORD_ACTIVITY to True" in said(html)
    with entries(RECORD_ACTIVITY=True):
        html = admin_client.get(url).content.decode()
        assert "<details open>" in html, "without Chart.js, too, there is the table"
        assert "<canvas" not in html
        assert "chartkick/" not in html
        assert "install django-notifications-counter[charts] and put chartkick.django into" in said(html)


@pytest.mark.parametrize(("language", "text"), [("en", "1,234,567"), ("de", "1.234.567"), ("hi", "1,234,567")])
def test_big_numbers_are_grouped_in_every_language(language, text):
    with override(language):
        assert (grouped(1234567), grouped(-1234567.0), grouped(0)) == (text, f"-{text}", "0")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0004, "1 ms"), (0.25, "250 ms"), (3, "3 s"), (3.14159, "3.1 s"), (119, "119 s"), (120, "2 min"),
     (7200, "2 h"), (86400 * 4321, "4,321 d")],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


# -------------------------------------------------------------------------------------------------- permissions
def test_it_has_its_permission_and_stands_in_the_menu(client, admin_client, allow, url, alice):
    assert client.get(url).status_code == 302
    client.force_login(alice)
    assert client.get(url).status_code == 302
    allow("view_usernotificationscount")
    assert admin_client.get(url).status_code == 403
    assert url not in admin_client.get(reverse("admin:index")).content.decode()
    allow("view_dashboard")
    assert admin_client.get(url).status_code == 200
    assert url in admin_client.get(reverse("admin:index")).content.decode()


@pytest.mark.parametrize(
    ("button", "permission"), [("flush", "flush_unread_counts"), ("recount", "recount_unread_counts")]
)
def test_each_button_needs_its_permission(admin_client, allow, url, few_healed, button, permission):
    allow("view_dashboard")
    assert "<button name" not in content(admin_client.get(url).content.decode())
    assert admin_client.post(url, {button: "", "counter": "unread"}).status_code == 403
    allow("view_dashboard", permission)
    html = content(admin_client.get(url).content.decode())
    assert re.findall(r'<button name="(\w+)"', html) == [button]
    assert admin_client.post(url, {button: "", "counter": "unread"}).status_code == 302
    allow(permission)
    assert admin_client.post(url, {button: "", "counter": "unread"}).status_code == 403


# ------------------------------------------------------------------------------------------------------ buttons
def test_flush(admin_client, url, few_healed, make_user):
    user = make_user()
    Notification.objects.create(user=user, title="waits")
    response = admin_client.post(f"{url}?by=day", {"flush": "", "counter": "unread"}, follow=True)
    assert messages(response) == ["Counter unread: 1 owner was flushed."]
    assert response.redirect_chain == [(f"{url}?by=day", 302)]
    assert UserNotificationsCount.objects.get(pk=user.pk).unread_count == 1


def test_a_recount_ends_before_the_web_server_loses_patience(admin_client, url, few_healed, make_user, monkeypatch):
    monkeypatch.setattr("notifications_counter.admin.base.TIME_LIMIT", 0)
    monkeypatch.setattr("notifications_counter.upkeep.walk.PAGE", 1)
    for _ in range(3):
        notify(make_user())
    unheard(UserNotificationsCount.objects.update, unread_count=7)
    response = admin_client.post(url, {"recount": "", "counter": "unread"}, follow=True)
    [message] = messages(response)
    assert "1 owner was compared with the rows, 1 wrong. The recount ran out of time." in message
    monkeypatch.undo()
    response = admin_client.post(url, {"recount": "", "counter": "unread"}, follow=True)
    assert messages(response) == ["Counter unread: 2 owners were compared with the rows, 2 wrong."]


@pytest.mark.parametrize("button", ["flush", "recount"])
def test_buttons_work_where_requests_are_transactions_and_say_why_they_cannot(
    admin_client, url, few_healed, monkeypatch, button
):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    [message] = messages(admin_client.post(url, {button: "", "counter": "unread"}, follow=True))
    assert message.startswith("Counter unread: 0 owners were ")
    with redis_out_of_reach():
        [message] = messages(admin_client.post(url, {button: "", "counter": "unread"}, follow=True))
    assert "Redis" in message
    assert admin_client.post(url, {button: "", "counter": "nothing"}).status_code == 400


# ------------------------------------------------------------------------------------------------- presentation
def test_it_refreshes_itself_only_if_asked_to(admin_client, url, few_healed):
    assert "http-equiv" not in admin_client.get(url).content.decode()
    assert '<meta http-equiv="refresh" content="30">' in admin_client.get(f"{url}?refresh").content.decode()


UNFOLD = """
from tests import settings
settings.INSTALLED_APPS.insert(0, "unfold")
settings.ALLOWED_HOSTS = ["testserver"]
import django
django.setup()
from django.apps import apps
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from unfold.admin import ModelAdmin
client = Client()
client.force_login(get_user_model().objects.get(username="admin"))
for model in filter(admin.site.is_registered, apps.get_app_config("notifications_counter").get_models()):
    page = client.get(reverse(f"admin:notifications_counter_{model._meta.model_name}_changelist"))
    assert page.status_code == 200, model
    assert "unfold/css" in page.content.decode(), model
    assert isinstance(admin.site.get_model_admin(model), ModelAdmin), model
    print(model._meta.model_name, "All has been well since" in page.content.decode())
"""


def test_with_unfold_the_pages_look_like_its_own(admin_user, all_healed, child_environment):
    pytest.importorskip("unfold")
    run = subprocess.run([sys.executable, "-c", UNFOLD], env=child_environment, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert "dashboard True\n" in run.stdout
