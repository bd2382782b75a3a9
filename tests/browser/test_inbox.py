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
from notifications_counter.inbox.api import InboxAPI
from notifications_counter.inbox.views import InboxView
from notifications_counter.models import Notification
from tests.support import notify, wait_until

from .conftest import HASTE, NEWS

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


def test_the_badge_goes_away_when_the_list_is_opened_and_the_rows_stay_bold(with_unseen, open_inbox, alice):
    rows = notify(alice)
    page = open_inbox(path=f"/notifications/{rows[0].pk}/", viewport={"width": 400, "height": 800})
    other = page.context.new_page()
    other.goto(f"/notifications/{rows[0].pk}/")
    for tab in (page, other):
        expect(tab.locator(".nc-badge")).to_have_text("3 3 new notifications")
    page.click("header a")
    for tab in (page, other):
        expect(tab.locator(".nc-badge")).to_be_hidden()
    has(page, "unread", "unread", "unread")
    weights = page.locator(".nc-title").evaluate_all(
        "titles => titles.map((title) => getComputedStyle(title).fontWeight)"
    )
    assert weights == ["650"] * 3
    page.bring_to_front()
    Notification.objects.create(user=alice, title="one more")  # in sight
    has(page, "unread", "unread", "unread", "unread")
    wait_until(lambda: unseen.count(alice) == 0)
    for tab in (page, other):
        expect(tab.locator(".nc-badge")).to_be_hidden()
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


def test_pages_with_htmx(with_htmx, open_inbox, alice, monkeypatch):
    monkeypatch.setattr(InboxView, "max_rows", 20)
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
    notify(alice, 1)
    titled(page, "0")
    assert same(page)


def test_tabs_have_numbers_that_live(open_inbox, with_kinds, alice):
    """On a phone, in dark, by the keyboard."""

    def send(kind: str, number: int = 1) -> list[Notification]:
        return Notification.objects.bulk_create(
            Notification(user=alice, kind=kind, title=f"{kind} {i}") for i in range(number)
        )

    def shows(*texts: str) -> None:
        expect(page.locator(".nc-kinds li:visible")).to_have_text(texts)

    page = open_inbox(viewport={"width": 360, "height": 700}, color_scheme="dark")
    shows()  # there is nothing to choose from
    orders = send("order", 2)
    spoken = "{} {} unread notification{}".format
    every, two, one = spoken("All kinds 2", 2, "s"), spoken("order 2", 2, "s"), spoken("order 1", 1, "")
    shows(every, two)
    send("a" * 64)
    shows(spoken("All kinds 3", 3, "s"), spoken("a" * 64 + " 1", 1, ""), two)
    orders[0].mark_as_read()
    shows(spoken("All kinds 2", 2, "s"), spoken("a" * 64 + " 1", 1, ""), one)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("link", name="order").focus()
    page.keyboard.press("Enter")
    titled(page, "order 1", "order 0")
    expect(page.locator(".nc-kinds [aria-current]")).to_have_text(one)
    page.click("text=Mark all in “order” as read")
    expect(page.locator(STATUS)).to_have_text("1 notification marked as read.")
    titled(page, "order 1", "order 0")
    expect(page.locator(".nc-kinds [aria-current] .nc-badge")).to_be_hidden()
    expect(page.locator(".nc-kinds [role=status]")).to_have_count(0)
    orders[0].mark_as_unread()
    expect(page.locator(".nc-kinds [aria-current]")).to_have_text(one)


def test_all_tabs_are_in_sight_on_a_desktop(open_inbox, with_kinds, alice):
    kinds = [f"quite a long kind {n}" for n in range(12)]
    Notification.objects.bulk_create(Notification(user=alice, kind=kind, title="x") for kind in kinds)
    page = open_inbox(viewport={"width": 1280, "height": 800})
    for tab in page.locator(".nc-kinds li").all():
        expect(tab).to_be_in_viewport(ratio=1)
    assert page.locator(".nc-kinds").evaluate("list => list.scrollWidth === list.clientWidth")


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
    for name in ("select", "mark"):
        control = page.locator(f"#nc-{name}-{rows[1].pk}")
        control.focus()
        Notification.objects.filter(pk=rows[1].pk).mark_as_read()
        counts(page, 2)
        has(page, "unread", "read", "unread")
        expect(control).to_be_focused()
        Notification.objects.filter(pk=rows[1].pk).mark_as_unread()
        counts(page, 3)
        has(page, "unread", "unread", "unread")
        expect(control).to_be_focused()
    Notification.objects.create(user=alice, title="new")
    show = page.get_by_role("button", name="Show")
    show.focus()
    page.wait_for_timeout(600)  # in which a list that is left is brought up to date
    expect(show).to_be_focused()
    show.press("Enter")
    titled(page, "new", "2", "1", "0")
    expect(page.locator(".nc-title").first).to_be_focused()


def test_a_selection_stays(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox()
    page.check(f"#nc-select-{rows[1].pk}")
    page.hover("h1")
    page.evaluate("document.activeElement.blur()")
    Notification.objects.filter(pk=rows[1].pk).mark_as_read()
    counts(page, 2)
    has(page, "unread", "read", "unread")
    Notification.objects.create(user=alice, title="new")
    expect(page.locator(STATUS)).to_contain_text("There are new notifications.")
    page.click("text=Show")
    titled(page, "new", "2", "1", "0")
    expect(page.locator(":checked")).to_have_value(str(rows[1].pk))


def test_a_reader_who_has_scrolled_is_left_alone(open_inbox, alice):
    notify(alice, 20)
    page = open_inbox(viewport={"width": 400, "height": 500})
    page.mouse.wheel(0, 1200)
    page.wait_for_function("scrollY > 600")
    Notification.objects.create(user=alice, title="new")
    expect(page.locator(STATUS)).to_contain_text("There are new notifications.")
    expect(page.locator(".nc-title bdi").first).to_have_text("19")
    page.evaluate("scrollTo(0, 0)")
    expect(page.locator(".nc-title bdi").first).to_have_text("new")


def test_a_page_that_overflows_goes_on_where_it_ends(open_inbox, alice, monkeypatch):
    monkeypatch.setattr(InboxView, "max_rows", 20)
    notify(alice, 20)
    page = open_inbox()
    expect(page.locator("[rel=next]")).to_have_count(0)
    Notification.objects.create(user=alice, title="new")
    titled(page, "new", *[str(n) for n in range(19, 0, -1)])
    page.click("[rel=next]")
    titled(page, "0")


def test_a_filter_stays(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox()
    page.get_by_role("link", name="Unread", exact=True).click()
    expect(page).to_have_url("/notifications/?show=unread")
    titled(page, "2", "1", "0")
    page.hover("h1")
    Notification.objects.filter(pk=rows[1].pk).mark_as_read()
    titled(page, "2", "0")


def test_it_lives_on_with_htmx(with_htmx, open_inbox, alice, monkeypatch):
    monkeypatch.setattr(InboxView, "max_rows", 20)
    rows = notify(alice, 25)
    page = open_inbox(HASTE)
    page.wait_for_function("() => window.htmx")
    same(page)
    Notification.objects.create(user=alice, title="new")
    expect(page.locator(".nc-row")).to_contain_text(["new", *[str(n) for n in range(24, 5, -1)]])
    page.click("[rel=next]")
    expect(page.locator(".nc-row")).to_have_count(6)
    assert "before" in page.url
    open_menu(page, rows[0])
    page.click(f"#nc-delete-{rows[0].pk}")
    titled(page, "5", "4", "3", "2", "1")
    page.hover("h1")
    page.evaluate("document.activeElement.blur()")
    Notification.objects.filter(pk=rows[5].pk).delete()
    titled(page, "4", "3", "2", "1")
    assert same(page)


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


def test_times_in_the_language_of_the_page(open_inbox, settings, alice):
    settings.LANGUAGE_CODE = "zh-hans"
    notify(alice, 1)
    expect(open_inbox().locator(".nc-row time")).to_have_text("现在")


def test_without_scripts_the_date_stands(open_inbox, alice):
    notify(alice, 1)
    page = open_inbox(java_script_enabled=False)
    expect(page.locator(".nc-row time")).to_have_text(re.compile(r"^\d\d/\d\d/\d{4}$"))


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


def test_all_in_sight_can_be_selected(open_inbox, alice):
    notify(alice)
    page = open_inbox()
    every = page.locator("#nc-all")
    page.check(".nc-row >> nth=0 >> [name=selected]")
    assert every.evaluate("box => box.indeterminate")
    every.check()
    expect(page.locator(".nc-row :checked")).to_have_count(3)
    page.click("#nc-read")
    has(page, "read", "read", "read")
    expect(page.locator(".nc-bulk")).to_be_hidden()


def test_a_click_shows_at_once_that_something_goes_on_and_what_became_of_it(browser, as_alice, alice):
    rows = notify(alice)
    with browser.new_context(**as_alice) as context:
        page = context.new_page()
        page.goto("/notifications/")
        hanging = []
        page.route("**/mark-as-read/", lambda route: hanging.append(route))
        page.click(f"#nc-mark-{rows[0].pk}")
        expect(page.locator(".nc-row[aria-busy]")).to_have_attribute("data-key", str(rows[0].pk))
        wait_until(lambda: page.evaluate("1") and hanging)
        hanging[0].abort()
        expect(page.locator(STATUS)).to_have_text("That could not be saved.Try again")
        expect(page.locator("[aria-busy]")).to_have_count(0)
        page.unroute("**/mark-as-read/")
        page.click("text=Try again")
        has(page, "unread", "unread", "read")
        Session.objects.all().delete()
        page.click(f"#nc-mark-{rows[1].pk}")
        expect(page.locator(STATUS)).to_have_text("You are logged out.Log in")


def test_nothing_jumps(open_inbox, with_kinds, alice):
    """On a phone: neither by messages nor by numbers."""
    rows = Notification.objects.bulk_create(Notification(user=alice, kind="order", title=f"{n}") for n in range(9))
    page = open_inbox(viewport={"width": 390, "height": 844})
    last = page.locator(".nc-row").last
    before = last.bounding_box()
    page.click(f"#nc-mark-{rows[5].pk}")
    expect(page.locator(STATUS)).to_have_text("1 notification marked as read.")
    assert last.bounding_box() == before
    heights = set()
    for number in (8, 100):
        expect(page.locator(".nc-kinds .nc-badge:visible >> nth=0")).to_contain_text(str(number)[:2])
        heights.add(page.locator(".nc-filters").evaluate("nav => nav.clientHeight"))
        Notification.objects.bulk_create(Notification(user=alice, kind="order", title="x") for _ in range(92))
    assert len(heights) == 1


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


def test_keys_can_be_turned_off(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox()
    page.keyboard.press("?")
    page.uncheck("#nc-has-keys")
    page.keyboard.press("Escape")
    for _ in ("off", "still off"):
        page.focus(f"#nc-open-{rows[2].pk}")
        for key in ("j", "e", "?"):
            page.keyboard.press(key)
        expect(page.locator(f"#nc-open-{rows[2].pk}")).to_be_focused()
        expect(page.locator("#nc-keys")).to_be_hidden()
        page.reload()
    has(page, "unread", "unread", "unread")
    page.click("#nc-more")
    page.click("[popovertarget=nc-keys]")
    page.check("#nc-has-keys")
    page.keyboard.press("?")
    expect(page.locator("#nc-keys")).to_be_hidden()
    page.keyboard.press("j")
    expect(page.locator(f"#nc-open-{rows[2].pk}")).to_be_focused()


# ------------------------------------------------------------------------------------------------------------ bell
def test_the_badge_does_not_wait_for_the_next_poll_after_a_click(open_inbox, settings, alice):
    settings.ROOT_URLCONF = "tests.browser.urls_without_streams"
    notify(alice, 3)
    page = open_inbox("const later = setTimeout; setTimeout = (f, ms) => (ms < 30_000 ? later(f, ms) : 0);")
    counts(page, 3)
    page.get_by_role("button", name="Mark all as read").click()
    counts(page, 0)


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


def test_the_number_is_where_people_look(open_inbox, alice):
    notify(alice, 2)
    app = "navigator.setAppBadge = async (n) => { document.documentElement.dataset.app = n }"
    page = open_inbox(app)

    def shows(number: int, title: str) -> None:
        expect(page).to_have_title(title)
        expect(page.locator("html")).to_have_attribute("data-app", str(number))

    shows(2, "(2) Notifications")
    notify(alice, 1)
    shows(3, "(3) Notifications")
    page.click("#nc-read-all")
    shows(0, "Notifications")


def test_several_bells_and_an_inbox_on_one_page(open_inbox, alice):
    rows = notify(alice)
    page = open_inbox()
    page.evaluate("document.body.append(document.querySelector('.nc-bell').cloneNode(true))")
    page.evaluate(
        "document.querySelector('.nc-bell:last-child button').removeAttribute('popovertarget')"
    )  # as it comes
    for bell in page.locator(".nc-bell button").all():
        expect(bell).to_have_attribute("popovertarget", "nc-bell-panel")
        bell.click()
        expect(page.locator(".nc-bell-panel .nc-row")).to_have_count(3)
        page.keyboard.press("Escape")
    bell.click()
    page.hover(f"#nc-bell-open-{rows[1].pk}")
    page.click(f"#nc-bell-mark-{rows[1].pk}")
    expect(page.locator(".nc-inbox .nc-read")).to_have_count(1)
    expect(page.locator(".nc-bell-panel .nc-read")).to_have_count(1)
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
    assert len(ids) == len(set(ids))


def test_a_bell_on_a_phone_opens_a_sheet(open_inbox, alice):
    rows = notify(alice, 3, read=1)
    page = open_inbox(path=f"/notifications/{rows[0].pk}/", viewport={"width": 390, "height": 844})
    page.click(".nc-bell button")
    expect(page.locator(".nc-bell-panel .nc-row")).to_have_count(3)
    box = page.locator(".nc-bell-panel").bounding_box()
    assert (box["x"], box["width"], box["y"] + box["height"]) == (0, 390, 844)
    assert box["height"] < 600, "as high as what it shows"
    page.locator(".nc-bell-panel").get_by_role("link", name="Unread").click()
    expect(page.locator(".nc-bell-panel .nc-row")).to_have_count(2)
    assert page.locator(".nc-bell-panel").bounding_box() == box


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


def test_toasts_of_a_site_with_less_json(open_inbox, monkeypatch, alice):
    monkeypatch.setattr(InboxAPI, "as_json", lambda self, row: {"id": row.pk, "title": row.title})
    (row,) = notify(alice, 1)
    page = open_inbox(path=f"/notifications/{row.pk}/")
    counts(page, 1)
    for title in ("one", "two"):
        Notification.objects.create(user=alice, title=title)
        expect(page.locator("[data-unread-toast]")).to_have_text(f"New: {title}Close")
