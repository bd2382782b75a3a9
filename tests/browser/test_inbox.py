"""The inbox and the bell in a browser, under the strictest policy, and what they show while they are open."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.formats import date_format
from playwright.sync_api import Page, expect

from notifications_counter.counters import unread
from notifications_counter.inbox.live import feeds
from notifications_counter.inbox.templatetags.notifications_inbox import day
from notifications_counter.models import Notification
from tests.inbox.test_badge import request_of
from tests.inbox.test_badge import show as show_template
from tests.support import notify, wait_until
from tests.tasks.models import Project, Task

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
def open_inbox(as_alice, new_context) -> Callable[..., Page]:
    """A function that opens the inbox of Alice in a new browser."""

    def open_inbox(*scripts: str, path: str = "/notifications/", **options: Any) -> Page:
        page = new_context(**as_alice, **options).new_page()
        for script in scripts:
            page.add_init_script(script)
        page.goto(path)
        return page

    return open_inbox


def has(page: Page, *rows: str) -> None:
    expect(page.locator(".nc-row")).to_contain_class([f"nc-{row}" for row in rows])


@pytest.mark.parametrize("way", ["plain", "scripts", "htmx"])
def test_what_the_list_has_buttons_for(open_inbox, settings, alice, way):
    def says(text: str) -> None:
        if way == "plain":
            expect(page.locator(".nc-messages")).to_have_text(text)
            assert page.locator(".nc-messages").evaluate("told => told.getAnimations()") == [], "it does not fade"

    if way == "htmx":
        pytest.importorskip("django_htmx")
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_htmx"]
    rows = notify(alice)
    page = open_inbox(java_script_enabled=False) if way == "plain" else open_inbox(HASTE)
    before = page.evaluate("performance.timeOrigin")
    has(page, "unread", "unread", "unread")
    page.click(f"#nc-mark-{rows[0].pk}")
    says("1 notification marked as read.")
    has(page, "unread", "unread", "read")
    expect(page.locator(".nc-badge [aria-hidden]")).to_have_text("2")
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
    assert (page.evaluate("performance.timeOrigin") == before) == (way != "plain")  # scripts never load it again
    page.click(f"#nc-open-{rows[2].pk}")
    expect(page).to_have_url(f"/notifications/{rows[2].pk}/")
    assert unread.count(alice) == 0


def test_a_filter_that_htmx_cannot_load_is_tried_again(open_inbox, settings, alice):
    pytest.importorskip("django_htmx")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_htmx"]
    notify(alice)
    page = open_inbox()
    page.evaluate("""() => {
        console.error = () => {}; // of htmx
        window.send = XMLHttpRequest.prototype.send;
        XMLHttpRequest.prototype.send = function () { setTimeout(() => this.onerror()); };
    }""")
    page.get_by_role("link", name="Unread").click()
    expect(page.locator(".nc-inbox > .nc-toast")).to_contain_text("This list could not be updated.")
    page.wait_for_timeout(500)
    assert page.locator(".nc-inbox .nc-told").inner_text() == "", "it still loads"
    page.evaluate("void (XMLHttpRequest.prototype.send = send)")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".nc-states [aria-current]")).to_have_text("Unread")


def test_htmx_leaves_the_filter_of_a_bell_to_its_panel(open_inbox, settings, alice):
    pytest.importorskip("django_htmx")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_htmx"]
    notify(alice)
    page = open_inbox()
    page.locator(".nc-bell button").press("Enter")
    page.locator("#nc-bell-show-unread").press("Enter")
    expect(page.locator(".nc-bell-panel #nc-bell-show-unread[aria-current]")).to_be_focused()
    expect(page).to_have_url("/notifications/")


def test_keys_older_rows_and_undo(open_inbox, alice):
    rows = notify(alice, 45)
    page = open_inbox()
    listed = page.locator(".nc-row:visible")
    page.focus(f"#nc-open-{rows[44].pk}")
    for _ in range(20):
        page.keyboard.press("Tab")
    focused(page, "[rel=next]")  # Tab does not add rows
    expect(listed).to_have_count(20)
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    for key, row in (("j", 44), ("j", 43), ("k", 44)):
        page.keyboard.press(key)
        expect(page.locator(f"#nc-open-{rows[row].pk}")).to_be_focused()
    page.keyboard.press("e")
    has(page, "read", *["unread"] * 19)
    page.keyboard.press("?")
    expect(page.locator("#nc-keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#nc-keys")).to_be_hidden()
    for number in (40, 45):
        page.mouse.wheel(0, 100_000)
        expect(listed).to_have_count(number)
    expect(page.locator("[rel=next]")).to_have_count(0)
    delete(page, rows[44])
    expect(listed).to_have_count(44)
    page.click("text=Undo")
    expect(listed).to_have_count(45)
    delete(page, rows[44])
    expect(listed).to_have_count(44)
    assert Notification.objects.count() == 45
    page.goto("about:blank")  # whoever leaves means it
    wait_until(lambda: Notification.objects.count() == 44)


def test_older_rows_do_not_push_away_the_link_to_them(open_inbox, alice):
    rows = notify(alice, 45)
    page = open_inbox()
    listed, older = page.locator(".nc-row"), page.locator("[rel=next]")
    page.evaluate(LATE)
    page.focus(f"#nc-open-{rows[25].pk}")
    page.mouse.wheel(0, 10)  # which requests older rows
    wait_until(lambda: page.evaluate("window.isAsked"))
    page.keyboard.press("Tab")
    focused(page, "[rel=next]")
    place = older.bounding_box()
    page.evaluate("come()")
    page.wait_for_timeout(300)
    assert older.bounding_box() == place
    page.keyboard.press("Shift+Tab")
    expect(listed).to_have_count(40)


def delete(page: Page, row: Any) -> None:
    page.click(f"#nc-more-{row.pk}")
    page.click(f"#nc-delete-{row.pk}")


def titled(page: Page, *titles: str) -> None:
    expect(page.locator(".nc-title bdi")).to_have_text(list(titles))


# As under WSGI, where the browser closes a stream.
NO_STREAM = "EventSource = class extends EventTarget { static CLOSED = 2; readyState = 2; close() {} };"


@pytest.mark.parametrize("script", ["", NO_STREAM], ids=["stream", "poll"])
def test_the_list_follows_what_happens_elsewhere(open_inbox, alice, script):
    rows = notify(alice)
    page = open_inbox(HASTE, script)
    told = page.locator(".nc-inbox > .nc-toast")
    before = page.evaluate("performance.timeOrigin")
    Notification.objects.create(user=alice, title="new")
    titled(page, "new", "2", "1", "0")
    Notification.objects.filter(pk=rows[1].pk).mark_as_read()
    has(page, "unread", "unread", "read", "unread")
    Notification.objects.filter(pk=rows[1].pk).delete()  # the count stays
    titled(page, "new", "2", "0")
    page.hover(f"#nc-open-{rows[2].pk}")
    place = page.locator(f"#nc-open-{rows[2].pk}").bounding_box()
    Notification.objects.create(user=alice, title="newer")
    expect(told).to_have_text("There are new notifications.Show")  # nothing moves under a pointer
    titled(page, "new", "2", "0")
    assert page.locator(f"#nc-open-{rows[2].pk}").bounding_box() == place
    page.hover("h1")
    titled(page, "newer", "new", "2", "0")
    expect(told).to_be_empty()
    Notification.objects.all().delete()
    expect(page.locator(".nc-empty")).to_have_text("No notifications.")
    assert page.evaluate("performance.timeOrigin") == before


# Keep what a page shows at the icon of an installed app.
APP_BADGE = """Object.defineProperty(navigator, "setAppBadge", {
    value: async (count) => { document.body.dataset.app = count; },
});"""


def test_a_bell(open_inbox, alice):
    rows = notify(alice, 12)
    all_but_the_toast = HASTE.replace("ms / 100", "ms === 12_000 ? ms : ms / 100")
    page = open_inbox(all_but_the_toast, APP_BADGE, path=f"/notifications/{rows[0].pk}/")
    bell, panel, toast = map(page.locator, (".nc-bell button", ".nc-bell-panel", "[data-unread-toast]"))

    def shows(number: int) -> None:
        expect(bell).to_have_accessible_name(f"Unread notifications: {number}")
        expect(page).to_have_title(re.compile(rf"^\({number}\) \S" if number else r"^[^(]"))
        expect(page.locator("body")).to_have_attribute("data-app", str(number))

    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<b id=own data-badge=unread></b>')")
    shows(12)
    expect(page.locator("#own")).to_have_text("12")
    new = Notification.objects.create(user=alice, title="<b>new", body="A text", data={"image": "/favicon.ico"})
    expect(toast.locator("p")).to_have_text("New: <b>newA text")
    expect(toast.locator("img")).to_have_attribute("src", "/favicon.ico")
    page.get_by_role("button", name="Close").click()
    expect(toast).to_have_text("")
    shows(13)
    bell.press("Enter")
    expect(panel).to_be_focused()
    expect(panel.locator(".nc-row")).to_have_count(10)
    expect(panel.locator(".nc-told")).to_have_text("Notifications: 10")
    expect(panel.get_by_role("link", name="See all")).to_be_in_viewport()  # below a list that scrolls
    for key, row in (("ArrowDown", new), ("ArrowDown", rows[11]), ("ArrowUp", new)):
        page.keyboard.press(key)
        expect(page.locator(f"#nc-bell-open-{row.pk}")).to_be_focused()
    page.keyboard.press("e")
    has(page, "read", *["unread"] * 9)
    shows(12)
    panel.get_by_role("button", name="Mark all as read").click()
    shows(0)
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(bell).to_be_focused()
    bell.click()
    panel.locator(".nc-icon").last.click(force=True)  # what opens the row lies over it
    expect(page).to_have_url(re.compile(rf"/notifications/{rows[3].pk}/"))
    bell.click()
    panel.get_by_role("link", name="See all").click()
    expect(page).to_have_url("/notifications/")


def test_all_tabs_live_by_one_stream(open_inbox, alice):
    """Also when the tab that holds it is frozen, closed, or left and come back to."""

    def another() -> Page:
        page = frozen.context.new_page()
        page.goto(address)
        return page

    def show(number: int, *pages: Page) -> None:
        for page in pages:
            expect(page.locator(".nc-bell button")).to_have_accessible_name(f"Unread notifications: {number}")

    def streams() -> int:
        return sum(len(open_feeds) for open_feeds in feeds._by_badge.values())

    address = f"/notifications/{notify(alice, 2)[0].pk}/"
    frozen = open_inbox(path=address)
    show(2, frozen)
    first, second = another(), another()
    notify(alice, 1)
    show(3, frozen, first, second)
    assert streams() == 1
    devtools = frozen.context.new_cdp_session(frozen)
    devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
    notify(alice, 1)
    show(4, first, second)
    first.close()
    notify(alice, 1)
    show(5, second)
    devtools.send("Page.setWebLifecycleState", {"state": "active"})
    second.goto("about:blank")
    Notification.objects.for_user(alice).mark_as_read()
    second.go_back(wait_until="commit")  # a page that was kept does not load
    show(0, frozen, second)
    wait_until(lambda: streams() == 1)


def test_more_badges_than_one_request_has_room_for(open_inbox, alice):
    projects = [Project.objects.create() for _ in range(100)]
    each = "{% for each in projects %}{% badge counter='open_tasks' owner=each quiet=True %}{% endfor %}"
    badges = show_template(each, request_of(alice), {"projects": projects})
    page = open_inbox(HASTE)
    page.evaluate("html => document.querySelector('main').insertAdjacentHTML('afterbegin', html)", badges)
    Task.objects.bulk_create(Task(project=project) for project in projects)
    expect(page.locator("[data-badge^='open_tasks/']:visible")).to_have_count(100)


def test_mark_all_can_be_undone_and_keys_select_and_delete(open_inbox, alice):
    rows = notify(alice, 3)
    rows[0].mark_as_read()
    page = open_inbox(forced_colors="active")
    page.click("#nc-read-all")
    told = page.locator(".nc-inbox > .nc-toast")
    expect(told).to_have_text("2 notifications marked as read.Undo Ctrl+Z")
    has(page, "read", "read", "read")
    told.get_by_role("button").click()
    has(page, "unread", "unread", "read")
    wait_until(lambda: unread.count(alice) == 2)
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("#nc-chosen")).to_have_text("1")
    page.keyboard.press("#")
    expect(page.locator(".nc-row:visible")).to_have_count(2)
    page.goto(f"/notifications/{rows[1].pk}/")  # within the time to undo
    page.go_back()
    expect(page.locator(".nc-row:visible")).to_have_count(2)
    wait_until(lambda: Notification.objects.count() == 2)
    assert page.locator(".nc-badge").evaluate("badge => getComputedStyle(badge).borderTopStyle") == "solid"


def test_an_inbox_that_is_older_than_the_login_says_so(open_inbox, alice):
    [row] = notify(alice, 1)
    page = open_inbox()
    page.evaluate("window.fetch = async () => new Response('', { status: 403 })")  # the console would complain
    page.click(f"#nc-mark-{row.pk}")
    with page.expect_event("load"):
        page.get_by_role("button", name="Reload").click()
    page.click(f"#nc-mark-{row.pk}")
    has(page, "read")


def test_a_button_in_a_message_gives_the_focus_back(open_inbox, alice):
    rows = notify(alice, 3)
    page = open_inbox()
    page.evaluate("window.get = fetch; window.fetch = async () => new Response('', { status: 500 })")
    page.locator(f"#nc-mark-{rows[0].pk}").press("Enter")
    again = page.get_by_role("button", name="Try again")
    for _ in range(2):
        again.press("Enter")
        focused(page, f"#nc-mark-{rows[0].pk}")
    page.evaluate("void (window.fetch = get)")
    again.press("Enter")
    has(page, "unread", "unread", "read")
    focused(page, f"#nc-mark-{rows[0].pk}")


def test_a_list_whose_rows_are_deleted_says_so(open_inbox, alice):
    Notification.objects.filter(pk__in=[row.pk for row in notify(alice, 2)]).mark_as_read()
    page = open_inbox()
    page.click("#nc-more")
    page.click("#nc-delete-read")
    expect(page.locator(".nc-cleared")).to_have_text("No notifications.")
    expect(page.locator(".nc-cleared")).to_be_visible()
    expect(page.locator(".nc-inbox .nc-told")).to_have_text("No notifications.")


def focused(page: Page, what: str) -> None:
    expect(page.locator(what)).to_be_focused()


def test_a_row_that_goes_while_it_has_the_focus_says_so(open_inbox, alice):
    row, _ = notify(alice, 2)
    page = open_inbox()
    title = page.locator(f"#nc-open-{row.pk}")
    for key in "jj":
        page.keyboard.press(key)
    row.delete()
    expect(page.locator(".nc-inbox > .nc-toast")).to_have_text("No longer in this list")
    expect(title).to_be_focused()
    expect(title).to_be_disabled()
    expect(title).to_have_accessible_description(re.compile("^No longer in this list .*(ago|now)$"))


def test_a_keyboard_keeps_its_place(open_inbox, alice):
    """Whatever the button that it was at does: hide its row, hide or disable itself, or close its message."""
    rows = notify(alice, 4)
    page = open_inbox()
    told = page.locator(".nc-inbox > .nc-toast")
    for key in "jj#":
        page.keyboard.press(key)
    focused(page, f"#nc-open-{rows[1].pk}")
    expect(told).to_have_text("Deleted.Undo Ctrl+Z")
    page.keyboard.press("Control+z")
    focused(page, f"#nc-open-{rows[2].pk}")
    expect(told).to_have_text("Restored.")
    expect(page.locator(".nc-row:visible")).to_have_count(4)
    page.keyboard.press("#")
    page.keyboard.press("k")
    told.get_by_role("button").press("Enter")
    focused(page, f"#nc-open-{rows[2].pk}")
    for key in "xjxk":
        page.keyboard.press(key)
    for _ in range(3):
        page.keyboard.press("ArrowRight")  # past the row's own buttons
    focused(page, "#nc-all")
    page.keyboard.press("k")
    page.keyboard.press("j")
    selected = page.locator(".nc-inbox .nc-told")
    expect(selected).to_have_text("2 selected")
    selected.evaluate(
        "told => { told.writes = 0; new MutationObserver(() => told.writes++).observe(told, {childList: true}) }"
    )
    page.locator(".nc-inbox").dispatch_event("notifications:list", {})  # as after any refresh
    page.locator("#nc-read").press("Enter")
    focused(page, f"#nc-open-{rows[2].pk}")
    has(page, "unread", "read", "read", "unread")
    expect(selected).to_have_text("")
    assert selected.evaluate("told => told.writes") == 1, "it is not told again"
    for key in "xj#":  # what is selected
        page.keyboard.press(key)
    expect(page.locator(f"#nc-open-{rows[2].pk}")).to_be_hidden()
    focused(page, f"#nc-open-{rows[1].pk}")
    page.keyboard.press("x")
    told.locator("p").evaluate("p => { p.isRead = true; }")
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    focused(page, ".nc-inbox > .nc-toast button")  # to undo the last deletion
    page.locator("#nc-delete").press("Enter")
    expect(told.locator("p")).not_to_have_js_property("isRead", True)  # the same words are read out again
    focused(page, f"#nc-open-{rows[0].pk}")
    page.locator("#nc-read-all").press("Enter")
    expect(page.locator("#nc-read-all")).to_be_disabled()
    focused(page, "#nc-read-all")
    posted = []
    page.on("request", lambda request: posted.append(request.url) if request.method == "POST" else None)
    page.keyboard.press("Enter")  # which does nothing
    focused(page, "#nc-read-all")
    assert posted == []


def test_deletions_that_fail_come_back_and_are_tried_again_together(open_inbox, alice):
    """Whatever is done, and told, in between."""
    notify(alice, 4)
    page = open_inbox()
    listed, told = page.locator(".nc-row:visible"), page.locator(".nc-inbox > .nc-toast")
    page.evaluate("window.get = fetch; window.fetch = async () => new Response('', { status: 503 })")
    for key in "j##":
        page.keyboard.press(key)
    failed = "Could not be saved: Delete (2).Try again"
    expect(told).to_have_text(failed)
    expect(listed).to_have_count(4)
    page.evaluate("void (window.fetch = get)")
    page.keyboard.press("#")
    expect(told).to_have_text("Deleted.Undo Ctrl+Z")
    page.keyboard.press("e")
    expect(told).to_have_text("1 notification marked as read.")
    page.keyboard.press("Escape")
    expect(told).to_have_text(failed)
    told.get_by_role("button").press("Enter")
    expect(told).to_have_text("Saved: Delete (2).")
    has(page, "read")
    assert Notification.objects.count() == 1


def test_several_deletions_are_one_with_a_number(open_inbox, alice):
    notify(alice, 3, read=3)
    page = open_inbox()
    told, listed = page.locator(".nc-inbox > .nc-toast"), page.locator(".nc-row:visible")
    for key in "jxjx#":
        page.keyboard.press(key)
    expect(told).to_have_text("2 deleted.Undo Ctrl+Z")
    page.keyboard.press("Control+z")
    expect(listed).to_have_count(3)
    page.click("#nc-more")
    page.click("#nc-delete-read")
    expect(told).to_have_text("3 deleted.Undo Ctrl+Z")


def test_a_selection_offers_what_it_changes_and_can_be_given_up(open_inbox, alice):
    rows = notify(alice, 2)
    page = open_inbox()
    read, unread_again = (page.locator(f"#nc-{name}") for name in ("read", "unread"))
    for key in "jx":
        page.keyboard.press(key)
    expect(read).to_be_visible()
    expect(unread_again).to_be_hidden()
    page.keyboard.press("e")
    has(page, "read", "unread")
    page.keyboard.press("x")
    expect(unread_again).to_be_visible()
    expect(read).to_be_hidden()
    page.keyboard.press("e")
    has(page, "unread", "unread")
    page.keyboard.press("x")
    page.keyboard.press("Escape")
    expect(page.locator(".nc-bulk")).to_be_hidden()
    focused(page, f"#nc-open-{rows[1].pk}")
    expect(page.locator(".nc-inbox .nc-told")).to_have_text("0 selected")
    page.keyboard.press("x")
    page.locator("#nc-clear").press("Enter")
    expect(page.locator(".nc-bulk")).to_be_hidden()
    focused(page, f"#nc-open-{rows[1].pk}")


def test_a_deletion_that_can_be_undone_shows_everywhere_at_once(open_inbox, alice):
    rows = notify(alice, 3)
    page = open_inbox()
    number, panel = page.locator(".nc-bell .nc-badge [aria-hidden]"), page.locator(".nc-bell-panel .nc-row:visible")
    for key in "j#":
        page.keyboard.press(key)
    expect(number).to_have_text("2")
    expect(page).to_have_title(re.compile(r"^\(2\) "))
    page.click(".nc-bell button")
    expect(panel).to_have_count(2)
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.keyboard.press("Control+z")
    expect(number).to_have_text("3")
    page.focus(f"#nc-open-{rows[2].pk}")
    page.keyboard.press("#")
    expect(number).to_have_text("2")
    page.keyboard.press("Escape")  # which closes what cannot be undone, but does not end the choice
    page.keyboard.press("Control+z")
    expect(number).to_have_text("3")


def test_keys_work_wherever_the_focus_is_unless_something_else_needs_them(open_inbox, alice):
    rows = notify(alice, 2)
    page = open_inbox()
    first = page.locator(f"#nc-open-{rows[1].pk}")
    fields = "<input id=other><dialog id=box><button>OK</button></dialog>"
    page.evaluate("html => document.querySelector('main').insertAdjacentHTML('afterbegin', html)", fields)
    for key in "j#":
        page.keyboard.press(key)
    link = page.locator(".nc-bell button")
    link.focus()
    page.keyboard.press("Control+z")
    expect(first).to_be_focused()
    page.focus("#other")
    for key in "jx?":
        page.keyboard.press(key)
    expect(page.locator("#other")).to_have_value("jx?")
    focused(page, "#other")
    page.evaluate("document.getElementById('box').showModal()")
    page.keyboard.press("j")
    focused(page, "#box button")
    page.keyboard.press("Escape")
    expect(page.locator("#box")).to_be_hidden()  # then the focus has gone back
    link.focus()
    page.keyboard.press("Control+j")
    expect(link).to_be_focused()
    page.keyboard.press("j")
    expect(first).to_be_focused()
    link.focus()
    page.keyboard.press("?")
    page.get_by_label("Single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    expect(page.locator("#nc-keys")).to_be_hidden()
    link.focus()
    page.keyboard.press("j")
    expect(link).to_be_focused()


# Requests for a list wait until `list_fails()`, then fail; until `online()`.
NO_LIST = """const real = fetch;
const failing = new Promise((_, fail) => { window.list_fails = fail; });
let isOnline = false;
window.fetch = (url, options) => (options?.headers?.["X-Part"] && !isOnline ? failing : real(url, options));
window.online = () => { isOnline = true; dispatchEvent(new Event("online")); };"""


def test_a_panel_says_that_it_loads_and_why_it_does_not(open_inbox, alice):
    row, _ = notify(alice, 2)
    page = open_inbox(HASTE, NO_LIST, path=f"/notifications/{row.pk}/")
    page.click(".nc-bell button")
    panel = page.get_by_role("dialog")
    expect(panel.get_by_role("heading")).to_have_text("Notifications")
    expect(panel.locator(".nc-first > p")).to_be_visible()
    expect(panel.locator(".nc-told")).to_have_text("Loading…")
    page.evaluate("list_fails()")
    expect(panel.locator(".nc-toast")).to_have_text("Notifications could not be loaded.Try again")
    expect(panel.locator(".nc-first > p")).to_be_hidden()
    panel.get_by_role("button", name="Close").focus()
    page.evaluate("online()")
    expect(panel.locator(".nc-row")).to_have_count(2)
    expect(panel.locator(".nc-toast")).to_be_empty()
    expect(panel.get_by_role("button", name="Close")).to_be_focused()


# Lists that are asked for do not come until `come()`.
LATE = """() => {
    const real = fetch;
    const comes = new Promise((come) => { window.come = come; });
    window.fetch = async (url, options) => {
        const reply = await real(url, options);
        window.isAsked ||= options?.headers?.["X-Rows"] > 0;
        if (options?.headers?.["X-Part"] && !options.method) await comes;
        return reply;
    };
}"""
LATE_CHANGE = LATE.replace("!options.method", "options.method")


def test_a_list_that_is_tried_again_shows_that_it_was_clicked(open_inbox, alice):
    notify(alice)
    page = open_inbox(HASTE)
    toast, told = page.locator(".nc-inbox > .nc-toast"), page.locator(".nc-inbox .nc-told")
    page.evaluate("window.get = fetch; window.fetch = async () => new Response('', { status: 500 })")
    page.evaluate("dispatchEvent(new Event('focus'))")
    again = toast.get_by_role("button", name="Try again")
    expect(again).to_be_visible()
    # At once, so that no list comes in between, and one is asked for already.
    page.evaluate(f"() => {{ window.fetch = get; ({LATE})(); dispatchEvent(new Event('focus')); }}")
    again.click()
    expect(toast).to_have_attribute("aria-busy", "true")
    expect(told).to_have_text("Loading…")
    page.evaluate("come()")
    expect(toast).to_be_empty()
    expect(told).to_be_empty()


def test_a_filter_shows_at_once_that_it_was_chosen(open_inbox, alice):
    notify(alice)
    page = open_inbox()
    page.click(".nc-bell button")
    panel = page.locator(".nc-bell-panel")
    expect(panel.locator(".nc-row")).to_have_count(3)
    page.evaluate(LATE)
    page.click("#nc-bell-show-unread")
    expect(panel.locator("[aria-current]")).to_have_text(["Unread"])
    page.click("#nc-bell-show-all")
    page.evaluate("come()")
    expect(panel.locator(".nc-part")).not_to_have_attribute("aria-busy", "true")
    expect(panel.locator("[aria-current]")).to_have_text(["All"])


def test_a_row_says_why_it_is_gone(open_inbox, alice):
    own, other, _ = notify(alice)
    page = open_inbox(path="/notifications/?show=unread")
    page.click(f"#nc-mark-{own.pk}")  # the pointer stays
    note = page.locator(".nc-note")
    expect(note).to_have_text(["Read"])
    expect(page.locator(f"#nc-mark-{own.pk}")).to_have_accessible_description(re.compile("^Read "))
    other.delete()
    expect(note).to_have_text(["No longer in this list", "Read"])


def test_a_row_that_was_marked_as_read_can_be_used(open_inbox, alice):
    """Where unread ones are listed."""
    rows = notify(alice, 2)
    page = open_inbox()
    note = page.locator(".nc-note")
    for row, key in ((rows[1], "Enter"), (rows[0], "e")):
        page.goto("/notifications/?show=unread")
        page.keyboard.press("j")
        page.keyboard.press("e")
        expect(note).to_have_text("Read")
        expect(page.locator(f"#nc-mark-{row.pk}")).to_have_attribute("title", "Mark as unread")
        focused(page, f"#nc-open-{row.pk}")
        page.keyboard.press(key)
        if key == "Enter":
            expect(page).to_have_url(re.compile(f"/notifications/{row.pk}/"))
    expect(note).to_have_count(0)
    has(page, "unread")
    wait_until(lambda: unread.count(alice) == 1)


@pytest.mark.parametrize("late", [LATE, LATE_CHANGE], ids=["list", "change"])
def test_a_row_that_is_being_marked_says_so_whichever_reply_comes_first(open_inbox, alice, late):
    def refresh() -> None:
        with page.expect_response(re.compile("show=unread$")):
            page.evaluate("dispatchEvent(new Event('focus'))")

    [row] = notify(alice, 1)
    page = open_inbox(path="/notifications/?show=unread")
    page.evaluate(late)
    if late == LATE:
        refresh()
    page.click(f"#nc-mark-{row.pk}")  # the pointer stays
    wait_until(lambda: unread.count(alice) == 0)
    if late == LATE_CHANGE:
        refresh()
        page.wait_for_timeout(300)
    page.evaluate("come()")
    expect(page.locator(".nc-note")).to_have_text("Read")


def test_rows_that_were_marked_with_all_others_can_be_marked_as_unread_at_once(open_inbox, alice):
    [row] = notify(alice, 1)
    page = open_inbox()
    page.evaluate(LATE)
    page.click("#nc-read-all")
    mark = page.locator(f"#nc-mark-{row.pk}")
    expect(mark).to_have_accessible_name("Mark as unread 0")
    mark.click()
    wait_until(lambda: unread.count(alice) == 1)


def test_arrows_go_to_the_link_in_a_message(open_inbox, alice):
    notify(alice, 1)
    page = open_inbox()
    addresses = re.compile("/notifications/(mark-as-read/)?$")  # of a list, too, which would end the message
    page.route(addresses, lambda route: route.fulfill(status=302, headers={"Location": "/login/"}))
    for key in ("j", "e", "End", "ArrowRight"):
        page.keyboard.press(key)
        if key == "e":
            expect(page.locator(".nc-inbox > .nc-toast")).to_have_text("You are logged out.Log in")
    focused(page, ".nc-inbox > .nc-toast a")


def test_a_refresh_does_not_erase_what_is_about_to_be_told(open_inbox, alice):
    notify(alice)
    page = open_inbox()
    page.locator(".nc-inbox").evaluate(
        "root => { ncListOf(root).tell('All'); root.dispatchEvent(new Event('notifications:list', {bubbles: true})); }"
    )
    expect(page.locator(".nc-inbox .nc-told")).to_have_text("All")


def test_a_deletion_on_the_page_of_a_notification_can_be_undone_in_the_list(open_inbox, alice):
    rows = notify(alice, 2, read=2)
    page = open_inbox()
    told = page.locator(".nc-inbox > .nc-toast")
    for end in ("Control+z", "Control+x"):
        page.goto(f"/notifications/{rows[0].pk}/")
        page.get_by_role("button", name="Delete").click()
        expect(page.locator(".nc-row:visible")).to_have_count(1)
        expect(told).to_have_text("Deleted.Undo Ctrl+Z")
        page.keyboard.press(end)
        expect(page.locator(".nc-row:visible")).to_have_count(2 if end == "Control+z" else 1)
    assert Notification.objects.count() == 2
    page.goto("about:blank")
    wait_until(lambda: Notification.objects.count() == 1)


def test_a_message_on_a_new_page_is_read_out(open_inbox, alice):
    path = f"/notifications/{notify(alice, 1)[0].pk}/"
    page = open_inbox(path=path)
    page.get_by_role("button", name="Mark as read").click()
    focused(page, ".nc-messages")
    expect(page).to_have_url(path)


@pytest.mark.parametrize("toward", ["ltr", "rtl"])
def test_a_row_is_one_tab_stop_and_arrows_go_on(open_inbox, alice, toward):
    """Also after the list has changed, in rows that are new, and in the panel of a bell."""

    def press(*steps: tuple[str, str]) -> None:
        for key, part in steps:
            page.keyboard.press(key)
            focused(page, f"#{part}")

    rows = notify(alice, 3)
    page = open_inbox(HASTE)
    on, back = ("ArrowRight", "ArrowLeft") if toward == "ltr" else ("ArrowLeft", "ArrowRight")
    new = Notification.objects.create(user=alice, title="new")
    titled(page, "new", "2", "1", "0")
    page.evaluate("toward => { document.dir = toward; }", toward)
    page.focus(f"#nc-open-{new.pk}")
    press(("Tab", f"nc-open-{rows[2].pk}"), ("Tab", f"nc-open-{rows[1].pk}"), ("Shift+Tab", f"nc-open-{rows[2].pk}"))
    press((on, f"nc-mark-{rows[2].pk}"), (on, f"nc-more-{rows[2].pk}"), (on, f"nc-more-{rows[2].pk}"))
    press(("Home", f"nc-select-{rows[2].pk}"), ("End", f"nc-more-{rows[2].pk}"), (back, f"nc-mark-{rows[2].pk}"))
    page.keyboard.press("Enter")
    has(page, "unread", "read", "unread", "unread")
    press(("ArrowUp", f"nc-mark-{new.pk}"), (on, f"nc-more-{new.pk}"))
    page.keyboard.press("Enter")
    press(("ArrowDown", f"nc-mark-item-{new.pk}"), ("ArrowDown", f"nc-menu-{new.pk} a"))
    press(("ArrowDown", f"nc-tick-{new.pk}"), ("Escape", f"nc-more-{new.pk}"))
    page.locator(".nc-bell button").press("Enter")
    expect(page.locator(".nc-bell-panel .nc-row")).to_have_count(4)
    press(("ArrowDown", f"nc-bell-open-{new.pk}"), ("End", f"nc-bell-more-{new.pk}"))
    press(("Tab", f"nc-bell-open-{rows[2].pk}"), ("Tab", f"nc-bell-open-{rows[1].pk}"))


def test_a_button_that_has_the_focus_stays_the_same(open_inbox, alice):
    """Screen readers would read another one out again."""
    [row] = notify(alice, 1)
    page = open_inbox()
    button = page.locator(f"#nc-mark-{row.pk}")
    button.evaluate("button => { button.isRead = true; }")
    button.press("Enter")
    has(page, "read")
    expect(button).to_have_js_property("isRead", True)
    focused(page, f"#nc-mark-{row.pk}")


def test_a_dialog_keeps_keys_from_what_is_behind_it(open_inbox, alice):
    notify(alice, 2)
    page = open_inbox()
    for key in ("j", "?", "#", "Escape", "x"):
        page.keyboard.press(key)
    expect(page.locator(".nc-inbox .nc-told")).to_have_text(
        "1 selected. Left and right arrow keys lead to the actions."
    )
    expect(page.locator(".nc-row:visible")).to_have_count(2)
    page.locator("#nc-more").press("Enter")
    page.get_by_role("button", name="Shortcuts").press("Enter")
    page.keyboard.press("Escape")
    focused(page, "#nc-more")
    expect(page.locator(":popover-open")).to_have_count(0)


def test_a_low_window_shows_all_keys_and_where_the_focus_is(open_inbox, alice):
    notify(alice, 20)
    Notification.objects.filter(title="19").update(body="A text")
    page = open_inbox(viewport={"width": 640, "height": 360})  # as at 200 %
    page.keyboard.press("j")
    expect(page.locator(":focus")).to_have_accessible_description(re.compile("(ago|now) A text$"))
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Shortcuts")
    assert keys.evaluate(
        "keys => keys.getBoundingClientRect().top > 0 && keys.getBoundingClientRect().bottom < innerHeight"
    )
    keys.evaluate("keys => keys.scrollTo(0, 1000)")
    expect(keys.get_by_text("Show or hide this")).to_be_in_viewport()
    page.keyboard.press("Escape")
    for _ in range(12):
        page.keyboard.press("ArrowDown")
    new = Notification.objects.create(user=alice, title="new")
    show = page.locator(".nc-inbox > .nc-toast").get_by_role("button", name="Show")
    show.press("Enter")
    title = page.locator(f"#nc-open-{new.pk}")
    expect(title).to_be_focused()
    expect(title).to_be_in_viewport()


def test_what_the_keyboard_opens_takes_the_focus_and_closes_when_it_leaves(open_inbox, alice):
    _, row = notify(alice, 2, read=2)
    page = open_inbox()
    page.locator("#nc-more").press("Enter")
    page.get_by_role("button", name="Shortcuts").press("Enter")
    expect(page.get_by_role("dialog", name="Shortcuts")).to_be_focused()
    for part in ("#nc-has-keys", "#nc-keys button", "#nc-more"):
        page.keyboard.press("Tab")
        focused(page, part)
    expect(page.locator(":popover-open")).to_have_count(0)
    page.locator(f"#nc-more-{row.pk}").press("Enter")
    menu = page.locator(f"#nc-menu-{row.pk}")
    for is_open in (True, True, True, True, False):
        page.keyboard.press("Tab")
        expect(menu).to_be_visible(visible=is_open)
    bell, panel = page.locator(".nc-bell button"), page.locator(".nc-bell-panel")
    bell.press("Enter")
    unread_only = panel.get_by_role("link", name="Unread")
    unread_only.press("Enter")
    expect(panel.locator(".nc-empty:visible")).to_have_text("You are all caught up.")
    expect(panel.get_by_role("status").first).to_have_text("You are all caught up.")
    expect(unread_only).to_be_focused()
    see_all = panel.get_by_role("link", name="See all")
    see_all.focus()
    Notification.objects.create(user=alice, title="new")
    expect(panel.locator(".nc-row")).to_have_count(1)
    expect(see_all).to_be_focused()
    more = panel.locator(".nc-row .nc-more")
    more.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    expect(more).to_be_focused()
    page.locator("#nc-more").focus()
    expect(panel).to_be_hidden()
    bell.press("Enter")
    expect(panel).to_be_visible()
    bell.focus()
    page.keyboard.press("Shift+Tab")
    expect(panel).to_be_hidden()


def test_the_next_notification_keeps_the_focus(open_inbox, alice):
    rows = notify(alice, 3)
    page = open_inbox(path=f"/notifications/{rows[2].pk}/")
    page.keyboard.press("Tab")
    page.get_by_role("link", name="Older").press("Enter")
    page.wait_for_url(f"**/{rows[1].pk}/#nc-older")
    expect(page.get_by_role("link", name="Older")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{rows[0].pk}/#nc-older")
    expect(page.get_by_role("link", name="Older", disabled=True)).to_be_focused()


def test_arrows_lead_from_a_row_to_what_the_selection_can_do(open_inbox, alice):
    """Screen readers are told so, once."""
    notify(alice, 2, read=1)
    page = open_inbox()
    told, hint = page.locator(".nc-inbox .nc-told"), "Left and right arrow keys lead to the actions."
    for mark, before in (("Mark as read", hint), ("Mark as unread", "0 selected")):
        page.keyboard.press("j")
        expect(told).to_have_text(before)
        page.keyboard.press("x")
        expect(told).to_have_text(f"1 selected. {hint}")
        for name in ("More", "Select all shown", mark, "Delete", "Clear selection"):
            for _ in range(2 if name == "More" else 1):
                page.keyboard.press("ArrowRight")
            expect(page.locator(":focus")).to_have_accessible_name(re.compile(f"^{name}"))
        for name in ("Delete", mark, "Select all shown", "More", "Mark as", "", "Select “"):
            page.keyboard.press("ArrowLeft")
            expect(page.locator(":focus")).to_have_accessible_name(re.compile(f"^{name}"))
        page.locator("#nc-clear").focus()
        page.keyboard.press("Enter")
        expect(told).to_have_text("0 selected")


@pytest.mark.usefixtures("with_kinds")
def test_a_dialog_keeps_the_focus_if_what_opened_it_is_gone(open_inbox, alice):
    notify(alice, 2)
    page = open_inbox()
    page.locator(".nc-kinds a").last.focus()
    page.keyboard.press("?")
    Notification.objects.create(user=alice, title="new", kind="order")
    expect(page.locator(".nc-row")).to_have_count(3)
    page.keyboard.press("Escape")
    expect(page.locator("#nc-keys")).to_be_hidden()
    expect(page.locator(":focus")).to_have_count(1)


@pytest.mark.usefixtures("with_kinds")
def test_nothing_moves_when_numbers_or_the_choice_change(open_inbox, alice):
    def places(*parts: str) -> list[list[float]]:
        script = "all => all.map(part => { const { x, y } = part.getBoundingClientRect(); return [x, y]; })"
        return page.locator(", ".join(parts)).evaluate_all(script)

    rows = [Notification(user=alice, kind=kind, title=kind) for kind in ("order", "sale") for _ in range(50)]
    Notification.objects.bulk_create(rows)
    page = open_inbox(viewport={"width": 390, "height": 800})
    parts = (".nc-bell svg", ".nc-filters a", ".nc-tools > button", ".nc-list")
    before, around = places(*parts), places(".nc-bell svg", ".nc-list")
    for name in ("order", "Unread"):
        choice = page.get_by_role("group").get_by_role("link", name=re.compile(f"^{name}"))
        choice.click()
        expect(choice).to_have_attribute("aria-current", "true")
        assert places(*parts) == before
    page.goto("/notifications/?kind=order")
    page.get_by_role("button", name="Mark all as read in “order”").click()
    expect(page.locator("[aria-current] .nc-badge")).to_be_hidden()
    assert places(".nc-bell svg", ".nc-list") == around
    Notification.objects.for_user(alice).mark_as_read()
    expect(page.locator(".nc-bell .nc-badge")).to_be_hidden()
    assert places(".nc-bell svg") == around[:1]


def test_a_phone_selects_by_a_menu_and_has_no_shortcuts(open_inbox, alice):
    row, _ = notify(alice, 2)
    page = open_inbox(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    page.tap(f"#nc-more-{row.pk}")
    page.get_by_role("button", name="Select", exact=True).tap()
    expect(page.locator(f"#nc-menu-{row.pk}")).to_be_hidden()
    expect(page.get_by_label("Select “0”")).to_be_checked()
    expect(page.locator(".nc-inbox .nc-told")).to_have_text("1 selected")
    page.tap(f"#nc-more-{row.pk}")
    page.tap(f"#nc-mark-item-{row.pk}")
    has(page, "unread", "read")
    page.tap("#nc-more")
    expect(page.locator("#nc-menu").get_by_role("button")).to_have_text(["Delete read notifications"])
    page.goto("/notifications/?show=unread")
    expect(page.locator("#nc-more")).to_be_hidden()
    page.keyboard.press("?")  # a tablet with a keyboard
    page.get_by_label("Single-key shortcuts").tap()
    page.keyboard.press("Escape")
    page.reload()
    page.keyboard.press("ArrowDown")
    page.tap("#nc-more")
    page.get_by_role("button", name="Shortcuts").tap()
    expect(page.get_by_label("Single-key shortcuts")).not_to_be_checked()


def test_a_bell_does_not_move_the_page(open_inbox, alice):
    """Also if a toast shows, whose news it has."""
    page = open_inbox(viewport={"width": 900, "height": 600}, path=f"/notifications/{notify(alice, 9)[0].pk}/")
    page.evaluate("document.body.style.minHeight = '1200px'")
    Notification.objects.create(user=alice, title="new")
    toast = page.locator("[data-unread-toast] p")
    expect(toast).to_be_visible()
    page.click(".nc-bell button")
    expect(page.locator(".nc-bell-panel .nc-row")).to_have_count(10)
    expect(toast).to_be_hidden()
    assert page.evaluate("scrollY") == 0


def test_a_bell_on_a_phone_has_the_menu_of_a_row(open_inbox, alice):
    row = notify(alice, 2)[-1]
    phone = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}
    page = open_inbox(path=f"/notifications/{row.pk}/", **phone)
    page.tap(".nc-bell button")
    page.tap(f"#nc-bell-more-{row.pk}")
    menu = page.locator(f"#nc-bell-menu-{row.pk}")
    expect(menu.get_by_role("button")).to_have_text(["Mark as read", "Delete"])
    menu.get_by_role("button", name="Delete").tap()
    rows = page.locator(".nc-bell-panel .nc-row:visible")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Undo").tap()
    expect(rows).to_have_count(2)
    page.tap(f"#nc-bell-more-{row.pk}")
    page.tap(f"#nc-bell-mark-item-{row.pk}")
    has(page, "read", "unread")
    expect(page.locator("main")).to_have_attribute("inert", "")  # screen readers stay in the sheet
    page.keyboard.press("Escape")
    expect(page.locator("main")).not_to_have_attribute("inert", "")
    focused(page, ".nc-bell button")


def test_a_day_has_times_and_a_bell_says_how_long_ago(open_inbox, alice):
    """Also if that is less than a day."""
    at = timezone.localtime().replace(hour=0, minute=0) - timedelta(minutes=1)
    Notification.objects.create(user=alice, title="x", created_at=at)
    page = open_inbox()
    expect(page.locator(".nc-inbox time")).to_have_text(date_format(at, "TIME_FORMAT"))
    page.keyboard.press("j")
    description = f"{day(at)} {date_format(at, 'TIME_FORMAT')}"
    expect(page.locator(":focus")).to_have_accessible_description(description)
    page.keyboard.press("ArrowRight")
    time, mark = (page.locator(f".nc-inbox {part}") for part in ("time", ".nc-mark"))
    for part in (time, mark):
        expect(part).to_have_css("opacity", "1")
    assert mark.bounding_box()["x"] + mark.bounding_box()["width"] <= time.bounding_box()["x"]
    page.click(".nc-bell button")
    expect(page.locator(".nc-bell-panel time")).to_have_text(re.compile("ago$"))


def test_a_long_word_stays_on_the_page(open_inbox, alice):
    word = "word" * 40
    row = Notification.objects.create(user=alice, title=word, body=word, url=f"https://shop.example/{word}")
    page = open_inbox(viewport={"width": 320, "height": 640})
    for path in ("/notifications/", f"/notifications/{row.pk}/"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


NO_TOAST = """new MutationObserver(() => document.querySelector("[data-unread-toast]")?.remove())
    .observe(document, { childList: true, subtree: true });"""


def test_a_badge_tells_screen_readers_its_number(open_inbox, alice):
    """On a page without a toast. Only a region that was there before its text changed is read out."""
    page = open_inbox(NO_TOAST, path=f"/notifications/{notify(alice, 1, read=1)[0].pk}/")
    bell = page.locator(".nc-bell")
    expect(bell).to_match_aria_snapshot("- 'button \"Unread notifications: 0\"'\n- status")
    Notification.objects.create(user=alice, title="new")
    expect(bell).to_match_aria_snapshot("- 'button \"Unread notifications: 1\"'\n- status: 'Unread notifications: 1'")


@pytest.mark.parametrize("script", ["", NO_TOAST], ids=["toast", "no toast"])
def test_one_thing_tells_of_a_change_by_the_user(open_inbox, alice, script):
    """The list, not also a badge or a toast."""
    [row] = notify(alice, 1, read=1)
    page = open_inbox(script)
    with page.expect_response("**/counts/*"):  # after which the change is over
        page.click(f"#nc-mark-{row.pk}")
    expect(page.locator(".nc-inbox > .nc-toast")).to_have_text("1 notification marked as unread.")
    expect(page.locator(".nc-bell button")).to_have_accessible_name("Unread notifications: 1")
    number = page.locator("[data-unread-toast] > span" if script == "" else ".nc-bell [role=status][aria-live=polite]")
    assert number.all_inner_texts() in ([], [""])
    Notification.objects.create(user=alice, title="new")
    expect(number).to_have_text(re.compile(r"Unread notifications: 2( New: new)?$"))


@pytest.mark.parametrize("way", ["Enter", "Escape"])
def test_a_toast_tells_screen_readers_what_is_new(open_inbox, alice, way):
    """With the number, so that nothing else does; of many at once, the first and the last."""
    address = f"/notifications/{notify(alice, 1, read=1)[0].pk}/"
    page = open_inbox(path=address)
    page.clock.install()
    page.goto(address)
    bell, toast = page.locator(".nc-bell"), page.locator("[data-unread-toast]")
    spoken, close = toast.get_by_role("status"), toast.get_by_role("button", name="Close")
    Notification.objects.create(user=alice, title="new", data={"lang": "de"})
    expect(spoken).to_have_text("Unread notifications: 1 New: new")
    expect(spoken.locator("[lang=de]")).to_have_text("new")
    expect(bell.get_by_role("button")).to_have_accessible_name("Unread notifications: 1")
    expect(bell.get_by_role("status")).to_have_count(0)
    close.focus()
    for number, title in enumerate(("newer", "newest"), start=2):
        Notification.objects.create(user=alice, title=title)
        expect(toast.locator("p")).to_have_text(f"New: {title}")
        expect(bell.get_by_role("button")).to_have_accessible_name(f"Unread notifications: {number}")
        expect(spoken).to_have_text("Unread notifications: 1 New: new")
        page.clock.fast_forward(4_000)
    expect(close).to_be_focused()
    page.locator(".nc-notification").get_by_role("button").last.focus()
    page.clock.fast_forward(5_000)
    expect(spoken).to_have_text("Unread notifications: 3 New: newest")
    close.press("Shift+Tab")
    expect(toast.get_by_role("link")).to_be_focused()
    page.keyboard.press("Tab")
    close.press(way)
    focused(page, ".nc-bell button")
    expect(toast).to_have_text("")


def test_one_thing_tells_of_new_notifications_in_a_list(open_inbox, alice):
    """The list if it says so, else a number and the newest."""
    notify(alice, 1, read=1)
    page = open_inbox()
    page.clock.install()
    page.goto("/notifications/")
    told, number = page.locator(".nc-inbox > .nc-toast"), page.locator("[data-unread-toast] > span")
    Notification.objects.create(user=alice, title="new")
    titled(page, "new", "0")
    page.clock.fast_forward(1_000)
    expect(number).to_have_text("Unread notifications: 1 New: new")
    page.clock.fast_forward(12_000)
    page.keyboard.press("j")
    Notification.objects.create(user=alice, title="newer")
    expect(told).to_have_text("There are new notifications.Show")
    expect(told).to_have_attribute("aria-live", "polite")
    page.clock.fast_forward(1_000)
    expect(number).to_have_text("Unread notifications: 1 New: new")
