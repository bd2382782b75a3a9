"""The system's Chromium, driven by Playwright."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, expect, sync_playwright

from notifications_counter.inbox import live as live_module
from notifications_counter.inbox import stream as stream_module
from notifications_counter.inbox.live import feeds
from servers import HOST, Missing, find_program
from tests.asgi import serving
from tests.support import PATIENCE, wait_until

expect.set_options(timeout=PATIENCE * 1000)

# The clock of a page's scripts, a hundred times as fast.
HASTE = """for (const name of ["setTimeout", "setInterval"]) {
    const wait = window[name];
    window[name] = (f, ms) => wait(f, ms / 100);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        program = find_program("Chromium", "chromium", "chromium-browser", "google-chrome")
    except Missing:
        pytest.skip("missing: Chromium")
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        # While Playwright runs, Django takes the code of the tests for that of its event loop.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        # Playwright turns off what visitors have: pages that are kept for back and forward.
        yield playwright.chromium.launch(executable_path=program, ignore_default_args=["--disable-back-forward-cache"])


@pytest.fixture
def new_context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """`browser.new_context`. In the end, no page may have had anything to complain of: an error, a file that is
    missing, or what the strict policy of the site forbids."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            complaints.append(f"{message.text} {message.location}")

    def new_context(**options: Any) -> BrowserContext:
        context = browser.new_context(**options)
        context.on("console", listen)
        context.on("weberror", lambda trouble: complaints.append(str(trouble.error)))
        contexts.append(context)
        return context

    yield new_context
    for context in contexts:
        for page in context.pages:
            page.wait_for_load_state()  # a file that is half sent, Django leaves open
        context.close()
    assert not complaints


@pytest.fixture
def as_alice(settings: Any, monkeypatch: pytest.MonkeyPatch, client: Client) -> Iterator[dict[str, Any]]:
    """Options of a browser context in which Alice is logged in, on a server in this process."""
    monkeypatch.setattr(live_module, "IDLE", 0.05)
    monkeypatch.setattr(live_module, "REREAD", 1.0)
    monkeypatch.setattr(stream_module, "RETRY", (1, 1))
    settings.ALLOWED_HOSTS = [HOST]
    settings.ROOT_URLCONF = "tests.browser.urls"
    name = settings.SESSION_COOKIE_NAME
    with serving(ASGIStaticFilesHandler(get_asgi_application())) as port:
        cookie = {"name": name, "value": client.cookies[name].value, "domain": HOST, "path": "/"}
        yield {"base_url": f"http://{HOST}:{port}", "storage_state": {"cookies": [cookie]}}
    wait_until(lambda: feeds._thread is None)
