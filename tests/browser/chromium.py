"""A headless Chromium, spoken to over a pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from demo_project import servers

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECONDS = 30  # of patience

needs_chromium = pytest.mark.skipif(
    PROGRAM is None and os.environ.get("CI") != "true", reason="no Chromium in PATH, which CI has to have"
)

# Chromium, its pipe at 3 and 4. They may have been at 4 and 3.
BECOME = """
import os, sys
reads, writes, program, *options = sys.argv[1:]
os.dup2(int(reads), 103), os.dup2(int(writes), 104)
os.dup2(103, 3), os.dup2(104, 4)
os.execv(program, [program, *options])
"""


class Chromium:
    def __init__(self, commands: int, replies: int):
        self._commands = os.fdopen(commands, "wb", buffering=0)
        self._replies = os.fdopen(replies, "rb")
        self._number = 0
        self._rest = b""
        self.events: list[dict[str, Any]] = []  # of the domains that were enabled

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """A command of the Chrome DevTools Protocol, and its reply."""
        self._number += 1
        about = {"sessionId": session} if session else {}
        message = {"id": self._number, "method": method, "params": params, **about}
        self._commands.write(json.dumps(message).encode() + b"\0")
        while (reply := self._next()).get("id") != self._number:
            self.events.append(reply)
        assert "error" not in reply, reply
        return reply["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._replies.fileno(), 65536)
            assert more, "Chromium has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, first: str = "", profile: str = "", **cookies: str) -> Tab:
        """A new tab. ``first`` is a script that runs before those of the page. A profile has cookies of its own."""
        context = {"browserContextId": profile} if profile else {}
        target = self.call("Target.createTarget", url="about:blank", **context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, target, session)
        for name, value in cookies.items():
            tab.call("Network.setCookie", name=name, value=value, url=url)
        if first:
            tab.call("Page.enable")
            tab.call("Page.addScriptToEvaluateOnNewDocument", source=first)
        tab.call("Page.navigate", url=url)
        tab.wait("document.readyState === 'complete'")
        return tab


class Tab:
    def __init__(self, browser: Chromium, target: str, session: str):
        self.browser, self.target, self.session = browser, target, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def ask(self, expression: str) -> Any:
        """What JavaScript says."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not self.ask(expression):
            assert time.monotonic() < deadline, (expression, self.ask("document.body.outerHTML"))
            time.sleep(0.02)

    def close(self) -> None:
        self.browser.call("Target.closeTarget", targetId=self.target)


@contextmanager
def chromium() -> Iterator[Chromium]:
    assert PROGRAM, "no Chromium in PATH"
    with servers.temporary_directory() as directory:
        reads, commands = os.pipe()
        replies, writes = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        options += [f"--user-data-dir={directory}", "--no-first-run", "--disable-background-networking"]
        options += ["--disable-dev-shm-usage", "--hide-scrollbars"]  # small in containers; ugly in pictures
        command = [sys.executable, "-I", "-S", "-c", BECOME, str(reads), str(writes), PROGRAM, *options]
        process = subprocess.Popen(command, pass_fds=(reads, writes), stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(reads)
        os.close(writes)
        browser = Chromium(commands, replies)
        try:
            yield browser
        finally:
            process.terminate()
            process.wait()
            browser._commands.close()
            browser._replies.close()
