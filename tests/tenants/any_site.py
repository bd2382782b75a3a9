"""What is true of tenants with a schema each as of those with a database each. Run by ``test_tenants.py``."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.management import call_command
from django.db import connections
from django.template import RequestContext, Template
from django.test import AsyncRequestFactory, RequestFactory

from notifications_counter import events, tasks
from notifications_counter.counters import all_counters, unread
from notifications_counter.events import EventLog
from notifications_counter.inbox import live
from notifications_counter.inbox.stream import stream
from notifications_counter.models import Notification
from notifications_counter.monitoring import dashboard
from notifications_counter.monitoring.history import history
from notifications_counter.timeseries import TimeSeries, get_counter, update_counter
from tests.support import PATIENCE, wait_until

from .common import HAS_SCHEMAS, NAMES, User, at, check, notify, tenants, users  # noqa: F401

pytestmark = [pytest.mark.django_db(transaction=True, databases=list(connections)), pytest.mark.usefixtures("tenants")]


def test_each_tenant_has_its_own_counts(capsys: Any) -> None:
    """Commands go through all tenants, or one."""
    call_command("flush_counters", verbosity=0)
    one, two, three = NAMES
    for number, name in enumerate(NAMES, 1):
        with at(name):
            notify(number)
    for number, name in enumerate(NAMES, 1):
        with at(name):
            assert unread.counts(users()) == {user.pk: number * (user == users()[0]) for user in users()}
    call_command("flush_counters", **{"schema" if HAS_SCHEMAS else "database": two})
    assert "unread: flushed 1 owner, " in capsys.readouterr().out
    call_command("flush_counters")
    out = capsys.readouterr().out
    assert f"unread ({one}): flushed 1 owner, " in out
    assert f"unread ({two}): nothing to flush." in out
    assert f"unread ({three}): flushed 1 owner, " in out
    call_command("flush_counters", check=True, verbosity=0)
    with at(two):
        Notification.objects.for_user(users()[0]).mark_as_read()
    assert tasks.flush()["unread"] == 1
    for name in NAMES:
        check(name)
    call_command("recount_counters")
    out = capsys.readouterr().out
    assert all(f"unread ({name}): compared 1 owner, 0 wrong" in out for name in NAMES)


def test_logs_belong_to_a_tenant() -> None:
    shared_log, shared_series = EventLog("audit", shared=True), TimeSeries(name="all", shared=True)
    call_command("flush_counters", verbosity=0)
    for number, name in enumerate(NAMES, 1):
        with at(name):
            notify(number)
            events.record_events([{"type": "login", "tenant": name}] * number)
            shared_log.record_event({"type": "login", "tenant": name})
            for series in (update_counter, shared_series.update_counter):
                series("hits", number)
    call_command("flush_counters", verbosity=0)
    for number, name in enumerate(NAMES, 1):
        with at(name):
            assert history.count_type("walked") == len(all_counters())
            assert [event["tenant"] for event in events.latest()] == [name] * number
            for series in ("hits", "unread:added"):
                assert sum(count for _, count in get_counter(series, 86400)) == number
            update_counter("hits", now=1_700_000_000)
    assert [event["tenant"] for event in shared_log.oldest()] == [*NAMES]
    assert sum(count for _, count in shared_series.get_counter("hits", 86400)) == 6
    assert tasks.clean() == 3 * 7


def test_pages_show_the_tenant_of_their_user() -> None:
    """Each has a user of the same primary key, whose tabs in a browser tell each other nothing."""
    template, counts, tabs = Template("{% load notifications_inbox %}{% badge %} {% badge_script %}"), [], set()
    request = RequestFactory().get("/")
    with at(NAMES[0]):
        key = users()[0].pk
    for number, name in enumerate(NAMES, 1):
        with at(name):
            request.user, _ = User.objects.get_or_create(pk=key, defaults={"username": "carol"})
            Notification.objects.bulk_create(Notification(user_id=key, title="new") for _ in range(number))
            page = template.render(RequestContext(request))
            assert {str(local.place) for local in dashboard.visible()} == {name}
        counts += re.findall('data-count="([^"]*)"', page)
        tabs |= {*re.findall('data-user="([^"]*)"', page)}
    assert counts == ["1", "2", "3"]
    assert len(tabs) == len(NAMES)


async def reach(events: AsyncIterator[bytes], unread: int) -> None:
    """Wait for this count. AssertionError if a higher one comes."""
    count = -1
    async with asyncio.timeout(PATIENCE):
        while count != unread:
            if found := re.search(rb"data: (.*)", await anext(events)):
                count = json.loads(found[1])["unread"]
                assert count <= unread


def test_a_stream_tells_of_its_own_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened where the request is served, and read outside. All counts are read again and again."""
    monkeypatch.setattr(live, "IDLE", 0.05)
    monkeypatch.setattr(live, "REREAD", 0.5)

    def start(name: str) -> AsyncIterator[bytes]:
        with at(name):
            request = AsyncRequestFactory().get("/")
            request.user = users()[0]
            response: Any = async_to_sync(stream)(request)
            return aiter(response)

    def add(name: str, number: int) -> None:
        with at(name):
            notify(number)

    async def listen() -> None:
        streams = {name: await sync_to_async(start)(name) for name in ("blue", "green")}
        for name, number, count in (("blue", 0, 0), ("green", 0, 0), ("blue", 1, 1), ("green", 2, 2), ("blue", 1, 2)):
            await sync_to_async(add)(name, number)
            await reach(streams[name], count)
        for each in streams.values():
            await each.aclose()  # type: ignore[attr-defined]

    async_to_sync(listen)()
    wait_until(lambda: not live.feeds._by_badge and live.feeds._thread is None)
