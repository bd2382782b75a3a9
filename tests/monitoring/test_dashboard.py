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
from notifications_counter.checks.servers import infos
from notifications_counter.counters import all_counters, unread
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.monitoring.display import duration, grouped, moment
from notifications_counter.timeseries import update_counters
from notifications_counter.upkeep.history import history
from notifications_counter.upkeep.shards import shard_rows
from notifications_counter.upkeep.state import FULL_SPEED, WalkState
from tests.support import entries, messages, notify, redis_out_of_reach, sent, unheard

pytestmark = pytest.mark.django_db(transaction=True)


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


# -------------------------------------------------------------------------------------------------------- state
@pytest.mark.once
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


@pytest.mark.once
def test_something_is_wrong_since_the_oldest_of_it_began(admin_client, url, few_healed, redis_client):
    at = (int(time.time()) // 3600 - 24) * 3600 + 1800
    history.trim_events(max_length=0)
    unread.buffers[0].set_aside({"\0": "1"})
    assert health(admin_client.get(url)).startswith("Something is wrong. unread: The count of 1 owner")
    redis_client.hset(unread.buffers[0].keys.state, "cut_at", at)
    redis_client.zadd(unread.buffers[0].keys.pending, {"7": 1})
    assert health(admin_client.get(url)).startswith(f"Something has been wrong{since(at)}")


def test_what_is_wrong_is_on_top(admin_client, url, few_healed):
    unread.buffers[0].set_aside({"\0": "1"})
    for i in range(11):
        unread.buffers[0].announce(f"part {i}", ["7"])
    with entries(HEAL_AFTER=0):
        response = admin_client.get(url)
    assert "The count of 1 owner could not be stored" in health(response)
    assert "11 intents have been in flight" in health(response)
    assert numbers(response)["In flight"] == "11 11 overdue"
    assert numbers(response)["Set aside"] == "1"
    assert numbers(response)["State"] == "has a problem"


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
    response = admin_client.get(url)
    shown = numbers(response)
    assert (shown["State"], shown["Waiting"], shown["In flight"], shown["Set aside"]) == ("in order", "2", "0", "0")
    assert re.fullmatch(r"\d+ m?s ago", shown["Last flush"])
    page = said(response.content.decode())
    assert "Recovery complete stored totals are up to date" in page
    assert "…: full" in page
    assert "12,345 compared, 1 wrong" in page
    assert "noeviction" in page
    assert re.search(r"(Redis|Valkey) \d+\.\d+", page)


def test_a_wrong_count_that_the_flusher_found(admin_client, url, few_healed):
    assert numbers(admin_client.get(url))["Wrong counts"] == "0"
    shard_rows(unread).update(walk=str(WalkState(wrong=2, wrong_at=time.time())))
    examples = "7: 1 instead of 2, 8: 0 instead of 1"
    history.record_event({"type": "mismatched", "counter": "unread", "wrong": 2, "examples": examples})
    response = admin_client.get(url)
    assert numbers(response)["Wrong counts"] == "2"
    assert "flush_counters found a wrong count" in health(response)
    assert f"unread Wrong counts 2 wrong: {examples}" in said(response.content.decode())


def test_without_redis_the_page_says_so(admin_client, url, unreachable_redis, make_user):
    response = admin_client.get(url)
    assert response.status_code == 200
    assert health(response).startswith("Something is wrong.")
    assert "unavailable" in health(response)
    assert "Counts are still right, but slower" in health(response)


def test_a_redis_that_may_evict_is_a_problem(admin_client, url, few_healed, monkeypatch):
    [info] = infos()
    evicting = info | {"maxmemory_policy": "allkeys-lru", "maxmemory": "1000000"}
    monkeypatch.setattr("notifications_counter.monitoring.dashboard.infos", lambda: [evicting])
    assert "maxmemory-policy is allkeys-lru" in health(admin_client.get(url))


def test_a_server_may_leave_numbers_out_of_its_info(admin_client, url, few_healed, monkeypatch):
    [info] = infos()
    for left in ({name: info[name] for name in ("run_id", "master_replid", "used_memory")}, {"role": "master"}):
        monkeypatch.setattr("notifications_counter.monitoring.dashboard.infos", lambda left=left: [left])
        assert admin_client.get(url).status_code == 200


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
    # Status, server and monitoring of each counter; trouble; events four times; time series of the first.
    assert before[0] == 3 * counters + 1 + 4 + 2
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


@pytest.mark.once
@pytest.mark.parametrize(
    ("by", "labels"),
    [("minute", r"((\d+(:15|:30|:45)? [ap]\.m\.|noon|midnight) ?){4}"), ("hour", r"((noon|[A-Z]\w+ \d+) ?){4}"),
     ("day", r"(?=.*[A-Z]\w+ 1\b)(([A-Z]\w+ 1|11|21) ?){3,4}")],
)  # fmt: skip
def test_what_is_said_below_a_chart(admin_client, url, few_healed, settings, by, labels):
    settings.TIME_ZONE = "UTC"  # where no hour is missing
    with entries(RECORD_ACTIVITY=True):
        found = json.loads(charts(admin_client.get(url, {"by": by}))["labels"])
    assert re.fullmatch(labels, " ".join(filter(None, found)))


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


@pytest.mark.once
@pytest.mark.parametrize(
    ("language", "text"),
    [("en", "1,234,567"), ("de", "1.234.567"), ("hi", "1,234,567"), ("zh-hans", "1,234,567"), ("ar", "1.234.567")],
)
def test_big_numbers_are_grouped_in_every_language(language, text):
    with override(language):
        assert (grouped(1234567), grouped(-1234567.0), grouped(0)) == (text, f"-{text}", "0")


@pytest.mark.once
@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0004, "1 ms"), (0.25, "250 ms"), (3, "3 s"), (3.14159, "3.1 s"), (59.9, "59 s"), (119, "119 s"),
     (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172800, "2 d"), (86400 * 4321, "4,321 d")],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


# -------------------------------------------------------------------------------------------------- permissions
def test_it_has_its_permission_and_stands_in_the_menu(admin_client, allow, url):
    allow("view_usernotificationscount")
    assert admin_client.get(url).status_code == 403
    assert url not in admin_client.get(reverse("admin:index")).content.decode()
    allow("view_dashboard")
    assert admin_client.get(url).status_code == 200
    for page in (reverse("admin:index"), reverse("admin:app_list", args=["notifications_counter"])):
        assert url in admin_client.get(page).content.decode()


def test_nobody_else_sees_it(client, url, make_user):
    assert client.get(url).status_code == 302
    client.force_login(make_user())
    assert client.get(url).status_code == 302


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
    assert message.startswith(
        "Counter unread: 1 owner was compared with the rows, 1 wrong. The recount ran out of time."
    )
    monkeypatch.undo()
    response = admin_client.post(url, {"recount": "", "counter": "unread"}, follow=True)
    assert messages(response) == ["Counter unread: 2 owners were compared with the rows, 2 wrong."]


@pytest.mark.parametrize("button", ["flush", "recount"])
def test_buttons_work_also_where_requests_are_transactions(admin_client, url, few_healed, monkeypatch, button):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    [message] = messages(admin_client.post(url, {button: "", "counter": "unread"}, follow=True))
    assert message in (
        "Counter unread: 0 owners were flushed.",
        "Counter unread: 0 owners were compared with the rows, 0 wrong.",
    )


@pytest.mark.parametrize("button", ["flush", "recount"])
def test_buttons_that_cannot_work_say_why(admin_client, url, button):
    def said_by(counter: str) -> list[str]:
        return messages(admin_client.post(url, {button: "", "counter": counter}, follow=True))

    with redis_out_of_reach():
        [message] = said_by("unread")
    assert "Redis" in message
    assert admin_client.post(url, {button: "", "counter": "nothing"}).status_code == 400


# ------------------------------------------------------------------------------------------------- presentation
def test_it_refreshes_itself_only_if_asked_to(admin_client, url, few_healed):
    assert "http-equiv" not in admin_client.get(url).content.decode()
    assert '<meta http-equiv="refresh" content="30">' in admin_client.get(f"{url}?refresh").content.decode()


@pytest.mark.once
@pytest.mark.parametrize("language", ["ar", "he", "de", "hi"])
def test_in_other_languages(admin_client, url, few_healed, with_charts, language, settings):
    settings.LANGUAGE_CODE = language
    settings.USE_THOUSAND_SEPARATOR = True
    with entries(RECORD_ACTIVITY=True):
        update_counters({"unread:added": 1234567})
        html = admin_client.get(url).content.decode()
    [separator] = set(re.findall(r'data-separator="(\D)"', html))
    assert f": 1{separator}234{separator}567" in html
    assert f'dir="{"rtl" if language in ("ar", "he") else "ltr"}"' in html


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


@pytest.mark.once
def test_with_unfold_the_pages_look_like_its_own(admin_user, all_healed, child_environment):
    pytest.importorskip("unfold")
    run = subprocess.run([sys.executable, "-c", UNFOLD], env=child_environment, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert "dashboard True\n" in run.stdout
