"""Visitors of the demo site: threads that log in and use it over HTTP, as browsers would."""

import json
import random
import re
import threading
import time
from collections import Counter as Tally
from functools import partial
from http.client import HTTPConnection, HTTPException
from http.cookies import SimpleCookie
from urllib.parse import urlencode

from . import life

PASSWORD = "demo"
STAFF = 10  # one user in so many
KINDS = ["", *dict(life.KINDS)]
ROW = re.compile(r'<li class="nc-row nc-(read|unread)" data-key="(\d+)">')


def username(n: int) -> str:
    return f"user{n:04}"


class Visitor(threading.Thread):
    def __init__(self, port: int, users: int, deadline: float):
        super().__init__(daemon=True)
        self.users = users
        self.deadline = deadline
        self.connection = HTTPConnection("127.0.0.1", port, timeout=30)
        self.cookies: dict[str, str] = {}
        self.inbox: list[tuple[str, str]] = []
        self.done = Tally(requests=0, notifications=0, failed=0)
        self.trouble = ""

    def run(self) -> None:
        while time.monotonic() < self.deadline:
            try:
                self.visit()
            except Exception as error:
                self.done["failed"] += 1
                self.trouble = f"{type(error).__name__}: {error}"
                self.connection.close()
                time.sleep(0.1)

    def someone(self) -> int:
        """Choose a user. Half of the time, it is one of a few busy users, so that requests race for one counter."""
        return random.randrange(max(1, self.users // random.choice([1, 40])))

    def visit(self) -> None:
        user = self.someone()
        self.cookies.clear()
        self.request("GET", "/login/")
        self.post("/login/", username=username(user), password=PASSWORD)
        self.look()
        actions = {
            self.look: 30,
            self.send: 30,
            partial(self.send, random.randint(20, 80)): 6,
            partial(self.change, "unread", "mark-as-read"): 15,
            partial(self.change, "read", "mark-as-unread"): 5,
            partial(self.change, random.choice(["read", "unread"]), "delete"): 12,
            partial(self.post, "/mark-as-read/", which="all"): 3,
            partial(self.post, "/delete/", which="read"): 2,
            partial(self.send, 0): 0.3 if user % STAFF == 0 else 0,
        }
        for action in random.choices(list(actions), list(actions.values()), k=random.randint(10, 30)):
            if time.monotonic() > self.deadline:
                return
            action()
        self.post("/logout/")

    def look(self) -> None:
        self.inbox = ROW.findall(self.request("GET", "/"))

    def send(self, most: int = 1) -> None:
        """Send to up to this many users; 0: to everybody."""
        to = [self.someone()] if most == 1 else random.sample(range(self.users), min(self.users, most))
        names = ", ".join(map(username, to))
        self.post("/send/", to=names, kind=random.choice(KINDS), title="Hello", body="A word from the demo.")
        self.done["notifications"] += len(to) or self.users

    def change(self, state: str, action: str) -> None:
        # The row may have changed since the inbox was fetched: this race is intended.
        if rows := [pk for row_state, pk in self.inbox if row_state == state]:
            self.post(f"/{action}/", selected=random.choice(rows))

    def post(self, path: str, **fields: str) -> None:
        self.request("POST", path, fields | {"csrfmiddlewaretoken": self.cookies["csrftoken"]})

    def request(self, method: str, path: str, fields: dict[str, str] | None = None) -> str:
        headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}
        if fields is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        self.connection.request(method, path, urlencode(fields or {}), headers)
        reply = self.connection.getresponse()
        body = reply.read().decode()
        self.done["requests"] += 1
        if reply.status != (200 if method == "GET" else 302):
            raise HTTPException(f"{method} {path}: {reply.status}")
        for header in reply.headers.get_all("Set-Cookie", []):
            for name, morsel in SimpleCookie(header).items():
                self.cookies[name] = morsel.value
        return body


def badge(port: int, user: int) -> int:
    """Return the badge that the site shows a user."""
    visitor = Visitor(port, users=1, deadline=0)
    visitor.request("GET", "/login/")
    visitor.post("/login/", username=username(user), password=PASSWORD)
    return json.loads(visitor.request("GET", "/counts/"))["unread"]


def done(visitors: list[Visitor]) -> Tally[str]:
    """Return what they have done together."""
    return sum((visitor.done for visitor in visitors), Tally())
