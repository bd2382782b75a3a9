"""The inbox in a browser: plain, and with htmx; under the strictest policy; and while it is open."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from playwright.sync_api import Page, expect

from notifications_counter.counters import unread, unseen
from notifications_counter.models import Notification
from tests.support import notify, wait_until

from .conftest import HASTE

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.once,
    pytest.mark.usefixtures("healed"),
    pytest.mark.slow,
]


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

    def open_inbox(*scripts: str, path: str = "/notifications/", clock: Any = None, **options: Any) -> Page:
        page = new_context(**as_alice, **options).new_page()
        if clock:
            page.clock.install(time=clock)
        for script in scripts:
            page.add_init_script(script)
        page.goto(path)
        return page

    return open_inbox


def has(page: Page, *rows: str) -> None:
    expect(page.locator(".nc-row")).to_contain_class([f"nc-{row}" for row in rows])


def counts(page: Page, number: int) -> None:
    """Wait until the badge shows a number. If two changes within `live.GAP` cancel each other out, the stream says
    nothing, and the list may show them only half a minute later."""
    expect(page.locator(".nc-badge [aria-hidden]")).to_have_text(str(number))


def open_menu(page: Page, row: Any) -> None:
    page.click(f"#nc-more-{row.pk}")
    expect(page.locator(f"#nc-menu-{row.pk}")).to_be_visible()


def use(page: Page, rows: list[Any], says: Callable[[str], None] = lambda message: None) -> None:
    """Everything that the list has buttons for."""
    has(page, "unread", "unread", "unread")
    page.click(f"#nc-mark-{rows[0].pk}")
    says("1 notification marked as read.")
    has(page, "unread", "unread", "read")
    counts(page, 2)
    expect(page.locator(".nc-bulk")).to_be_hidden()
    page.check(f"[name=selected][value='{rows[1].pk}']")
    page.click("#nc-delete")
    says("1 notification deleted.")
    has(page, "unread", "read")
    page.click("#nc-read-all")
    expect(page.locator(".nc-badge")).to_be_hidden()
    says("1 notification marked as read.")
    has(page, "read", "read")
    page.click(f"#nc-mark-{rows[2].pk}")
    says("1 notification marked as unread.")
    has(page, "unread", "read")
    page.click("#nc-more")
    page.click("#nc-delete-read")
    says("1 notification deleted.")
    has(page, "unread")
    expect(page).to_have_url("/notifications/")


def test_without_scripts(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox(java_script_enabled=False)
    use(page, rows, expect(page.locator(".nc-messages")).to_have_text)
    page.click(".nc-bell button")
    expect(page).to_have_url(re.compile("/notifications/[?]?$"))
    open_menu(page, rows[2])
    page.get_by_role("link", name="Details").click()
    expect(page).to_have_url(f"/notifications/{rows[2].pk}/")
    assert unread.count(alice) == 1
    page.go_back()
    page.click(f"#nc-open-{rows[2].pk}")
    expect(page).to_have_url(f"/notifications/{rows[2].pk}/")
    assert unread.count(alice) == 0


def test_with_scripts(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox(HASTE)
    same(page)
    use(page, rows)
    assert same(page)
    page.click(f"#nc-title-{rows[2].pk}", position={"x": 2, "y": 2})  # anywhere in the row
    expect(page).to_have_url(f"/notifications/{rows[2].pk}/")


def test_the_badge_goes_away_when_the_list_is_opened_and_the_rows_stay_unread(with_unseen, open_inbox, alice):
    rows = notify(alice)
    page = open_inbox(path=f"/notifications/{rows[0].pk}/")
    other = page.context.new_page()
    other.goto(f"/notifications/{rows[0].pk}/")
    for tab in (page, other):
        expect(tab.locator(".nc-badge")).to_have_text("3 3 new notifications")
    page.click("header a")
    for tab in (page, other):
        expect(tab.locator(".nc-badge")).to_be_hidden()
    page.bring_to_front()
    Notification.objects.create(user=alice, title="one more")  # in sight
    has(page, "unread", "unread", "unread", "unread")
    wait_until(lambda: unseen.count(alice) == 0)
    assert unread.count(alice) == 4


def test_with_htmx(with_htmx, open_inbox, alice):
    rows = notify(alice)
    page = open_inbox(HASTE)
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


# ----------------------------------------------------------------------------------------------- while it is open
STATUS = ".nc-inbox > .nc-toast"


def titled(page: Page, *titles: str) -> None:
    expect(page.locator(".nc-title bdi")).to_have_text(list(titles))


def same(page: Page) -> bool:
    """Whether the page has not been reloaded since the last call."""
    return page.evaluate("() => { const was = window.same; window.same = true; return was }")


@pytest.fixture(params=["tests.browser.urls", "tests.browser.urls_without_streams"], ids=["stream", "poll"])
def way(request, settings) -> None:
    settings.ROOT_URLCONF = request.param


@pytest.mark.usefixtures("way")
def test_the_list_follows_what_happens_elsewhere(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox(HASTE)
    same(page)
    Notification.objects.create(user=alice, title="new")
    titled(page, "new", "2", "1", "0")
    expect(page.locator(".nc-new")).to_have_text(re.compile("new"))
    Notification.objects.filter(pk=rows[1].pk).mark_as_read()
    has(page, "unread", "unread", "read", "unread")
    Notification.objects.filter(pk=rows[2].pk).delete()
    titled(page, "new", "1", "0")
    Notification.objects.filter(pk=rows[1].pk).delete()  # the count stays
    titled(page, "new", "0")
    Notification.objects.all().delete()
    expect(page.locator(".nc-empty")).to_have_text("No notifications.")
    assert same(page)


def test_tabs_have_numbers_that_live(open_inbox, with_kinds, alice):
    """On a phone, in dark, by the keyboard."""

    def send(kind: str, number: int = 1) -> list[Notification]:
        return Notification.objects.bulk_create(
            Notification(user=alice, kind=kind, title=f"{kind} {i}") for i in range(number)
        )

    def shows(**tabs: int) -> None:
        numbers = {"All kinds": sum(tabs.values()), **tabs} if tabs else {}
        texts = [f"{kind} {n} {n} unread notification{'s' * (n > 1)}" for kind, n in numbers.items()]
        expect(page.locator(".nc-kinds li:visible")).to_have_text(texts)

    page, long = open_inbox(viewport={"width": 360, "height": 700}, color_scheme="dark"), "a" * 64
    shows()  # there is nothing to choose from
    orders = send("order", 2)
    shows(order=2)
    send(long)
    shows(**{long: 1, "order": 2})
    orders[0].mark_as_read()
    shows(**{long: 1, "order": 1})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("link", name="order").focus()
    page.keyboard.press("Enter")
    titled(page, "order 1", "order 0")
    page.click("text=Mark all in “order” as read")
    expect(page.locator(STATUS)).to_have_text("1 notification marked as read.")
    titled(page, "order 1", "order 0")
    expect(page.locator(".nc-kinds [aria-current] .nc-badge")).to_be_hidden()


def test_nothing_moves_under_a_pointer(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox()
    page.hover(f"#nc-open-{rows[1].pk}")
    place = page.locator(f"#nc-open-{rows[1].pk}").bounding_box()
    Notification.objects.create(user=alice, title="new")  # in this order, each count is another one
    Notification.objects.filter(pk=rows[0].pk).mark_as_read()
    Notification.objects.filter(pk=rows[2].pk).delete()
    expect(page.locator(STATUS)).to_have_text("There are new notifications.Show")
    titled(page, "2", "1", "0")
    has(page, "gone", "unread", "read")
    expect(page.locator(".nc-gone")).to_contain_text("No longer in this list")
    assert page.locator(f"#nc-open-{rows[1].pk}").bounding_box() == place
    page.click(f"#nc-mark-{rows[2].pk}")  # it is not there any more
    expect(page.locator(".nc-gone")).to_have_count(1)
    page.hover("h1")
    titled(page, "new", "1", "0")
    expect(page.locator(STATUS)).to_be_empty()
    expect(page.locator(".nc-title").first).to_be_focused()  # what was clicked has gone


def test_the_keyboard_stays_where_it_is(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox()
    control = page.locator(f"#nc-mark-{rows[1].pk}")
    control.focus()
    Notification.objects.filter(pk=rows[1].pk).mark_as_read()
    has(page, "unread", "read", "unread")
    expect(control).to_be_focused()
    Notification.objects.create(user=alice, title="new")
    show = page.get_by_role("button", name="Show")
    show.focus()
    page.wait_for_timeout(600)  # in which a list that is left is brought up to date
    show.press("Enter")
    titled(page, "new", "2", "1", "0")
    expect(page.locator(".nc-title").first).to_be_focused()


def test_times_stay_true(open_inbox, alice):
    notify(alice, 5)
    ages = [timedelta(0), timedelta(minutes=3), timedelta(hours=2), timedelta(days=1), timedelta(days=400)]
    for row, age in zip(Notification.objects.order_by("-pk"), ages, strict=True):
        Notification.objects.filter(pk=row.pk).update(created_at=row.created_at - age)
    page = open_inbox(clock=timezone.now() + timedelta(hours=5))  # the visitor's clock is wrong
    times = page.locator(".nc-row time")
    date = re.compile(r"^\d\d/\d\d/\d{4}$")
    expect(times).to_have_text(["now", "3m ago", "2h ago", "yesterday", date])
    expect(times.nth(1)).to_have_attribute("title", re.compile(r"^\w+\.? \d+, \d{4}, "))
    page.clock.fast_forward("01:05")
    expect(times).to_have_text(["1m ago", "4m ago", "2h ago", "yesterday", date])


def test_it_says_when_it_cannot_be_current(browser, as_alice, alice):
    notify(alice, 1)
    with browser.new_context(**as_alice) as context:  # the console is full of what cannot be reached
        page = context.new_page()
        page.add_init_script(HASTE)
        page.goto("/notifications/")
        context.set_offline(True)
        expect(page.locator(STATUS)).to_have_text("You are offline. This list may be out of date.")
        context.set_offline(False)
        expect(page.locator(STATUS)).to_be_empty()
        page.route("**/notifications/", lambda route: route.fulfill(status=500))
        expect(page.locator(STATUS)).to_have_text("This list could not be updated.Try again")
        page.get_by_role("button", name="Try again").focus()
        page.unroute("**/notifications/")
        expect(page.locator(STATUS)).to_be_empty()
        expect(page.locator(".nc-title")).to_be_focused()  # what had the focus has gone
        Session.objects.all().delete()
        expect(page.locator(STATUS)).to_have_text("You are logged out.Log in")
        expect(page.locator(f"{STATUS} a")).to_have_attribute("href", "/notifications/")


# --------------------------------------------------------------------------------------------------------- changes
def visible(page: Page, *titles: str) -> None:
    expect(page.locator(".nc-row:visible .nc-title bdi")).to_have_text(list(titles))


def test_a_deletion_can_be_undone(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox()
    for which, left in ((0, ["2", "1"]), (1, ["2"])):
        open_menu(page, rows[which])
        page.click(f"#nc-delete-{rows[which].pk}")
        visible(page, *left)
    wait_until(lambda: Notification.objects.count() == 2)  # nobody can undo the first one any more
    page.click("text=Undo")
    visible(page, "2", "1")
    expect(page.locator(".nc-title").first).to_be_focused()
    open_menu(page, rows[2])
    page.click(f"#nc-delete-{rows[2].pk}")
    visible(page, "1")
    page.goto("about:blank")  # whoever leaves means it
    wait_until(lambda: list(Notification.objects.all()) == [rows[1]])


def test_older_rows_come_when_one_scrolls(open_inbox, alice):
    notify(alice, 45)
    page = open_inbox()
    expect(page.locator(".nc-row")).to_have_count(20)
    for rows in (40, 45):
        page.mouse.wheel(0, 100_000)
        expect(page.locator(".nc-row")).to_have_count(rows)
    expect(page.locator("[rel=next]")).to_have_count(0)
    expect(page.locator(".nc-title bdi")).to_have_text([str(n) for n in range(44, -1, -1)])


def test_keys(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox()
    for key, row in (("j", 2), ("j", 1), ("j", 0), ("j", 0), ("k", 1)):
        page.keyboard.press(key)
        expect(page.locator(f"#nc-open-{rows[row].pk}")).to_be_focused()
    page.keyboard.press("e")
    has(page, "unread", "read", "unread")
    expect(page.locator(f"#nc-open-{rows[1].pk}")).to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("#nc-keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#nc-keys")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"/notifications/{rows[1].pk}/")


# ------------------------------------------------------------------------------------------------------------ bell


@pytest.mark.usefixtures("way")
def test_a_bell_opens_what_is_new(open_inbox, alice):
    rows = notify(alice, 12)
    page = open_inbox(HASTE, path=f"/notifications/{rows[0].pk}/")
    asked = []
    page.on("request", lambda request: asked.append(request.headers.get("x-part")))
    bell, panel = page.locator(".nc-bell button"), page.locator(".nc-bell-panel")
    expect(bell).to_have_accessible_name("12 unread notifications")
    counts(page, 12)
    assert "bell" not in asked
    bell.press("Enter")
    expect(panel).to_be_focused()
    expect(panel.locator(".nc-row")).to_have_count(10)
    expect(panel.get_by_role("link", name="See all")).to_be_in_viewport()  # below a list that scrolls
    for key, row in (("ArrowDown", 11), ("ArrowDown", 10), ("ArrowUp", 11)):
        page.keyboard.press(key)
        expect(page.locator(f"#nc-bell-open-{rows[row].pk}")).to_be_focused()
    page.keyboard.press("e")
    has(page, "read", *["unread"] * 9)
    expect(bell).to_have_accessible_name("11 unread notifications")
    panel.get_by_role("link", name="Unread").click()
    titled(page, *[str(n) for n in range(10, 0, -1)])
    page.mouse.move(0, 0)
    panel.focus()
    Notification.objects.create(user=alice, title="new")
    titled(page, "new", *[str(n) for n in range(10, 1, -1)])
    panel.get_by_role("button", name="Mark all as read").click()
    expect(panel.locator(".nc-empty")).to_have_text("Nothing unread.")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(bell).to_be_focused()
    bell.click()
    panel.get_by_role("link", name="See all").click()
    expect(page).to_have_url("/notifications/")


# ------------------------------------------------------------------------------------------------- on other pages
@pytest.mark.usefixtures("way")
def test_a_toast_on_other_pages(open_inbox, alice):
    rows = notify(alice)
    all_but_the_toast = HASTE.replace("ms / 100", "ms === 12_000 ? ms : ms / 100")
    page = open_inbox(all_but_the_toast, path=f"/notifications/{rows[0].pk}/")
    region = page.locator("[data-unread-toast]")
    counts(page, 3)
    Notification.objects.filter(pk=rows[1].pk).mark_as_read()
    counts(page, 2)
    with page.expect_response("**/api/?**"):
        Notification.objects.filter(pk=rows[1].pk).mark_as_unread()
    expect(region).to_have_text("")
    Notification.objects.create(user=alice, title="<b>new")
    expect(region).to_have_text("New: <b>newClose")
    page.get_by_role("button", name="Close").click()
    expect(region).to_have_text("")
    new = Notification.objects.create(user=alice, title="newer")
    region.get_by_role("link", name="newer").click()
    expect(page).to_have_url(f"/notifications/{new.pk}/")
