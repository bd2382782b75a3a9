"""The inbox in a browser: plain, and with htmx; under the strictest policy."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.test import Client

from demo_project.servers import HOST
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.asgi import serving
from tests.support import notify

from .chromium import Chromium, Tab, chromium, needs_chromium

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.once,
    pytest.mark.usefixtures("healed"),
    needs_chromium,
]

VIOLATIONS = (
    "window.violations = []; addEventListener('securitypolicyviolation', (e) => violations.push(e.blockedURI));"
)
ROWS = "[...document.querySelectorAll('.nc-row')].map((row) => row.className.split('-').at(-1)).join(' ')"
BADGE = "document.querySelector('.nc-badge [aria-hidden]')?.innerText"
# What htmx has put into the page, it makes its own a moment later.
MESSAGE = "!document.querySelector('.htmx-settling') && document.querySelector('.nc-messages')?.innerText"


def policy(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def respond(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    return respond


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_inbox(browser, settings, alice) -> Iterator[Callable[..., Tab]]:
    """A function that opens the inbox of Alice."""
    settings.ALLOWED_HOSTS = [HOST]
    settings.MIDDLEWARE = [f"{__name__}.policy", *settings.MIDDLEWARE]
    client = Client()
    client.force_login(alice)
    cookies = {settings.SESSION_COOKIE_NAME: client.cookies[settings.SESSION_COOKIE_NAME].value}
    tabs: list[Tab] = []
    with serving(ASGIStaticFilesHandler(get_asgi_application())) as port:

        def open_page() -> Tab:
            tabs.append(browser.open(f"http://{HOST}:{port}/notifications/", VIOLATIONS, **cookies))
            return tabs[-1]

        yield open_page
        for tab in tabs:
            tab.close()


def click(tab: Tab, button: str) -> None:
    tab.ask(f"document.getElementById('{button}').focus(), document.getElementById('{button}').click()")


def says(tab: Tab, message: str) -> None:
    tab.wait(f"({MESSAGE}) === '{message}'")


def use(tab: Tab, rows: list[Any]) -> None:
    """Everything that the list has buttons for."""
    assert tab.ask(ROWS) == "unread unread unread"
    click(tab, f"nc-mark-{rows[0].pk}")
    says(tab, "1 notification marked as read.")
    assert tab.ask(ROWS) == "unread unread read"
    tab.wait(f"{BADGE} === '2'")
    tab.ask(f"document.querySelector('[name=selected][value=\"{rows[1].pk}\"]').checked = true")
    click(tab, "nc-delete")
    says(tab, "1 notification deleted.")
    assert tab.ask(ROWS) == "unread read"
    click(tab, "nc-read-all")
    tab.wait("document.querySelector('.nc-badge')?.hidden")
    says(tab, "1 notification marked as read.")
    assert tab.ask(ROWS) == "read read"
    click(tab, f"nc-mark-{rows[2].pk}")
    says(tab, "1 notification marked as unread.")
    click(tab, "nc-delete-read")
    says(tab, "1 notification deleted.")
    assert tab.ask(ROWS) == "unread"
    assert tab.ask("location.pathname") == "/notifications/"


def test_without_scripts(open_inbox, alice):
    rows = notify(alice)
    tab = open_inbox()
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    use(tab, rows)
    click(tab, f"nc-open-{rows[2].pk}")
    tab.wait(f"location.pathname === '/notifications/{rows[2].pk}/'")
    assert unread.count(alice) == 0


def test_with_htmx(open_inbox, settings, alice):
    pytest.importorskip("django_htmx")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_htmx"]
    rows = notify(alice)
    tab = open_inbox()
    tab.ask("window.same = true")
    use(tab, rows)
    assert tab.ask("window.same && violations.length === 0")
    click(tab, f"nc-mark-{rows[2].pk}")
    tab.wait(f"{ROWS} === 'read'")
    assert tab.ask("document.activeElement.id") == f"nc-mark-{rows[2].pk}"
    assert not tab.ask("Object.values({...localStorage, ...sessionStorage}).some((text) => text.includes('<'))")
    Notification.objects.filter(pk=rows[2].pk).update(url="/admin/login/")
    click(tab, f"nc-open-{rows[2].pk}")  # another page, with scripts and styles of its own
    tab.wait("location.pathname === '/admin/login/' && document.readyState === 'complete'")
    assert not tab.ask("window.same")


def test_pages_with_htmx(open_inbox, settings, alice):
    pytest.importorskip("django_htmx")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_htmx"]
    notify(alice, 25)
    tab = open_inbox()
    tab.ask("window.same = true; document.querySelector('[rel=next]').click()")
    tab.wait("document.querySelectorAll('.nc-row').length === 5 && location.search.includes('before')")
    assert tab.ask("window.same && violations.length === 0")
    tab.ask("history.back()")
    tab.wait("document.querySelectorAll('.nc-row').length === 20 && !location.search")


def test_a_badge_that_comes_with_a_part_of_the_page_is_kept_current(open_inbox, alice):
    """Also where the count has been there and back since the page was made, which no stream tells."""
    notify(alice, 1)
    tab = open_inbox()
    tab.wait("navigator.locks.query().then((locks) => locks.held.length === 1)")
    old = tab.ask("document.querySelector('.nc-badge').outerHTML").replace("1", "7")
    tab.ask(f"document.querySelector('main').insertAdjacentHTML('beforeend', `<p id='new'>{old}</p>`)")
    tab.wait("document.querySelector('#new').textContent.trim() === '1 1 unread notification'")
