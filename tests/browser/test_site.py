"""The demo site in a browser, as its visitors use it: live badge, inbox and dashboard, in English and in Chinese.

With SCREENSHOTS=docs/images in the environment, the pictures of the documentation are taken anew.
"""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import selenium_axe_python

from demo_project import traffic
from demo_project.servers import dies_with_parent

from .chromium import Chromium, Tab, chromium, needs_chromium

pytestmark = [pytest.mark.once, needs_chromium]

ROOT = Path(__file__).resolve().parents[2]
AXE = Path(selenium_axe_python.__file__).with_name("axe-core").joinpath("axe.min.js").read_text()
BADGE = "document.querySelector('.nc-badge')"
COUNT = f"({BADGE}.hidden ? 0 : parseInt({BADGE}.querySelector('.nc-visually-hidden').textContent))"


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of a site."""
    environment = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    process = subprocess.Popen(
        dies_with_parent([sys.executable, "-m", "tests.browser.site"]),
        cwd=ROOT,
        env=environment | {"DJANGO_SETTINGS_MODULE": "demo_project.settings"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        address = process.stdout.readline().strip()
        assert address.startswith("http")
        yield address
        process.stdin.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser: Chromium, site: str) -> Iterator[Callable[..., Tab]]:
    """A function that opens a page in a new tab, logged in as a user. In the end, no tab may have had anything to
    complain of: an error, a file that is missing, or what the site's strict policy forbids."""
    profiles: dict[str, str] = {}

    def visit(path: str, user: str = "", language: str = "en", scheme: str = "light") -> Tab:
        if user not in profiles:
            profiles[user] = browser.call("Target.createBrowserContext")["browserContextId"]
        tab = browser.open("about:blank", profile=profiles[user])
        for domain in ("Log", "Runtime", "Page"):
            tab.call(f"{domain}.enable")
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.call("Network.setCookie", name="django_language", value=language, url=site)
        go(tab, site + path)
        if user and tab.ask("location.pathname").endswith("/login/"):
            password = "admin" if user == "admin" else traffic.PASSWORD
            tab.ask(f"document.querySelector('[name=username]').value = '{user}'")
            tab.ask(f"document.querySelector('[name=password]').value = '{password}'")
            tab.ask("document.querySelector('[name=password]').form.requestSubmit()")
            tab.wait(f"document.readyState === 'complete' && location.href === '{site}{path}'")
        return tab

    yield visit
    found = [trouble for event in browser.events if (trouble := complaint(event))]
    browser.events.clear()
    for profile in profiles.values():
        browser.call("Target.disposeBrowserContext", browserContextId=profile)
    assert not found


def complaint(event: dict) -> str:
    match event["method"]:
        case "Log.entryAdded" if event["params"]["entry"]["level"] in ("error", "warning"):
            return str(event["params"]["entry"])
        case "Runtime.exceptionThrown":
            return str(event["params"]["exceptionDetails"])
        case "Runtime.consoleAPICalled" if event["params"]["type"] in ("error", "warning", "assert"):
            return str(event["params"]["args"])
    return ""


def go(tab: Tab, url: str) -> None:
    tab.call("Page.navigate", url=url)
    tab.wait("document.readyState === 'complete'")


def click(tab: Tab, selector: str, then: str) -> None:
    tab.ask(f"document.querySelector({json.dumps(selector)}).click()")
    tab.wait(f"document.readyState === 'complete' && !!({then})")


def send(site: str, to: str, title: str) -> None:
    """By somebody else, over HTTP."""
    sender = traffic.Visitor(urlsplit(site).port, users=1, deadline=0)
    sender.request("GET", "/login/")
    sender.post("/login/", username=traffic.username(0), password=traffic.PASSWORD)
    sender.post("/send/", to=to, title=title)
    sender.connection.close()


def test_a_notification_arrives_and_is_opened(visit, site):
    user = traffic.username(1)
    tab = visit("", user)
    tab.ask("window.same = true")
    before = tab.ask(COUNT)
    send(site, user, "News")
    tab.wait(f"{COUNT} === {before + 1}")
    assert tab.ask("window.same")
    go(tab, site)
    assert tab.ask("document.querySelector('.nc-row .nc-title').innerText").endswith("News")
    click(tab, ".nc-row .nc-title", r"/^\/\d+\/$/.test(location.pathname)")
    assert tab.ask("document.querySelector('h1').innerText") == "News"
    tab.wait(f"{COUNT} === {before}")


def test_what_one_tab_reads_the_others_know(visit, site):
    user = traffic.username(2)
    inbox, other = visit("", user), visit("send/", user)
    assert inbox.ask(COUNT) == other.ask(COUNT) > 0
    other.ask("window.same = true")
    click(inbox, "#nc-read-all", f"{COUNT} === 0")
    other.wait(f"{COUNT} === 0")
    assert other.ask("window.same")
    send(site, user, "One more")
    for tab in (inbox, other):
        tab.wait(f"{COUNT} === 1")


def test_the_language_is_chosen_on_the_page(visit, site):
    tab = visit("", traffic.username(3))
    click(tab, ".language button", "document.documentElement.lang === 'zh-hans'")
    assert tab.ask("document.querySelector('h1').innerText") == "通知"
    assert re.search(r"\d+ 条未读通知", tab.ask(f"{BADGE}.textContent"))
    shown = tab.ask(COUNT)
    send(site, traffic.username(3), "One more")
    tab.wait(f"{COUNT} === {shown + 1}")
    assert f"{shown + 1} 条未读通知" in tab.ask(f"{BADGE}.textContent")


@pytest.mark.parametrize(
    ("language", "title", "flushed"), [("en", "Dashboard", "flushed"), ("zh-hans", "仪表盘", "写入")]
)
def test_the_dashboard(visit, site, language, title, flushed):
    tab = visit("admin/", "admin", language)
    assert tab.ask(f"{BADGE}.hidden") is False
    click(tab, "a[href$='/dashboard/']", "document.querySelector('.nc-panel')")
    assert title in tab.ask("document.title")
    for by in ("minute", "hour", "day"):
        click(tab, f".nc-tabs a[href*='by={by}']", f"location.search.includes('by={by}')")
        charts = tab.ask("[...document.querySelectorAll('.nc-chart')].map((c) => c.querySelectorAll('.nc-bar').length)")
        assert len(charts) == 6
        assert min(charts) > 0
    click(tab, "button[name=flush]", "document.querySelector('.messagelist')")
    assert flushed in tab.ask("document.querySelector('.messagelist').innerText")
    for page in ("notification", "usernotificationscount", "countershard"):
        go(tab, f"{site}admin/notifications_counter/{page}/")
        assert tab.ask("document.querySelectorAll('#result_list tbody tr').length") > 0


PAGES = {
    "login/": "",
    "": traffic.username(4),
    "1/": "admin",
    "send/": "admin",
    "counts/": "admin",
    "admin/notifications_counter/dashboard/?by=hour": "admin",
}


@pytest.mark.parametrize(("scheme", "rules"), [("light", {}), ("dark", {"runOnly": ["color-contrast"]})])
def test_pages_are_accessible(visit, scheme, rules):
    for path, user in PAGES.items():
        tab = visit(path, user, scheme=scheme)
        tab.ask(AXE)
        report = json.loads(
            tab.ask(f"axe.run({json.dumps({'resultTypes': ['violations'], **rules})}).then(JSON.stringify)")
        )
        assert "color-contrast" in [rule["id"] for rule in report["passes"]]
        told = [(rule["id"], rule["help"], [node["html"] for node in rule["nodes"]]) for rule in report["violations"]]
        assert not told, path


PICTURES = {
    "inbox": ("", traffic.username(1), "en", "light"),
    "inbox-dark": ("", traffic.username(1), "en", "dark"),
    "inbox-zh-hans": ("", "xiaoming", "zh-hans", "light"),
    "dashboard": ("admin/notifications_counter/dashboard/?by=hour", "admin", "en", "light"),
    "dashboard-dark": ("admin/notifications_counter/dashboard/?by=hour", "admin", "en", "dark"),
    "dashboard-zh-hans": ("admin/notifications_counter/dashboard/?by=hour", "admin", "zh-hans", "light"),
}


@pytest.mark.skipif("SCREENSHOTS" not in os.environ, reason="no SCREENSHOTS, a directory, in the environment")
@pytest.mark.parametrize("name", PICTURES)
def test_pictures(visit, name):
    tab = visit(*PICTURES[name])
    size = {"width": 900 if name.startswith("inbox") else 1280, "height": 1005}
    tab.call("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)
    picture = base64.b64decode(tab.call("Page.captureScreenshot", format="png")["data"])
    assert len(picture) < 150_000
    (Path(os.environ["SCREENSHOTS"]) / f"{name}.png").write_bytes(picture)
