"""The script of the badge, in a browser, on a real server."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.test import Client

from demo_project.servers import HOST
from notifications_counter import live as live_module
from notifications_counter.live import live
from notifications_counter.models import Notification
from tests.asgi import serving
from tests.support import notify

from .chromium import SECONDS, Chromium, Tab, chromium, needs_chromium

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.once,
    pytest.mark.usefixtures("healed"),
    needs_chromium,
]

NEWS = "document.addEventListener('notifications:unread', (e) => (window.news ??= []).push(e.detail.unread));"
HASTE = "{ const wait = setTimeout; window.setTimeout = (f, ms) => wait(f, ms / 100); }"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_tab(browser, settings, monkeypatch) -> Iterator[Callable[..., Tab]]:
    """A function that opens the page as a user."""
    settings.ROOT_URLCONF = "tests.browser.urls"
    settings.ALLOWED_HOSTS = [HOST]
    monkeypatch.setattr(live_module, "IDLE", 0.05)
    monkeypatch.setattr(live_module, "RETRY", (1, 1))
    tabs: list[Tab] = []
    sessions: dict[Any, str] = {}

    with serving(ASGIStaticFilesHandler(get_asgi_application())) as port:

        def open_page(user: Any, first: str = "") -> Tab:
            if user not in sessions:
                client = Client()
                client.force_login(user)
                sessions[user] = client.cookies[settings.SESSION_COOKIE_NAME].value
            cookies = {settings.SESSION_COOKIE_NAME: sessions[user]}
            tabs.append(browser.open(f"http://{HOST}:{port}/page/", NEWS + first, **cookies))
            return tabs[-1]

        yield open_page
        for tab in tabs:
            if tab.target in [t["targetId"] for t in browser.call("Target.getTargets")["targetInfos"]]:
                tab.close()
        wait_until(lambda: live._thread is None)


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def shows(tab: Tab, count: int) -> None:
    tab.wait(f"window.news?.at(-1) === {count}")
    text = "[...document.querySelectorAll('[data-unread-badge]')].map((b) => b.hidden ? '' : b.innerText)"
    spoken = f"{count} unread notification{'' if count == 1 else 's'}"
    capped = str(count) if count <= 2 else "2+"
    expected = [f"{capped} {spoken}", f"{count} {spoken}", str(count)] if count else ["", "", ""]
    assert [" ".join(t.split()) for t in tab.ask(text)] == expected


def streams() -> int:
    return sum(len(streams) for streams in live._streams.values())


def test_all_tabs_over_one_stream(open_tab, alice, bob):
    notify(alice, 1)
    tabs = [open_tab(alice) for _ in range(3)]
    for tab in tabs:
        shows(tab, 1)
    assert streams() == 1
    notify(alice, 2)
    for tab in tabs:
        shows(tab, 3)
    Notification.objects.for_user(alice).mark_as_read()
    for tab in tabs:
        shows(tab, 0)
    assert streams() == 1


def test_another_tab_takes_over(open_tab, alice):
    tabs = [open_tab(alice) for _ in range(3)]
    for count, tab in enumerate(tabs, 1):
        notify(alice, 1)
        for other in tabs[count - 1 :]:
            shows(other, count)
        tab.close()
        wait_until(lambda tab=tab: tab is tabs[-1] or streams() == 1)


def test_a_frozen_tab_is_passed_over(open_tab, alice):
    first = open_tab(alice)
    shows(first, 0)
    first.call("Page.setWebLifecycleState", state="frozen")
    second = open_tab(alice)
    notify(alice, 1)
    shows(second, 1)
    first.call("Page.setWebLifecycleState", state="active")
    notify(alice, 1)
    shows(first, 2)
    shows(second, 2)
    wait_until(lambda: streams() == 1)


def test_a_tab_that_hangs_is_passed_over(open_tab, alice):
    first = open_tab(alice)
    shows(first, 0)
    first.call("Debugger.enable")
    first.call("Debugger.pause")
    second = open_tab(alice)
    notify(alice, 1)
    shows(second, 1)
    first.call("Debugger.disable")
    notify(alice, 1)
    shows(first, 2)
    shows(second, 2)
    wait_until(lambda: streams() == 1)


def test_back_and_forward(open_tab, alice):
    tab = open_tab(alice)
    shows(tab, 0)
    url = tab.ask("location.href")
    tab.call("Page.navigate", url="about:blank")
    wait_until(lambda: streams() == 0)
    notify(alice, 1)
    tab.ask("history.back()")
    tab.wait(f"location.href === '{url}' && document.readyState === 'complete'")
    shows(tab, 1)
    notify(alice, 1)
    shows(tab, 2)


def test_it_polls_where_there_are_no_streams(open_tab, settings, alice):
    settings.ROOT_URLCONF = "tests.browser.urls_without_streams"
    tab, other = open_tab(alice, HASTE), open_tab(alice, HASTE)
    for count in range(1, 4):
        notify(alice, 1)
        shows(tab, count)
        shows(other, count)


def test_a_stream_is_tried_again(open_tab, settings, alice):
    settings.ROOT_URLCONF = "tests.browser.urls_without_streams"
    tab = open_tab(alice, HASTE)
    shows(tab, 0)
    settings.ROOT_URLCONF = "tests.browser.urls"
    wait_until(lambda: streams() == 1)
    notify(alice, 1)
    shows(tab, 1)


def test_it_polls_where_tabs_cannot_agree(open_tab, alice):
    tab = open_tab(alice, HASTE + "Object.defineProperty(navigator, 'locks', { value: undefined });")
    for count in range(1, 4):
        notify(alice, 1)
        shows(tab, count)
    assert streams() == 0


def test_it_ends_with_the_login(open_tab, monkeypatch, alice):
    monkeypatch.setattr(live_module, "MAX_AGE", 0.1)
    monkeypatch.setattr(live_module, "HEARTBEAT", 0.1)
    tab = open_tab(alice, HASTE)
    shows(tab, 0)
    Session.objects.all().delete()
    tab.wait("navigator.locks.query().then((locks) => locks.held.length === 0)")
    assert streams() == 0
