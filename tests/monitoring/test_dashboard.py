"""The dashboard in the admin: is all well, and since when not?"""

import json
import logging
import re
import time
from html import unescape

import pytest
from django.core.management import call_command
from django.db import connection
from django.urls import reverse
from django.utils.html import strip_tags

from notifications_counter.conf import options
from notifications_counter.counters import all_counters, unread
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.monitoring import dashboard
from notifications_counter.monitoring.dashboard import counter_table
from notifications_counter.monitoring.display import moment
from notifications_counter.monitoring.history import history
from notifications_counter.monitoring.status import CounterStatus, Status
from notifications_counter.redis.client import client_of
from notifications_counter.timeseries import update_counters
from notifications_counter.upkeep.findings import Difference, record
from notifications_counter.upkeep.phases import state_row
from notifications_counter.upkeep.switch import switch_off
from tests.support import create, entries, messages, notify, redis_out_of_reach, unheard

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def url() -> str:
    return reverse("admin:notifications_counter_dashboard_changelist")


def said(html: str) -> str:
    """A part of a page as text."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def card(response) -> str:
    return re.search(r'<section class="nc-health.*?</section>', response.content.decode(), re.DOTALL)[0]


def health(response) -> str:
    return said(card(response))


def since(timestamp: float) -> str:
    """The end of a sentence."""
    return f" since {moment(timestamp)} ."


def legend(response) -> list[str]:
    return [text for _, text in response.context["activity"]["legend"]]


def numbers(response, counter: str = "unread") -> dict[str, str]:
    """What the table says of a counter, by the titles of its columns."""
    table = response.context["counters"]
    [row] = [row for row in table.rows if f">{counter}<" in row[0]]
    return dict(zip(table.titles, map(strip_tags, row), strict=True))


# -------------------------------------------------------------------------------------------------------- state
def test_since_when_all_is_well_or_not(admin_client, url, few_healed, redis_client):
    """If something is wrong, the page shows the counter that has a problem."""
    now = int(time.time()) // 3600 * 3600
    history.trim_events(max_length=0)
    assert health(admin_client.get(url)) == "All is well."
    history.record_event({"type": "walked", "counter": "unread", "timestamp": now - 90000})
    told = health(admin_client.get(url))
    assert told.startswith(f"All has been well{since(now - 90000)}")
    first, second = all_counters()[:2]
    record("skipped", second, ["\\0"])
    response = admin_client.get(url)
    assert health(response).startswith("A count could not be stored")
    assert (
        f"Reads are right. The log (skipped) names the owner, and says why. {second.name} · Runbook: skipped"
        in health(response)
    )
    assert '"nc-health nc-warned"' in response.content.decode()
    redis_client.hset(second.buffer.key("state"), "pending_since", int(time.time()) - 80000)
    redis_client.zadd(second.buffer.key("pending"), {"7": 1})
    response = admin_client.get(url)
    assert health(response).startswith("The flusher's work has waited for 22 h. Stored totals")
    assert "has waited for 22\N{NO-BREAK SPACE}h." in response.text
    assert "A count could not be stored" in health(response)
    assert response.context["counter"] == second.name
    shown = numbers(response, second.name)
    assert (shown["Skipped"], shown["Waiting"], shown["State"]) == ("1", "1", "has a problem")
    assert admin_client.get(url, {"counter": first.name}).context["counter"] == first.name
    redis_client.hset(first.buffer.key("state"), "pending_since", now - 70000)
    redis_client.zadd(first.buffer.key("pending"), {"7": 1})
    switch_off(second)
    response = admin_client.get(url)
    assert health(response).startswith("Counting has been off since"), "the gravest is told first"
    assert "<code>manage.py counting on</code>" in response.text
    assert "The flusher's work has waited for" in health(response)


def test_counters_events_and_the_server(admin_client, url, few_healed, alice):
    notify(alice)
    call_command("flush_counters", verbosity=0)
    state_row(unread).update(walk_speed="full speed", walked_to="7")
    history.record_event({"type": "skipped", "counter": "unread", "owners": 1, "examples": "[1,\t2]: \0" + 999 * "x"})
    response = admin_client.get(url)
    shown = numbers(response)
    assert shown["State"] == "walking, up to owner 7"
    assert re.fullmatch(r"just now|\d+ s ago", shown["Flusher ran"])
    page = said(response.content.decode())
    assert not {"In flight", "Skipped", "Wrong counts"} & set(shown), "they say nothing"
    for text in ("Walk complete", "[1, 2]: \\x00x", "x…", "noeviction"):
        assert text in page
    assert re.search(r"(Redis|Valkey) \d+\.\d+", page)


@pytest.mark.parametrize(
    ("found", "state", "marked"),
    [
        ({"overdue": 2, "in_flight": 2, "last_run": 1.0}, "in order", set()),
        ({"overdue": 11, "in_flight": 11}, "has a problem", {"State", "In flight"}),
        ({"age": 400, "waiting": 3}, "has a problem", {"State", "Oldest", "Flusher ran"}),
        ({"walk_age": 3 * 86400, "last_run": 1.0}, "needs a look", {"State"}),
        ({"walk_age": 3 * 86400, "last_run": 2.0 * 86400}, "needs a look", {"State", "Flusher ran"}),
        ({"wrong": 1, "wrong_age": 60.0}, "needs a look", {"State", "Wrong counts"}),
        ({"wrong": 1}, "in order", set()),
        ({"wrong": 1, "wrong_age": 60.0, "off_since": 1e9}, "off", {"State", "Wrong counts"}),
    ],
)
def test_the_cells_that_a_problem_is_about_are_marked(found, state, marked):
    each = CounterStatus("unread", "unread", "default", None, **found)
    with entries(WALK_SECONDS=86400):
        status = Status({"unread": each}, tuple(each.problems()), tuple(each.warnings()))
        table = counter_table([each], "minute", "unread", status)
    cells = dict(zip(table.titles, table.rows[0], strict=True))
    assert strip_tags(cells["State"]) == state
    color = "nc-bad" if state == "has a problem" else "nc-warned"
    assert {title for title, cell in cells.items() if color in cell} == marked
    assert "overdue" not in found or strip_tags(cells["In flight"]) == f"{each.in_flight} ({each.overdue} overdue)"


def test_a_flusher_is_late_before_that_is_a_problem(admin_client, url, few_healed, redis_client, alice):
    create(alice)
    for seconds, level in ((60, "good"), (200, "warned"), (400, "bad")):
        redis_client.hset(unread.buffer.key("state"), "pending_since", int(time.time()) - seconds)
        response = admin_client.get(url)
        assert f'"nc-health nc-{level}"' in response.text
        assert ("waited for" in health(response)) == (seconds > 60)


def test_a_flusher_that_was_late_leaves_an_event(admin_client, url, few_healed, redis_client, alice):
    """Until it comes back, the charts end where the oldest change began to wait."""
    create(alice)
    assert legend(admin_client.get(url)) == ["not recorded"]
    began = int(time.time()) // 60 * 60 - 600
    redis_client.hset(unread.buffer.key("state"), "pending_since", began)
    response = admin_client.get(url)
    *_, oldest = [time for time, *_ in response.context["activity"]["table"].rows if "incomplete" in time]
    assert oldest.startswith(moment(began))
    assert legend(response) == [f"waiting since {moment(began)}", "not recorded"]
    call_command("flush_counters", verbosity=0)
    response = admin_client.get(url)
    assert legend(response)[-2:] == ["stored late", "not recorded"]
    late = [time for time, *_ in response.context["activity"]["table"].rows if "stored late" in time]
    assert 10 <= len(late) <= 12
    assert late[-1].startswith(moment(began))
    [(_, sentence, counter), *_] = response.context["events"].rows
    assert re.fullmatch(r"Flusher was late: changes had waited for up to 1[01] min, 1 in all\.", strip_tags(sentence))
    assert counter == "unread"
    assert health(response).startswith(f"All has been well{since(history.latest(1, 'late')[0]['timestamp'])}")


def test_the_same_event_of_several_counters_is_a_line_and_warnings_are_marked(admin_client, url, few_healed):
    history.trim_events(max_length=0)
    for counter in ("unread", "unread_by_kind"):
        fields = {"counter": counter, "timestamp": int(time.time()) - 90000}
        history.record_event({"type": "walked", "level": logging.INFO, **fields})
        history.record_event({"type": "generation", "level": logging.WARNING, "reason": "a test", **fields})
    rows = admin_client.get(url).context["events"].rows
    assert [names for *_, names in rows] == ["unread, unread_by_kind"] * 2
    assert {strip_tags(text)[:4]: "nc-alarm" in text for _, text, _ in rows} == {"Walk": False, "Gene": True}


def test_wrong_counts_name_owners_with_links(admin_client, url, few_healed, monkeypatch):
    """If the admin has their pages."""
    examples = f"{Difference(7, 12345, 5)}; <b>"
    history.record_event({"type": "wrong", "counter": "unread", "owners": 2, "examples": examples})

    def told() -> str:
        return admin_client.get(url).context["events"].rows[0][1]

    assert "2 in all: 7: 12,345 instead of 5; &lt;b&gt;. Rows" in told()
    monkeypatch.setattr(dashboard, "reverse", lambda page, args: f"/{args[0]}/")
    assert re.search('2 in all: <a href="/7/">[a-z ]*user 7</a>: 12,345 instead of 5; &lt;b&gt;. Rows', told())


def test_without_redis_the_page_says_so(admin_client, url):
    with redis_out_of_reach():
        admin_client.get(url)
        told = health(admin_client.get(url))  # when it is not asked again
        client_of("default").breaker.down_since -= 60
        response = admin_client.get(url)
    assert health(response).startswith("Redis has been out of reach since ")
    assert told.startswith("Redis cannot be used. Counts are right, but slower. Reads count rows until Redis is back")
    assert "asked again" not in told
    assert set(numbers(response).values()) == {"unread", "Redis unreachable", "–"}
    told_below = "Not without Redis Flush now Recount Charts, events and servers are back when Redis is."
    assert told_below in said(response.text)
    assert len(re.findall("<button name=.* disabled", response.text)) == 2
    assert told.endswith("Runbook: unreachable")
    assert "<title>Redis has been out of reach since " in response.text


def test_trouble_with_redis_that_is_over_is_told_as_such(admin_client, url, few_healed, redis_client):
    """In amber, until it is so long ago that all is well. It is among the events."""
    now = int(time.time())
    key = f"{{{options.KEY_PREFIX}:trouble}}"
    for ago, begins, state in (
        (1, "Processes had trouble with Redis within the last minute", "nc-bad"),
        (30, "Processes had trouble with Redis until ", "nc-warned"),
        (70, "All has been well since", "nc-good"),
    ):
        redis_client.hset(key, mapping={"until": now - ago, "since": now - ago - 9, "reason": "a timeout"})
        response = admin_client.get(url)
        assert health(response).startswith(begins)
        assert f'"nc-health {state}"' in response.text
    assert "Processes had trouble with Redis, and counted rows: a timeout" in said(response.text)


# ------------------------------------------------------------------------------------------------------- charts
def test_charts_and_the_same_numbers_as_a_table(admin_client, url, few_healed, settings):
    pytest.importorskip("chartkick")
    assert "install django-notifications-counter[charts]" in said(admin_client.get(url).content.decode())
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "chartkick.django"]
    update_counters({"unread:added": 12345})
    for by, slots in (("minute", 60), ("hour", 48), ("day", 31), ("century", 60)):
        response = admin_client.get(url, {"by": by})
        html = response.content.decode()
        assert re.findall('<canvas role="img" aria-label="(.*?)">', html) == [
            f"Added {response.context['activity']['span']}",
            f"Removed {response.context['activity']['span']}",
        ]
        assert "Nothing recorded yet" not in html, "one of them has numbers"
        ours = html[html.index('<div id="content-main"') :]
        assert not re.search(r"<(style|script)|\s(style|on\w+)=|javascript:", ours), "for a strict CSP"
        assert "Net change <strong>+12,345</strong>" in html
        assert "12,345 0" in said(re.search(r"<details open>.*</details>", html, re.DOTALL)[0])
        activity = response.context["activity"]
        assert len(activity["table"].rows) == len(json.loads(activity["labels"])) == slots
    assert "incomplete" in legend(admin_client.get(url, {"by": "day"}))


def test_charts_begin_with_the_first_record(admin_client, url, few_healed):
    """Which is an event or a change. Before, nothing is known, as after Redis has lost its data."""
    began = int(time.time()) - 600
    history.record_event({"type": "walked", "counter": "unread", "timestamp": began})
    activity = admin_client.get(url).context["activity"]
    numbers = "".join(number for _, *cells in activity["table"].rows for number in cells)
    assert (activity["span"], activity["nothing"]) == (f"since {moment(began)}", "Nothing recorded yet")
    assert re.fullmatch("0{22,24}–+", numbers)
    update_counters({"unread:added": 1}, now=time.time() - 59 * 60)
    assert admin_client.get(url).context["activity"]["span"] == "last 60 minutes"


# ------------------------------------------------------------------------------------------ permissions and buttons
@pytest.mark.parametrize(
    ("button", "permission"), [("flush", "flush_unread_counts"), ("recount", "recount_unread_counts")]
)
def test_the_page_and_each_button_need_a_permission(admin_client, allow, url, few_healed, button, permission):
    def press() -> int:
        return admin_client.post(url, {button: "", "counter": "unread"}).status_code

    allow("view_usernotificationscount", permission)
    assert (admin_client.get(url).status_code, press()) == (403, 403)
    assert url not in admin_client.get(reverse("admin:index")).content.decode()
    allow("view_dashboard")
    assert "<button name" not in admin_client.get(url).content.decode()
    assert press() == 403
    allow("view_dashboard", permission)
    assert re.findall(r'<button name="(\w+)"', admin_client.get(url).content.decode()) == [button]
    assert press() == 302
    assert url in admin_client.get(reverse("admin:index")).content.decode()


def test_buttons_work_where_requests_are_transactions(admin_client, url, few_healed, alice, monkeypatch):
    """They say why if they cannot."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    def press(button: str, looks: str = "info") -> str:
        response = admin_client.post(f"{url}?by=day", {button: "", "counter": "unread"}, follow=True)
        assert response.redirect_chain == [(f"{url}?by=day", 302)]
        [message] = messages(response)
        assert f'<li class="{looks}">' in response.text
        return message

    Notification.objects.create(user=alice, title="waits")
    assert press("flush") == "Counter unread: 1 owner was flushed."
    assert UserNotificationsCount.objects.get(pk=alice.pk).unread_count == 1
    unheard(UserNotificationsCount.objects.update, unread_count=7)
    assert press("recount") == "Counter unread: 1 owner was compared with the rows, 1 wrong."
    assert '<button name="recount"' in card(admin_client.get(url)), "beside the warning"
    response = admin_client.post(
        url, {"recount": "", "counter": [each.name for each in all_counters()[:2]]}, follow=True
    )
    assert len(messages(response)) == 2
    assert "<button" not in card(admin_client.get(url))
    with redis_out_of_reach():
        assert "Redis" in press("flush", "error")
    assert admin_client.post(url, {"flush": "", "counter": "nothing"}).status_code == 400
    switch_off(unread)
    told = press("flush", "warning")
    assert told.startswith("Counter unread: 0 owners were flushed. Counting has been off since")
    assert "<code>manage.py counting on</code>" in told
    response = admin_client.get(url)
    assert health(response).count("since") == 1
    assert '"nc-health nc-warned"' in response.text
    assert "Not while counting is off" in response.text
    assert "disabled" in response.text
