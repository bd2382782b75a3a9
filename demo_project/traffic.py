"""Visitors of the demo site: threads that log in and use it over HTTP, as browsers would.

`python -m demo_project.traffic PORT SECONDS USERS CLIENTS` runs in a process of its own, without Django. Every half
second, it prints a line of JSON with what the visitors have done.
"""

import json
import random
import re
import sys
import threading
import time
from collections import Counter
from functools import partial
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from urllib.parse import urlencode

PASSWORD = "demo"
KINDS = ["", "comment", "order", "security"]
ROW = re.compile(r'<li class="nc-row nc-(read|unread)" data-key="(\d+)">')


def username(n: int) -> str:
    return f"user{n:04}"


def is_staff(n: int) -> bool:
    return n % 10 == 0


class Refused(Exception):
    """The site gave a visitor an unexpected response."""


class Visitor(threading.Thread):
    def __init__(self, port: int, users: int, deadline: float):
        super().__init__(daemon=True)
        self.users = users
        self.deadline = deadline
        self.connection = HTTPConnection("127.0.0.1", port, timeout=30)
        self.cookies: dict[str, str] = {}
        self.inbox: list[tuple[str, str]] = []
        self.done = Counter(requests=0, notifications=0, failed=0)
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
            partial(self.send, 0): 0.3 if is_staff(user) else 0,
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
            raise Refused(f"{method} {path}: {reply.status}")
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


def main() -> None:
    port, seconds, users, clients = map(float, sys.argv[1:])
    deadline = time.monotonic() + seconds
    visitors = [Visitor(int(port), int(users), deadline) for _ in range(int(clients))]
    for visitor in visitors:
        visitor.start()
    running = True
    while running:
        time.sleep(0.5)
        # Before the sum, so that the last line contains everything.
        running = any(visitor.is_alive() for visitor in visitors)
        done: Counter[str] = Counter()
        for visitor in visitors:
            done.update(visitor.done)
        trouble = next((visitor.trouble for visitor in visitors if visitor.trouble), "")
        print(json.dumps({**done, "trouble": trouble}), flush=True)


if __name__ == "__main__":
    main()
