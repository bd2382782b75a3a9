"""Runs the demo site, with Redis, a fresh SQLite database, users, web servers and a flusher.

Nothing of it is left afterwards, however this process ends.
"""

import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import override_settings

import servers

from . import report, traffic

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

    def run(self, name: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> None:
        """Start Python with these arguments."""
        with open(self.log or os.devnull, "a") as log:
            self.processes[name] = subprocess.Popen(
                servers.dies_with_parent([sys.executable, "-m", *arguments]),
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=log if self.log else None,
                stderr=log if self.log else None,
                start_new_session=True,  # Ctrl-C is for this process, which then ends the others
                pass_fds=pass_fds,
            )

    def start_flusher(self) -> None:
        self.run("flusher", "django", "flush_counters", "--loop", "--interval", "1", "--verbosity", "0")

    def kill(self, *names: str) -> None:
        for name in names:
            self.processes[name].kill()
            self.processes[name].wait()

    def wait_until(self, condition: Callable[[], bool], seconds: float = math.inf) -> None:
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

    def answers(self) -> bool:
        with suppress(OSError, HTTPException):
            return bool(traffic.Visitor(self.port, users=1, deadline=0).request("GET", "/login/"))
        return False


@contextmanager
def running_site(
    *, users: int, port: int = 0, quiet: bool = True, settle: Callable[[list], None] = lambda users: None
) -> Iterator[Site]:
    """Run a site with a flusher, on which ``settle`` creates what it begins with. Port 0: any free port."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a script, Ctrl-C would be ignored
    with ExitStack() as stack:
        home = stack.enter_context(servers.temporary_directory())
        try:
            redis = stack.enter_context(servers.redis())
        except servers.Missing as error:
            raise CommandError(str(error)) from None
        _move_to(str(home / "site.sqlite3"), redis.url)
        stack.callback(connections.close_all)
        call_command("migrate", verbosity=0)
        password = make_password(traffic.PASSWORD)
        model = get_user_model()
        people = model.objects.bulk_create(
            model(username=traffic.username(n), password=password, is_staff=n % traffic.STAFF == 0)
            for n in range(users)
        )
        settle(people)
        report.drain()  # the first heal, so that nobody else is about to do it
        with _listen(port) as listener:
            site = Site(listener.getsockname()[1], people, home / "log" if quiet else None)
            stack.callback(lambda: site.kill(*site.processes))
            fd = listener.fileno()
            for number in range(WEB_SERVERS):
                site.run(f"web server {number}", "demo_project.asgi", str(fd), pass_fds=(fd,))
        site.start_flusher()
        site.wait_until(site.answers, seconds=60)
        yield site


def _move_to(database: str, redis_url: str) -> None:
    """Point this process, as Django's test runner does, and its child processes to their own database and Redis."""
    os.environ.update(DEMO_DATABASE=database, DEMO_SECRET_KEY=secrets.token_hex(), REDIS_URL=redis_url)
    connections["default"].close()
    settings.DATABASES["default"]["NAME"] = connections["default"].settings_dict["NAME"] = database
    override_settings(
        CACHES={alias: {**cache, "LOCATION": redis_url} for alias, cache in settings.CACHES.items()}
    ).enable()


def _listen(port: int) -> socket.socket:
    """Open a socket on this port, or on the next free one."""
    for candidate in range(port, port + 100):
        try:
            return socket.create_server((servers.HOST, candidate), backlog=128)
        except OSError:
            pass
    raise CommandError(f"No port is free from {port} to {port + 99}. Choose another one with --port.")
