"""Writers that are killed before each message between them and the servers: every read is right at once."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext

from notifications_counter.conf import options
from notifications_counter.counters import Counter, unread
from notifications_counter.models import Notification
from servers.relay import Relay
from tests.composite_owners.counters import votes
from tests.composite_owners.models import Vote
from tests.support import PATIENCE, entries
from tests.tasks.counters import open_issues, urgent_issues
from tests.tasks.models import Issue, Project

from .child import ROOT

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


class Trap:
    """Kills a process before the n-th message from or to it, which arrives later."""

    def __init__(self) -> None:
        self.pid, self.left = 0, 0
        self.lock, self.released = threading.Lock(), threading.Event()
        self.carriers: list[threading.Thread] = []

    def set(self, pid: int, n: int) -> None:
        self.released.clear()
        self.pid, self.left = pid, n

    def is_sprung(self) -> bool:
        with self.lock:
            self.left -= 1
            if self.left == 0:
                os.kill(self.pid, signal.SIGKILL)
                return True
            return False

    def release(self) -> None:
        """Let arrive what the process has sent, and wait until the servers are done with it."""
        self.left = 0
        self.released.set()
        while self.carriers:
            self.carriers.pop().join(PATIENCE)


class DeadlyRelay(Relay):
    def __init__(self, port: int, trap: Trap):
        self.trap = trap
        super().__init__(SimpleNamespace(port=port))

    @property
    def port(self) -> int:
        return self.socket.getsockname()[1]

    def pass_on(self, data: bytes, is_reply: bool, to: socket.socket) -> bool:
        if not self.trap.is_sprung():
            return super().pass_on(data, is_reply, to)
        self.trap.released.wait(PATIENCE)
        if not is_reply:
            to.sendall(data)
            to.shutdown(socket.SHUT_WR)
            while to.recv(2**20):
                pass
        return False

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        self.trap.carriers.append(threading.current_thread())
        super()._carry(client, server)


class Writer:
    """The process of tests/faults/writer.py, behind relays."""

    def __init__(self, environment: dict[str, str], user: Any):
        self.trap = Trap()
        location = urlsplit(settings.CACHES["default"]["LOCATION"])
        self.relays = [DeadlyRelay(location.port or 6379, self.trap)]
        environment = {
            **environment,
            "TEST_REDIS_URL": location._replace(netloc=f"127.0.0.1:{self.relays[0].port}").geturl(),
        }
        if port := settings.DATABASES["default"].get("PORT"):
            self.relays.append(DeadlyRelay(int(port), self.trap))
            environment["TEST_DATABASE_PORT"] = str(self.relays[1].port)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.writer", json.dumps(str(user))],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def say(self, what: Any) -> Any:
        print(json.dumps(what, default=str), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def write(self, name: str, owners: Iterable[Any], n: int) -> bool:
        """Write in a process that is killed before the n-th message. Returns whether there were so many."""
        self.trap.set(self.say([name, list(owners)]), n)
        return {0: False, -signal.SIGKILL: True}[self.say("go")]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        for relay in self.relays:
            relay.socket.close()


@pytest.fixture
def writer(child_environment, make_user) -> Iterator[Writer]:
    writer = Writer(child_environment, make_user().pk)
    yield writer
    writer.close()


class Site:
    """Owners, and the rows that are there before each write."""

    def __init__(self, name: str, make_user: Any):
        self.counters = [unread]
        self.owners: list[Any] = []
        if name == "create_issue":
            self.counters, self.owners = [open_issues, urgent_issues], [Project.objects.create().pk]
        elif name == "move_votes":
            self.counters, self.owners = [votes], [(1, 1, 5), (1, 1, 4)]
        else:
            self.owners = [make_user().pk for _ in range(1 if name == "create" else 3)]

    def prepare(self) -> None:
        for owner in self.owners:
            if self.counters == [unread]:
                Notification.objects.create(user_id=owner, title="x")
            elif self.counters == [votes]:
                Vote.objects.create(shop=owner[0], item=owner[1], stars=owner[2])
            else:
                Issue.objects.create(project_id=owner)

    def rows(self, counter: Counter) -> dict[Any, int]:
        names = counter.owner_attnames
        keys = {owner: owner if isinstance(owner, tuple) else (owner,) for owner in self.owners}
        found = counter.source._base_manager.filter(counter.q)
        return {owner: found.filter(**dict(zip(names, key, strict=True))).count() for owner, key in keys.items()}

    def read(self) -> int:
        """Read in every way, twice: the first may keep what the second finds. Returns how many reads were compared."""
        compared = 0
        for counter in self.counters * 2:
            for way, read in self.ways(counter).items():
                before = self.rows(counter)
                found = read()
                if before == self.rows(counter):
                    assert found == before, f"{counter.name}.{way}"
                    compared += 1
        return compared

    def ways(self, counter: Counter) -> dict[str, Callable[[], dict[Any, int]]]:
        return {
            "counts": lambda: counter.counts(self.owners),
            "count": lambda: {owner: counter.count(owner) for owner in self.owners},
        }

    def heal(self) -> None:
        for counter in self.counters:
            with entries(HEAL_AFTER=0):
                counter.heal()
            counter.flush()


@pytest.mark.parametrize("is_warm", [True, pytest.param(False, marks=pytest.mark.once)], ids=["warm", "cold"])
@pytest.mark.parametrize("name", ["create", "create_together", "update", "upsert", "create_issue", "move_votes"])
def test_reads_are_right_at_once(name, is_warm, writer, make_user, redis_client, record_property):
    """After the kill, after what was on its way has arrived, and after a heal."""
    site = Site(name, make_user)
    site.heal()
    outcomes: Tally[bool] = Tally()  # whether the rows have changed
    reads = 0
    was_killed = True
    while was_killed:
        site.prepare()
        site.read()
        with CaptureQueriesContext(connection) as queries:
            for counter in site.counters:
                for read in site.ways(counter).values():
                    read()
        assert not queries.captured_queries
        if not is_warm:
            redis_client.delete(*redis_client.keys(f"{{{options.KEY_PREFIX}:*:total:*"), "none")
        before = [site.rows(counter) for counter in site.counters]
        was_killed = writer.write(name, site.owners, outcomes.total() + 1)
        try:
            reads += site.read()
            outcomes[[site.rows(counter) for counter in site.counters] != before] += 1
            writer.trap.release()
            reads += site.read()
            site.heal()
            reads += site.read()
        except AssertionError as error:
            error.add_note(f"killed before message {outcomes.total()}" if was_killed else "not killed")
            raise
    assert outcomes[False] >= 2  # the announcement, and its reply
    assert outcomes[True] > 2  # the confirmation, and its reply
    record_property("kills", outcomes.total() - 1)
    record_property("reads", reads)
