"""The inbox in a browser: plain, and with htmx; under the strictest policy."""

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from playwright.sync_api import Page, expect

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import notify

from .conftest import NEWS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.usefixtures("healed")]


def policy(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def respond(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    return respond


@pytest.fixture(autouse=True)
def _strict(settings) -> None:
    settings.MIDDLEWARE = [f"{__name__}.policy", *settings.MIDDLEWARE]


@pytest.fixture
def with_htmx(settings) -> None:
    pytest.importorskip("django_htmx")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_htmx"]


@pytest.fixture
def open_inbox(as_alice, new_context) -> Callable[..., Page]:
    """A function that opens the inbox of Alice in a new browser."""

    def open_inbox(**options: Any) -> Page:
        page = new_context(**as_alice, **options).new_page()
        page.goto("/notifications/")
        return page

    return open_inbox


def has(page: Page, *rows: str) -> None:
    expect(page.locator(".nc-row")).to_contain_class([f"nc-{row}" for row in rows])


def says(page: Page, message: str) -> None:
    expect(page.locator(".nc-messages")).to_have_text(message)
    # What htmx has put into the page, it makes its own a moment later.
    expect(page.locator(".htmx-settling")).to_have_count(0)


def use(page: Page, rows: list[Any]) -> None:
    """Everything that the list has buttons for."""
    has(page, "unread", "unread", "unread")
    page.click(f"#nc-mark-{rows[0].pk}")
    says(page, "1 notification marked as read.")
    has(page, "unread", "unread", "read")
    expect(page.locator(".nc-badge [aria-hidden]")).to_have_text("2")
    page.check(f"[name=selected][value='{rows[1].pk}']")
    page.click("#nc-delete")
    says(page, "1 notification deleted.")
    has(page, "unread", "read")
    page.click("#nc-read-all")
    expect(page.locator(".nc-badge")).to_be_hidden()
    says(page, "1 notification marked as read.")
    has(page, "read", "read")
    page.click(f"#nc-mark-{rows[2].pk}")
    says(page, "1 notification marked as unread.")
    page.click("#nc-delete-read")
    says(page, "1 notification deleted.")
    has(page, "unread")
    expect(page).to_have_url("/notifications/")


def test_without_scripts(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox(java_script_enabled=False)
    use(page, rows)
    page.click(f"#nc-open-{rows[2].pk}")
    expect(page).to_have_url(f"/notifications/{rows[2].pk}/")
    assert unread.count(alice) == 0


def test_with_htmx(with_htmx, open_inbox, alice):
    rows = notify(alice)
    page = open_inbox()
    page.evaluate("() => { window.same = true }")
    use(page, rows)
    page.click(f"#nc-mark-{rows[2].pk}")
    has(page, "read")
    expect(page.locator(f"#nc-mark-{rows[2].pk}")).to_be_focused()
    assert page.evaluate("() => window.same")
    assert not page.evaluate(
        "() => Object.values({...localStorage, ...sessionStorage}).some((text) => text.includes('<'))"
    )
    Notification.objects.filter(pk=rows[2].pk).update(url="/admin/login/")
    page.click(f"#nc-open-{rows[2].pk}")  # another page, with scripts and styles of its own
    expect(page).to_have_url("/admin/login/")
    assert not page.evaluate("() => window.same")


def test_pages_with_htmx(with_htmx, open_inbox, alice):
    notify(alice, 25)
    page = open_inbox()
    page.evaluate("() => { window.same = true }")
    page.click("[rel=next]")
    expect(page.locator(".nc-row")).to_have_count(5)
    assert "before" in page.url
    assert page.evaluate("() => window.same")
    page.go_back()
    expect(page.locator(".nc-row")).to_have_count(20)
    expect(page).to_have_url("/notifications/")


def test_a_badge_that_comes_with_a_part_of_the_page_is_kept_current(open_inbox, alice):
    """Also where the count has been there and back since the page was made, which no stream tells."""
    notify(alice, 1)
    page = open_inbox()
    page.add_init_script(NEWS)
    page.reload()
    expect(page.locator("body")).to_have_attribute("data-news", "1")
    page.evaluate(
        """() => {
            const old = document.querySelector(".nc-badge").outerHTML.replaceAll("1", "7");
            document.querySelector("main").insertAdjacentHTML("beforeend", `<p id="new">${old}</p>`);
        }"""
    )
    expect(page.locator("#new")).to_have_text("1 1 unread notification")
