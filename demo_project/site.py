"""Runs the demo site, with Redis, a fresh SQLite database, users, web servers and a flusher.

Nothing of it is left afterwards, however this process ends.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path

import redis
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import override_settings

import servers
from notifications_counter.counters import all_counters

from . import traffic

START_SECONDS = 60
WEB_SERVERS = 2  # processes, on one socket


@dataclass
class Site:
    """A running site. Its processes die with the thread that calls its methods."""

    port: int
    users: list
    log: Path | None  # None: the processes write to the terminal
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def run(self, name: str, *arguments: str, **options) -> subprocess.Popen:
        """Start Python with these arguments."""
        with open(self.log or os.devnull, "a") as log:
            output = log if self.log else None
            options = {"stdout": output, "stderr": output} | options
            process = self.processes[name] = subprocess.Popen(
                servers.dies_with_parent([sys.executable, *arguments]),
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process, which then ends the others
                **options,
            )
        return process

    def start_flusher(self) -> None:
        self.run("flusher", "-m", "django", "flush_counters", "--loop", "--interval", "1", "--verbosity", "0")

    def end_process(self, name: str, kill: bool = False) -> None:
        process = self.processes[name]
        try:
            process.kill() if kill else process.terminate()
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_visitors(self, *, seconds: float, clients: int) -> "Visitors":
        numbers = map(str, (self.port, seconds, len(self.users), clients))
        return Visitors(self.run("visitors", "-m", "demo_project.traffic", *numbers, stdout=subprocess.PIPE))

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait for a condition. Raise CommandError if a process ends, or if it takes longer than this."""
        deadline = time.monotonic() + seconds
        while not condition():
            if ended := [name for name, process in self.processes.items() if process.poll() is not None]:
                raise CommandError(f"Ended by itself: {', '.join(ended)}.\n{self.log_end()}")
            if time.monotonic() > deadline:
                raise CommandError(f"The site is not ready after {seconds:.0f} seconds.\n{self.log_end()}")
            time.sleep(0.05)

    def log_end(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log else ""

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for name in self.processes:
            self.end_process(name)


class Visitors:
    """The process of the visitors, and the last line that it printed about what they have `done`."""

    def __init__(self, process: subprocess.Popen):
        self.process, self.done, self.trouble = process, Counter[str](), ""
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            said = json.loads(line)
            self.trouble, self.done = said.pop("trouble"), Counter(said)


def require_packages() -> None:
    """Raise CommandError if a package of the group `demo` is missing."""
    if missing := [name for name in ("rich", "uvicorn") if not find_spec(name)]:
        raise CommandError(f"Not installed: {', '.join(missing)}. Try `pip install --group demo`.")


@contextmanager
def running_site(*, users: int, port: int = 0, quiet: bool = True) -> Iterator[Site]:
    """Run a site with a flusher. Port 0: any free port."""
    # In the background of a script, Ctrl-C would be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)
    with ExitStack() as stack:
        home = stack.enter_context(servers.temporary_directory())
        prefix = f"nc-demo-{secrets.token_hex(4)}"
        url = stack.enter_context(_redis(prefix))
        _move_to(home / "site.sqlite3", url, prefix)
        stack.callback(connections.close_all)
        call_command("migrate", verbosity=0)
        with _listen(port) as listener:
            site = Site(listener.getsockname()[1], _create_users(users), home / "log" if quiet else None)
            stack.callback(site.end)
            fd = listener.fileno()
            for number in range(WEB_SERVERS):
                site.run(f"web server {number}", "-m", "demo_project.asgi", str(fd), pass_fds=[fd])
        site.start_flusher()
        site.wait_until(lambda: _answers(site.port), START_SECONDS)
        for counter in all_counters():
            counter.heal(seconds=START_SECONDS)
        yield site


def _terminate(*_) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing may interrupt the cleanup
    sys.exit(128 + signal.SIGTERM)


@contextmanager
def _redis(prefix: str) -> Iterator[str]:
    """Yield the URL of the Redis in `REDIS_URL`, and remove our keys there, or of one started here."""
    if url := os.environ.get("REDIS_URL"):
        try:
            yield url
        finally:
            with closing(redis.Redis.from_url(url)) as client:
                for key in client.scan_iter(match=f"*{prefix}*", count=1000):
                    client.unlink(key)
    else:
        try:
            with servers.redis() as server:
                yield server.url
        except servers.Missing as error:
            raise CommandError(f"{error}. Start one and set REDIS_URL.") from None


def _move_to(database: Path, redis_url: str, prefix: str) -> None:
    """Point this process, as Django's test runner does, and its child processes to their own database and Redis."""
    os.environ.update(
        DEMO_DATABASE=str(database),
        DEMO_KEY_PREFIX=prefix,
        DEMO_SECRET_KEY=secrets.token_hex(),
        REDIS_URL=redis_url,
    )
    connections["default"].close()
    settings.DATABASES["default"]["NAME"] = connections["default"].settings_dict["NAME"] = str(database)
    override_settings(
        CACHES={"default": {**settings.CACHES["default"], "LOCATION": redis_url}},
        NOTIFICATIONS_COUNTER={**settings.NOTIFICATIONS_COUNTER, "KEY_PREFIX": prefix},
    ).enable()


def _create_users(count: int) -> list:
    model = get_user_model()
    password = make_password(traffic.PASSWORD)
    return model.objects.bulk_create(
        model(username=traffic.username(n), password=password, is_staff=traffic.is_staff(n)) for n in range(count)
    )


def _listen(port: int) -> socket.socket:
    """Open a socket on this port, or on the next free one."""
    for candidate in range(port, port + 100):
        try:
            return socket.create_server((servers.HOST, candidate), backlog=128)
        except OSError:
            pass
    raise CommandError(f"No port is free from {port} to {port + 99}. Choose another one with --port.")


def _answers(port: int) -> bool:
    with closing(HTTPConnection(servers.HOST, port, timeout=20)) as connection:
        try:
            connection.request("GET", "/login/")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
