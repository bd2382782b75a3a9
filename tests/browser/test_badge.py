"""The script of the badge, in a browser, on a real server."""

from collections.abc import Callable, Iterator

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import CDPSession, Page, expect

from notifications_counter.inbox import stream as stream_module
from notifications_counter.inbox.live import feeds
from notifications_counter.models import Notification
from tests.support import notify, wait_until
from tests.tasks.models import Project, Task

from .conftest import HASTE, NEWS

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.once,
    pytest.mark.usefixtures("healed"),
    pytest.mark.slow,
]


@pytest.fixture
def open_page(browser, as_alice) -> Iterator[Callable[..., Page]]:
    """A function that opens the page in one more tab of Alice. The scripts run before those of the page."""
    with browser.new_context(**as_alice) as context:

        def open_page(*scripts: str, path: str = "/page/") -> Page:
            page = context.new_page()
            for script in (NEWS, *scripts):
                page.add_init_script(script)
            page.goto(path)
            return page

        yield open_page


def shows(page: Page, count: int) -> None:
    expect(page.locator("body")).to_have_attribute("data-news", str(count))
    spoken = f"{count} unread notification{'' if count == 1 else 's'}"
    capped = str(count) if count <= 2 else "2+"
    expected = [f"{capped} {spoken}", f"{count} {spoken}", str(count)] if count else []
    expect(page.locator("[data-badge=unread]:visible")).to_have_text(expected)


def streams() -> int:
    return sum(len(open_feeds) for open_feeds in feeds._by_badge.values())


def devtools(page: Page) -> CDPSession:
    return page.context.new_cdp_session(page)


def test_all_tabs_over_one_stream(open_page, alice):
    notify(alice, 1)
    pages = [open_page() for _ in range(3)]
    for page in pages:
        shows(page, 1)
    assert streams() == 1
    notify(alice, 2)
    for page in pages:
        shows(page, 3)
    Notification.objects.for_user(alice).mark_as_read()
    for page in pages:
        shows(page, 0)
    assert streams() == 1


@pytest.mark.usefixtures("few_healed")
def test_each_tab_has_badges_of_its_own(open_page, alice):
    one, two = Project.objects.create(), Project.objects.create()
    leader = open_page()
    shows(leader, 0)
    first = open_page(path=f"/projects/?project={one.pk}")
    second = open_page(path=f"/projects/?project={one.pk}&project={two.pk}")

    def show(page: Page, *counts: int) -> None:
        badges = page.locator("[data-badge]")
        expect(badges.locator("[aria-hidden]")).to_have_text([str(count) for count in counts])
        expect(badges.locator(".nc-visually-hidden")).to_have_text([f"open tasks: {count}" for count in counts])
        expect(page.locator("[data-badge]:visible")).to_have_count(sum(count > 0 for count in counts))

    wait_until(lambda: {badge.owner_key for _, badge in feeds._by_badge} == {str(alice.pk), str(one.pk), str(two.pk)})
    Task.objects.create(project=one)
    show(first, 1)
    show(second, 1, 0)
    assert {len(open_feeds) for open_feeds in feeds._by_badge.values()} == {1}
    leader.close()
    for project in (one, two):
        Task.objects.create(project=project)
    show(first, 2)
    show(second, 2, 1)
    Task.objects.all().delete()
    notify(alice, 1)
    show(first, 0)
    show(second, 0, 0)
    shows(open_page(), 1)


def test_another_tab_takes_over(open_page, alice):
    """Also where the first one is frozen."""
    frozen = open_page()
    shows(frozen, 0)
    devtools(frozen).send("Page.setWebLifecycleState", {"state": "frozen"})
    pages = [open_page(), open_page()]
    notify(alice, 1)
    for page in pages:
        shows(page, 1)
    pages[0].close()
    notify(alice, 1)
    shows(pages[1], 2)
    devtools(frozen).send("Page.setWebLifecycleState", {"state": "active"})
    notify(alice, 1)
    shows(frozen, 3)
    shows(pages[1], 3)
    wait_until(lambda: streams() == 1)


def test_back_and_forward(open_page, alice):
    page = open_page()
    shows(page, 0)
    page.goto("about:blank")
    wait_until(lambda: streams() == 0)
    notify(alice, 1)
    page.go_back(wait_until="commit")  # a page that was kept does not load
    shows(page, 1)
    notify(alice, 1)
    shows(page, 2)


@pytest.mark.parametrize(
    "script",
    [
        "",  # there are no streams
        # As behind a proxy that holds events back, or after the connection was lost without an error.
        "EventSource = class extends EventTarget { static CLOSED = 2; close() { this.readyState = 2; } };",
        "Object.defineProperty(navigator, 'locks', { value: undefined });",
        "navigator.locks.request = () => Promise.reject(new DOMException('', 'SecurityError'));",  # as in a sandbox
    ],
    ids=["no streams", "a silent stream", "no locks", "locks refused"],
)
def test_it_polls_where_there_is_no_stream_or_tabs_cannot_agree(open_page, settings, alice, script):
    if not script:
        settings.ROOT_URLCONF = "tests.browser.urls_without_streams"
    page = open_page(HASTE, script)
    for count in range(1, 4):
        notify(alice, 1)
        shows(page, count)
    assert streams() == 0


def test_a_stream_is_tried_again(open_page, settings, alice):
    settings.ROOT_URLCONF = "tests.browser.urls_without_streams"
    page = open_page(HASTE)
    shows(page, 0)
    settings.ROOT_URLCONF = "tests.browser.urls"
    wait_until(lambda: streams() == 1)
    notify(alice, 1)
    shows(page, 1)


def test_it_ends_with_the_login(open_page, monkeypatch, alice):
    monkeypatch.setattr(stream_module, "MAX_AGE", 0.1)
    monkeypatch.setattr(stream_module, "HEARTBEAT", 0.1)
    page = open_page(HASTE)
    shows(page, 0)
    Session.objects.all().delete()
    wait_until(lambda: page.evaluate("async () => (await navigator.locks.query()).held.length") == 0)
    assert streams() == 0
