"""What someone who watches sees: the status, the command, the health check, the metrics, the log."""

import io
import json
import re
import subprocess
import sys
from datetime import timedelta
from html import unescape
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.contrib.auth.models import AnonymousUser
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import RequestFactory
from django.urls import reverse
from django.utils import timezone
from django.utils.html import strip_tags

import servers
from notifications_counter import tasks
from notifications_counter.buffer.types import EVERYONE
from notifications_counter.counters import all_counters, unread
from notifications_counter.models import DoubtRequest
from notifications_counter.monitoring.status import CounterStatus, read_counter
from notifications_counter.redis.calls import command
from notifications_counter.upkeep.phases import Phase, state_row
from tests.support import announce, create, entries, notify, redis_out_of_reach

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def redis(name, key, *arguments):
    """A command on the hash or set named by ``key``, of the counter of unread notifications."""
    buffer = unread.buffer
    return buffer.client.ask(command(name, buffer.key(key), *arguments))[0]


def ago(seconds: int) -> int:
    return unread.buffer.status().now - seconds


def in_flight_since(seconds: int, part: str = "part", user: str = '7","began":1', times: str = "began") -> None:
    """A part of a transaction that has been open for a while, of a user whose key looks like a time. These ``times``
    are that long ago: a flusher may have looked at it since, or not."""
    announce(unread.buffer, part, [user])
    entry = redis("HGET", "intents", part).decode()
    redis("HSET", "intents", part, re.sub(rf'"({times})":\d+', rf'"\1":{ago(seconds)}', entry))


def waiting_since(seconds: int) -> None:
    redis("ZADD", "pending", "NX", 1, "7")
    redis("HSET", "state", "pending_since", ago(seconds))


def requested_since(seconds: int) -> None:
    request = DoubtRequest.objects.create(counter="unread", owner_key="7")
    DoubtRequest.objects.filter(pk=request.pk).update(created_at=timezone.now() - timedelta(seconds=seconds))


def found(**columns: Any) -> None:
    """What walks and flushes have found."""
    state_row(unread).update(**columns)


# ------------------------------------------------------------------------------------------------------------ --check
def check(*arguments: str) -> tuple[str, str]:
    """What the command writes to stdout, and the error that it ends with, if any."""
    out = io.StringIO()
    try:
        call_command("flush_counters", "--check", *arguments, stdout=out)
    except CommandError as error:
        return out.getvalue(), str(error)
    return out.getvalue(), ""


def test_check_says_a_sentence_for_each_thing_that_is_wrong(few_healed):
    in_flight_since(30)
    for i in range(10):
        in_flight_since(90 + i, part=f"part {i}")
    assert check()[1] == ""  # a few overdue intents are no problem
    in_flight_since(90, part="one more")
    waiting_since(1000)
    out, error = check()
    assert out == ""
    words = ("waited for 16 min. Stored totals are old; badges are right", "11 intents have been in flight")
    for line, part in zip(error.splitlines(), words, strict=True):
        assert line.startswith("unread: ")
        assert part in line
    seen = json.loads(check("--json")[0])
    assert not seen["ok"]
    assert [problem["kind"] for problem in seen["problems"]] == ["backlog", "overdue"]
    assert list(seen["counters"]) == [counter.name for counter in all_counters()]
    assert seen["counters"]["unread"]["waiting"] == 1


def test_check_fails_when_something_waits_for_too_long(few_healed):
    waiting_since(200)
    assert check() == ("All is well. The flusher's work has waited for 3 min; up to 5 min is normal.\n", "")
    assert re.match(r"unread: .* waited for 3 min\. .* Start `flush_", check("--max-age", "100")[1])


def test_check_says_when_redis_may_have_missed_changes(few_healed):
    requested_since(60)
    assert check()[1] == ""  # cron runs the flusher every minute
    requested_since(100)
    assert "may have missed changes, the oldest 1 min ago" in check()[1]
    with entries(HEAL_AFTER=0):
        unread.heal()
    assert check()[1] == ""


def test_a_flusher_that_runs_begins_a_generation_soon(healed):
    tasks.flush()
    unread.buffer.doubt([EVERYONE])
    assert read_counter(unread).phase == Phase.DUE
    assert not [*read_counter(unread).problems()]
    assert [problem.kind for problem in read_counter(unread).problems(max_age=0)] == ["due"]
    redis("HSET", "state", "server", "another")  # counts may be wrong until the flusher has been there
    assert [problem.kind for problem in read_counter(unread).problems()] == ["due"]


def test_the_age_is_that_of_the_oldest_change_that_waits(healed, alice, bob):
    def age() -> float:
        return read_counter(unread).age

    create(alice)
    assert age() < 500
    redis("HSET", "state", "pending_since", ago(500))
    create(bob)
    assert age() >= 500
    mark = state_row(unread).get().mark
    batch, _ = unread.buffer.cut(mark, "", "a batch")  # by a flusher that is killed
    create(alice)
    assert age() >= 500
    unread.buffer.drop(batch, mark)
    assert age() < 500
    unread.flush()
    assert age() == 0
    announce(unread.buffer, "an intent", [str(alice.pk)])
    for doubt in (lambda: unread.buffer.doubt([str(bob.pk)]), lambda: unread.buffer.ground("an intent")):
        doubt()
        assert read_counter(unread).waiting == 1
        assert age() < 500
        unread.flush()


@pytest.fixture
def killed(few_healed) -> None:
    """A flusher was killed 400 seconds ago, when a walk at full speed had just begun. Nobody writes."""
    unread.invalidate()
    assert check()[1] == ""
    found(walk_resumes_at=timezone.now() - timedelta(seconds=400))


def test_a_walk_on_which_nobody_works_is_a_problem(killed, health, scrape, admin_client):
    told = "The flusher's work has waited for 6 min. Stored totals are old; badges are right. Start "
    assert check()[1].startswith(f"unread: {told}")
    assert told in health()[1]
    page = admin_client.get(reverse("admin:notifications_counter_dashboard_changelist")).text
    assert told in " ".join(strip_tags(unescape(page)).split())
    assert 400 <= scrape()["waiting_seconds"]["unread", "default", ""] < 430
    tasks.flush()
    assert check()[1] == ""


def test_a_walk_that_waits_its_turn_is_no_problem(killed, redis_client):
    """A flusher works for another counter, or rests between two pages of a gentle walk."""
    other = all_counters()[-1].buffer
    other.note_run()
    assert check()[1] == ""
    redis_client.hset(other.key("state"), "ran_at", ago(350))
    assert "has waited for 5 min. " in check()[1]
    found(walk_speed="gentle")
    assert check()[1] == ""


def test_an_intent_at_which_no_flusher_looks_is_a_problem(few_healed):
    in_flight_since(500, times="began|checked")
    assert check()[1].startswith("unread: The flusher's work has waited for 7 min. ")
    tasks.flush()
    assert check()[1] == ""
    assert read_counter(unread).overdue == 1


def test_an_intent_that_begins_meanwhile_is_not_overdue(few_healed):
    status = unread.buffer.status

    def begin_then() -> Any:
        found = status()
        with mock.patch.object(unread.buffer, "status", status):
            in_flight_since(-5)
        return found

    with mock.patch.object(unread.buffer, "status", begin_then):
        assert read_counter(unread).overdue == 0


def test_nothing_waits_for_a_flusher_that_must_not_work(few_healed, scrape):
    in_flight_since(500, times="began|checked")
    call_command("counting", "off", verbosity=0)
    assert [problem.kind for problem in read_counter(unread).problems()] == ["off"]
    assert scrape()["waiting_seconds"]["unread", "default", ""] == 0


def test_check_says_once_what_all_counters_wait_for():
    names = ", ".join(counter.name for counter in all_counters())
    assert check()[1].startswith(f"{names}: No flusher has served the counter yet")
    assert len(check()[1].splitlines()) == 1


@pytest.mark.parametrize(
    ("flush", "error"),
    [
        (lambda: call_command("flush_counters", verbosity=0), OperationalError("out of\n disk")),
        (tasks.flush, ValueError("a bug")),
    ],
    ids=["command", "task"],
)
def test_check_tells_of_the_last_failure_of_a_counter(few_healed, health, alice, flush, error):
    create(alice)
    with (
        mock.patch("notifications_counter.upkeep.flush.Flush._store", side_effect=error),
        pytest.raises((CommandError, type(error))),
    ):
        flush()
    told = f"{type(error).__name__}: {' '.join(str(error).split())}"
    text = r"unread: The last run of `flush_counters` failed, [\d.]+ m?s ago\. Its log says more\."
    assert re.fullmatch(rf"{text} \({told}\) \[failed\]", check()[1])
    assert told not in str(health())
    flush()
    assert check()[1] == ""
    assert read_counter(unread).last_run < 60


@pytest.mark.parametrize(("hours", "is_shown"), [(5, True), (30, False)])
def test_what_flushes_and_walks_find_is_a_warning_for_a_day(few_healed, health, hours, is_shown):
    at = timezone.now() - timedelta(hours=hours, minutes=1)
    found(wrong=2, wrong_at=at, skipped=1, skipped_at=at)
    out, error = check()
    assert error == ""
    for words in ("Wrong counts were found 5 h ago", "A count could not be stored 5 h ago"):
        assert (f"Warning: unread: {words}" in out) == is_shown
    assert len(json.loads(check("--json")[0])["warnings"]) == 2 * is_shown
    assert health()[0] == 200


def test_a_recount_of_everyone_that_finds_nothing_ends_the_warning(few_healed, alice):
    notify(alice)
    found(wrong=2, wrong_at=timezone.now() - timedelta(hours=5))
    for recount in (lambda: unread.recount([alice]), lambda: unread.recount(dry_run=True)):
        recount()
        assert "wrong" in check()[0]
    unread.recount()
    assert "wrong" not in check()[0]
    assert read_counter(unread).wrong == 2


@pytest.mark.parametrize(("days", "is_shown"), [(1, False), (3, True)])
def test_a_walk_that_comes_to_nobody_in_time_is_a_warning(few_healed, days, is_shown):
    found(walk_began_at=timezone.now() - timedelta(days=days, minutes=1))
    with entries(WALK_SECONDS=86400):
        told = "unread: The last walk over everyone began 3 d ago. Is `flush_counters` running, and often enough"
        assert (told in check()[0]) == is_shown
    with entries(WALK_SECONDS=0):
        assert "walk" not in check()[0]


def test_a_flusher_that_is_away_is_told_once():
    days = {"walk_age": 3 * 86400, "last_run": 2 * 86400}
    with entries(WALK_SECONDS=86400):
        for age, kind in ((0, "walk"), (400, "backlog")):
            status = CounterStatus("unread", "unread", "default", None, age=age, **days)
            assert [each.kind for each in (*status.problems(), *status.warnings())] == [kind]


def test_a_flusher_that_is_away_for_a_short_time_is_not_told():
    """However short a walk is: what it does later is not late, either."""
    with entries(WALK_SECONDS=10):
        for seconds, kinds in ((200, []), (400, ["walk"])):
            status = CounterStatus("unread", "unread", "default", None, walk_age=seconds, last_run=seconds)
            assert [each.kind for each in status.warnings()] == kinds


def test_a_database_that_is_out_of_reach(child_environment):
    nowhere = {"TEST_DATABASE_NAME": "/missing/nowhere", "TEST_DATABASE_PORT": str(servers.free_port())}
    command = [sys.executable, "-m", "django", "flush_counters", "--check", "--json"]
    result = subprocess.run(command, env={**child_environment, **nowhere}, capture_output=True, text=True)
    seen = json.loads(result.stdout)
    assert (result.returncode, seen["ok"], len(seen["problems"])) == (1, False, len(all_counters()))
    assert all(counter["error"].startswith("Database 'default': ") for counter in seen["counters"].values())


def test_no_redis_is_unavailable_and_no_secret_is_told(health, scrape, caplog):
    names = [counter.name for counter in all_counters()]
    with redis_out_of_reach():
        problems = json.loads(check("--json")[0])["problems"]
        (status, told), metrics = health(), scrape()
    assert [(problem["counter"], problem["kind"]) for problem in problems] == [(name, "unreachable") for name in names]
    assert status == 500
    assert ": Redis cannot be used. Counts are right, but slower. " in told
    assert told.endswith("[unreachable]")
    assert "127.0.0.1" not in told
    assert "127.0.0.1" in caplog.text
    assert metrics == {"up": {(name, "default", ""): 0 for name in names}}


# ------------------------------------------------------------------------------------------- health check and metrics
@pytest.fixture
def health():
    """A function that asks the page of health checks for its status, and what it says."""
    pytest.importorskip("health_check")
    from health_check.views import HealthCheckView

    from notifications_counter.contrib.health import Counters

    view = async_to_sync(HealthCheckView.as_view(checks=[Counters]))

    def ask() -> tuple[int, str]:
        response = view(RequestFactory().get("/", {"format": "json"}))
        [text] = json.loads(response.content).values()
        return response.status_code, text

    return ask


def test_what_is_wrong_with_a_counter_is_a_warning(few_healed, health):
    assert health() == (200, "OK")
    waiting_since(400)
    status, told = health()
    assert status == 500
    assert told.startswith("Warning: unread: The flusher's work has waited for 6 min. ")


@pytest.fixture
def scrape():
    """A function that asks for the metrics: {name: {labels: value}}, the labels as a tuple of their values."""
    parser = pytest.importorskip("prometheus_client.parser")
    from notifications_counter.contrib.prometheus import metrics

    def ask() -> dict[str, dict[tuple[str, ...], float]]:
        request = RequestFactory().get("/")
        request.user = AnonymousUser()
        assert LoginRequiredMiddleware(metrics).process_view(request, metrics, (), {}) is None
        seen: dict[str, dict[tuple[str, ...], float]] = {}
        for family in parser.text_string_to_metric_families(metrics(request).content.decode()):
            for sample in family.samples:
                values = seen.setdefault(sample.name.removeprefix("notifications_counter_"), {})
                values[tuple(sample.labels.values())] = sample.value
        return seen

    return ask


def test_metrics_show_the_state_of_each_counter(few_healed, alice, scrape):
    notify(alice, 2)
    create(alice)
    redis("HSET", "state", "pending_since", ago(200))
    in_flight_since(90)
    requested_since(50)
    found(wrong=3, skipped=1)
    seen = scrape()
    assert seen["up"] == {(counter.name, "default", ""): 1 for counter in all_counters()}
    expected = {
        "waiting_owners": 2,
        "intents_in_flight": 1,
        "overdue_intents": 1,
        "new_generation": 0,
        "failing": 0,
        "refuses_changes": 0,
        "wrong_total": 3,
        "skipped_total": 1,
    }
    assert {name: seen[name]["unread", "default", ""] for name in expected} == expected
    assert 200 <= seen["waiting_seconds"]["unread", "default", ""] < 230
    assert seen["redis_trouble"] == {(): 0}


def test_a_redis_that_refuses_changes_is_a_problem_as_long_as_it_does(
    use, server, other, admin_client, few_healed, health, scrape
):
    """Also if nobody writes, and if what it may delete is not enough."""
    use(server.url)
    tasks.flush()
    other.config_set("maxmemory-policy", "volatile-lru")
    other.config_set("maxmemory", 1)
    assert "maxmemory" in check()[1]
    assert health()[0] == 500
    assert scrape()["refuses_changes"]["unread", "default", ""] == 1
    page = admin_client.get(reverse("admin:notifications_counter_dashboard_changelist"))
    assert "Redis refuses changes" in page.content.decode()
    other.config_set("maxmemory", 0)
    assert check()[1] == ""


def test_a_batch_that_is_stored_meanwhile_is_not_lost(healed, alice):
    status = unread.buffer.status

    def flush_first() -> Any:
        unread.flush()
        return status()

    create(alice)
    with mock.patch.object(unread.buffer, "status", flush_first):
        assert read_counter(unread).phase == Phase.NORMAL


def test_a_flusher_of_another_release_is_a_problem(few_healed, health, scrape):
    found(fingerprint="of another")
    assert health()[0] == 500
    assert scrape()["new_generation"]["unread", "default", ""] == 1


# ---------------------------------------------------------------------------------------------------------------- log
def logged(caplog, event: str) -> dict:
    """The fields of the one record of this event, its level among them."""
    (found,) = [record for record in caplog.records if getattr(record, "event", None) == event]
    return vars(found)


def test_the_log_tells_of_a_flush_and_a_generation(alice, caplog):
    caplog.set_level("INFO", "notifications_counter")
    unread.heal()
    first = logged(caplog, "generation")
    assert (first["levelname"], first["reason"]) == ("INFO", "nobody has been counted yet")
    create(alice)
    unread.flush()
    flushed = logged(caplog, "flush")
    assert (flushed["counter"], flushed["owners"], flushed["skipped"]) == ("unread", 1, 0)
    caplog.clear()
    redis("DEL", "state")
    unread.heal()
    again = logged(caplog, "generation")
    assert (again["levelname"], "lost data" in again["reason"]) == ("WARNING", True)
