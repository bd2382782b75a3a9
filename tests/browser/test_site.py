"""The demo site in a browser: the admin, whether all pages are accessible, and what they look like.

With SCREENSHOTS=docs/images in the environment, the pictures of the documentation are taken anew.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from demo_project import traffic
from servers import dies_with_parent
from tests.support import wait_until

pytestmark = [pytest.mark.once, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
READER, BUSY = map(traffic.username, (1, 4))


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a site."""
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_ALLOW_ASYNC_UNSAFE"}
    process = subprocess.Popen(
        dies_with_parent([sys.executable, "-m", "tests.browser.site"]),
        cwd=ROOT,
        env=environment | {"DJANGO_SETTINGS_MODULE": "tests.browser.settings"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        address = process.stdout.readline().strip()
        assert address.startswith("http")
        yield address
        process.stdin.close()


@pytest.fixture
def visit(site, new_context) -> Callable[..., Page]:
    """A function that opens the site in a new browser, as nobody or logged in as a user."""

    def visit(user: str = "", **options: Any) -> Page:
        page = new_context(base_url=site, **options).new_page()
        page.goto("/login/")
        if user:
            page.fill("[name=username]", user)
            page.fill("[name=password]", "admin" if user == "admin" else traffic.PASSWORD)
            page.press("[name=password]", "Enter")
            expect(page).to_have_url("/")
            page.wait_for_load_state()  # without scripts, a filter is a link to another page
        return page

    return visit


DASHBOARD = "/admin/notifications_counter/dashboard/?by=hour"
LISTS = [f"/admin/notifications_counter/{name}/" for name in ("notification", "usernotificationscount")]

DRAWN = "() => Object.keys(Chart.instances).length === 2"

# What a pointer points at, in each chart.
POINTED = """() => Object.values(Chart.instances).map(
    ({ tooltip }) => tooltip.getActiveElements().map(({ index }) => index)
)"""


# Whether an element shows the first letter of its text.
BEGINS_INSIDE = """element => {
    const letter = document.createRange();
    letter.setEnd(element.firstChild, 1);
    letter.setStart(element.firstChild, 0);
    const [{ left, right }, box] = [letter.getBoundingClientRect(), element.getBoundingClientRect()];
    return box.left <= left && right <= box.right;
}"""


def test_the_admin(visit):
    """Also on a phone."""
    page = visit("admin")
    page.goto("/admin/")
    expect(page.locator(".nc-badge")).to_be_visible()
    page.click("a[href$='/dashboard/']")
    for by in ("minute", "hour", "day"):
        page.click(f".nc-tabs a[href*='by={by}']")
        expect(page).to_have_url(re.compile(f"by={by}"))
        expect(page.locator(f".nc-tabs a[href*='by={by}']")).to_be_focused()
        wait_until(lambda: page.evaluate(DRAWN))
        scales = page.evaluate("Object.values(Chart.instances).map(chart => chart.scales.y.max)")
        assert len(set(scales)) == 1, "the charts cannot be compared"
        page.hover("canvas >> nth=0")
        wait_until(lambda: page.evaluate(POINTED)[0])
        one, other = page.evaluate(POINTED)
        assert one == other
        page.hover("h1")
        wait_until(lambda: page.evaluate(POINTED) == [[], []])
    for row in page.locator(".nc-table:visible tbody tr").all():
        expect(row.get_by_role("rowheader")).to_have_count(1)
    page.click("button[name=flush]")
    expect(page.locator(":focus")).to_contain_text("flushed")
    for path in LISTS:
        page.goto(path)
        expect(page.locator("#result_list tbody tr")).not_to_have_count(0)
        expect(page.locator("#result_list tbody tr >> nth=0").get_by_role("rowheader")).to_have_count(1)
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 720})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the list scrolls, not the page"
        results = page.locator("#changelist .results")
        assert results.evaluate("list => list.scrollWidth <= list.clientWidth"), "a column is cut off"
        page.set_viewport_size({"width": 390, "height": 720})
        page.evaluate("document.documentElement.dir = 'rtl'")
        assert page.get_by_text("maximiliane.").evaluate(BEGINS_INSIDE)
    expect(page.get_by_role("link", name="Show all")).to_have_css("text-decoration-line", "underline")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible(visit, scheme):
    def check() -> None:
        options = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
        results = Axe().run(page, options=options)
        assert not results.violations_count, f"{page.url}: {results.generate_report()}"

    page = visit(color_scheme=scheme)
    check()
    page = visit("admin", color_scheme=scheme)
    for path in ("/1/", "/send/", "/table/", DASHBOARD, *LISTS):
        page.goto(path)
        check()
    page = visit(BUSY, color_scheme=scheme, reduced_motion="reduce")
    check()
    page.keyboard.press("?")
    check()
    page.keyboard.press("Escape")
    page.check(".nc-row >> nth=0 >> [name=selected]")
    page.click(".nc-row >> nth=0 >> .nc-more")
    check()
    page.click(".nc-bell button")
    expect(page.locator(".nc-bell-panel .nc-row")).to_have_count(10)
    check()
    page.emulate_media(contrast="more")
    check()


def test_a_login_that_fails_says_why_where_the_focus_is(visit):
    page = visit()
    page.fill("[name=username]", "nobody")
    page.fill("[name=password]", "x")
    page.press("[name=password]", "Enter")
    expect(page.locator(":focus")).to_have_accessible_description(re.compile("^Please enter a correct username"))
    expect(page).to_have_title("Error: Log in · Demo")


def test_a_filter_keeps_the_focus(visit):
    page = visit(BUSY)
    for name in ("Comments", "Unread"):
        link = page.get_by_role("group").get_by_role("link", name=re.compile(f"^{name}"))
        link.press("Enter")
        expect(link).to_have_attribute("aria-current", "true")
        expect(link).to_be_focused()
    told = page.locator(".nc-inbox .nc-told")
    expect(told).to_have_text("Unread, Comments")
    expect(page).to_have_title(re.compile(r"^\(\d+\+?\) Unread – Comments – Notifications · Demo$"))
    page.route("**/*show=all*", lambda route: None)
    page.get_by_role("group").get_by_role("link", name="All", exact=True).press("Enter")
    expect(told).to_have_text("Loading…")


def test_a_phone_with_forced_colours_rtl_and_large_text(visit):
    page = visit(BUSY, viewport={"width": 375, "height": 720}, has_touch=True, is_mobile=True, forced_colors="active")
    tabs = page.locator(".nc-kinds a")
    current, *others = tabs.evaluate_all("tabs => tabs.map(tab => getComputedStyle(tab).borderBlockEndColor)")
    assert current not in others
    assert page.locator(".nc-row h3 >> nth=0").bounding_box()["width"] > 200, "a title has no room"
    width = tabs.last.bounding_box()["width"]
    tabs.last.locator(".nc-badge").evaluate("badge => { badge.hidden = true; }")
    assert tabs.last.bounding_box()["width"] < width, "a number that is not there has room"
    page.evaluate("document.documentElement.dir = 'rtl'")
    name = tabs.first.locator("bdi")
    name.evaluate("name => { name.textContent = 'a kind of many words '.repeat(9); }")
    assert name.evaluate(BEGINS_INSIDE)
    for part in (".nc-when", ".nc-actions"):
        box = page.locator(f".nc-row >> nth=0 >> {part}").bounding_box()
        assert box["x"] + box["width"] < 375 / 2, "it is not at the end"
    page.evaluate("document.documentElement.style.fontSize = '200%'")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# Whether one sees what has the focus, or the row that its outline surrounds.
IS_SEEN = """() => {
    const focused = document.activeElement.closest(".nc-row:has(.nc-title:focus)") ?? document.activeElement;
    const { x, y, width, height } = focused.getBoundingClientRect();
    const at = (across, down) => document.elementFromPoint(x + width * across, y + height * down);
    return [0.1, 0.5, 0.9].some((across) => [0.1, 0.5, 0.9].some((down) => focused.contains(at(across, down))));
}"""


@pytest.mark.parametrize("size", [(390, 700), (320, 640), (320, 256)], ids=["phone", "low", "400 percent"])
def test_nothing_covers_what_has_the_focus(visit, size):
    page = visit(BUSY, viewport=dict(zip(("width", "height"), size, strict=True)))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for key in "j#":
        page.keyboard.press(key)
    page.wait_for_timeout(300)  # until the row has collapsed
    day, row = page.locator(".nc-day >> nth=0").bounding_box(), page.locator(".nc-row:has(:focus)").bounding_box()
    assert row["y"] >= day["y"] + day["height"] - 1  # the line between rows
    page.keyboard.press("x")
    expect(page.get_by_role("button", name="Undo")).to_be_visible()
    expect(page.locator(".nc-bulk")).to_be_visible()
    floating = (".nc-inbox > .nc-toast button", "#nc-all", "#nc-delete")
    for part in (*floating, ".nc-states a >> nth=0", ".nc-kinds a >> nth=2"):
        page.focus(part)
        assert page.evaluate(IS_SEEN), part
    page.focus(".nc-title:visible >> nth=0")
    for _ in range(20):  # to the end of the page
        page.keyboard.press("Tab")
        assert page.evaluate(IS_SEEN), page.evaluate("document.activeElement.outerHTML")


# What users may set: https://www.w3.org/TR/WCAG22/#text-spacing
SPACED = """* { line-height: 1.5 !important; letter-spacing: 0.12em !important; word-spacing: 0.16em !important; }
p { margin-block-end: 2em !important; }"""


def test_a_narrow_page_with_wide_text(visit):
    page = visit(BUSY, viewport={"width": 320, "height": 640}, bypass_csp=True)
    assert page.locator(".nc-row h3 >> nth=0").bounding_box()["width"] > 150, "a title has no room"
    page.add_style_tag(content=SPACED)
    page.click(".nc-bell button")
    expect(page.locator(".nc-bell-panel .nc-row")).to_have_count(10)
    for role, name in (("button", "Mark all as read"), ("link", "All"), ("link", "Unread"), ("link", "See all")):
        page.get_by_role("dialog").get_by_role(role, name=name, exact=True).click(trial=True, timeout=5000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_dashboard_shows_where_the_focus_is(visit, scheme):
    page = visit("admin", color_scheme=scheme, viewport={"width": 500, "height": 900})
    page.goto(DASHBOARD)
    wait_until(lambda: page.evaluate(DRAWN))
    tables = page.locator(".nc-table:visible")
    assert tables.count() == 3
    assert tables.evaluate_all("all => all.every(each => each.scrollWidth <= each.clientWidth)"), "a column is cut off"
    page.get_by_text("As a table").click()
    for part in (
        ".nc-panel button >> nth=0",
        ".nc-table[tabindex] >> nth=0",
        ".nc-links a >> nth=0",
        ".nc summary >> nth=0",
    ):
        page.locator("body").press("Tab")  # from here on, the focus is visible
        page.focus(part)
        seen = page.screenshot()
        page.locator(part).evaluate("element => { element.style.outline = 'none'; }")
        assert page.screenshot() != seen, part


def test_the_dashboard_refreshes_in_place(visit):
    """Also while a panel is missing, as during an outage."""

    def refresh() -> None:
        with page.expect_response(lambda reply: reply.url.endswith("refresh")):
            page.clock.fast_forward(31_000)

    page = visit("admin")
    page.clock.install()
    page.goto(f"{DASHBOARD}&refresh")
    page.get_by_text("As a table").click()
    tab = page.locator(".nc-tabs a >> nth=1")
    tab.focus()
    refresh()
    expect(tab).to_be_focused()
    switch = page.get_by_role("switch", name="Refresh every 30 seconds")
    expect(switch).to_be_checked()
    switch.press("Space")
    now = page.get_by_role("link", name="Refresh", exact=True)
    expect(switch).not_to_be_checked()
    expect(switch).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(now).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#nc-told")).to_have_text(re.compile("^As of"))
    expect(now).to_be_focused()
    page.goto(f"{DASHBOARD}&refresh")
    page.get_by_text("As a table").click()
    tab.focus()
    page.evaluate("document.querySelector('.nc-panel').remove()")
    refresh()
    expect(page.locator(".nc-panel")).to_have_count(4)
    expect(tab).to_be_focused()
    expect(page.locator(".nc-charts + details")).to_have_attribute("open", "")
    page.evaluate("document.querySelector('.nc-sentence').textContent = 'Something is wrong.'")
    refresh()
    told = page.locator("#nc-told")
    expect(told).to_have_text(re.compile("^All "))
    page.evaluate("window.get = fetch; window.fetch = async () => new Response('', { status: 500 })")
    page.clock.fast_forward(31_000)
    failed = r"This page could not be updated\. As of \d\d:\d\d:\d\d\."
    expect(told).to_have_text(re.compile(f"^{failed}$"), use_inner_text=True)
    expect(told).not_to_have_class("visually-hidden")
    page.evaluate(
        "new MutationObserver(() => { window.isToldAgain = true; }).observe("
        "document.querySelector('#nc-told span'), { childList: true })"
    )
    page.clock.fast_forward(31_000)
    wait_until(lambda: page.evaluate("window.isToldAgain"))
    page.evaluate("void (window.fetch = get)")
    refresh()
    expect(told).to_have_class("visually-hidden")
    page.route("**refresh", lambda route: route.fulfill(status=302, headers={"Location": "/login/"}))
    refresh()
    expect(told).to_have_text(re.compile(f"^{failed} Log in$"), use_inner_text=True)
    expect(told.get_by_role("link")).to_have_attribute("href", re.compile("/$"))


PICTURES = {"bell": (READER, "/send/"), "inbox": (READER, "/"), "dashboard": ("admin", DASHBOARD)}
PICTURES = {f"{name}{end}": picture for name, picture in PICTURES.items() for end in ("", "-dark")}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(visit, name, tmp_path):
    user, path = PICTURES[name]
    width, height = {"/": (900, 740), "/send/": (900, 640)}.get(path, (1280, 1005))
    options = {"color_scheme": "dark" if name.endswith("-dark") else "light"}
    page = visit(user, viewport={"width": width, "height": height}, **options)
    page.goto(path)
    if path == DASHBOARD:
        flushed = page.locator(".nc-table td", has_text=re.compile("just now| ago"))
        wait_until(lambda: flushed.count() or (page.reload() and False))
        wait_until(lambda: page.evaluate(DRAWN))
    elif path == "/send/":
        page.click(".nc-bell button")
        expect(page.locator(".nc-bell-panel time").first).to_contain_text("ago")
    # Page.wait_for_function() polls by eval(), which the site forbids.
    wait_until(lambda: page.evaluate("[...document.images].every(image => image.complete)"))
    picture = page.screenshot(
        path=Path(os.environ.get("SCREENSHOTS") or tmp_path, f"{name}.png"), animations="disabled"
    )
    assert len(picture) < 150_000
