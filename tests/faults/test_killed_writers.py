"""Writers that are killed before each message between them and the servers: every read is right at once."""

import os
import signal
import socket
import threading
import traceback
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from notifications_counter.buffer.client import client_of, read_all_owed
from notifications_counter.conf import options
from notifications_counter.counters import Counter, unread
from notifications_counter.models import Notification
from servers.relay import Relay
from tests.support import PATIENCE, entries, rows
from tests.tasks.counters import open_issues, urgent_issues
from tests.tasks.models import Issue, Project

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # pytest-xdist has threads
]


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
    """Writes in a fork, which comes to the servers by relays."""

    def __init__(self, spare: Any):
        self.spare, self.trap = spare, Trap()
        self.location = urlsplit(settings.CACHES["default"]["LOCATION"])
        self.relays = [DeadlyRelay(self.location.port or 6379, self.trap)]
        if port := connection.settings_dict["PORT"]:
            self.relays.append(DeadlyRelay(int(port), self.trap))

    def write(self, work: Callable[[], object], n: int) -> bool:
        """Write in a process that is killed before the n-th message. Returns whether there were so many."""
        connections.close_all()
        (is_ready, say_ready), (may_go, say_go) = os.pipe(), os.pipe()
        if not (pid := os.fork()):
            status = 1
            try:
                self.connect()
                os.write(say_ready, b".")
                os.read(may_go, 1)
                work()
                read_all_owed()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(say_ready)
        assert os.read(is_ready, 1)
        self.trap.set(pid, n)
        os.write(say_go, b".")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for end in (is_ready, may_go, say_go):
            os.close(end)
        return {0: False, -signal.SIGKILL: True}[code]

    def connect(self) -> None:
        """In the fork: use the relays, and learn that Redis knows the scripts."""
        location = self.location._replace(netloc=f"127.0.0.1:{self.relays[0].port}").geturl()
        override_settings(CACHES={"default": {**settings.CACHES["default"], "LOCATION": location}}).enable()
        if len(self.relays) > 1:
            connection.settings_dict["PORT"] = str(self.relays[1].port)
        create(self.spare)
        upsert(self.spare, self.spare)
        read_all_owed()
        client_of("default").call("EXISTS", "x")


@pytest.fixture
def writer(make_user: Callable[[], Any]) -> Iterator[Writer]:
    writer = Writer(make_user().pk)
    yield writer
    for relay in writer.relays:
        relay.socket.close()


# -------------------------------------------------------------------------------------------------------------- writes
def create(user: Any) -> None:
    Notification.objects.create(user_id=user, title="x")


def create_together(*users: Any) -> None:
    with transaction.atomic():
        for user in users:
            create(user)


def upsert(old: Any, new: Any) -> None:
    """Nothing says whose counts this changes."""
    row = Notification.objects.filter(user=old, read_at=None)[0]
    row.user_id = new
    unique = {} if connection.vendor == "mysql" else {"unique_fields": ["pk"]}
    Notification.objects.bulk_create([row], update_conflicts=True, update_fields=["user"], **unique)


def create_issue(project: Any) -> None:
    """Two counters count it."""
    Issue.objects.create(project_id=project, urgent=True)


OWNERS = {create: 1, create_together: 3, upsert: 2, create_issue: 1}


class Site:
    """Owners, and their counters."""

    def __init__(self, work: Callable[..., None], make_user: Callable[[], Any]):
        if work is create_issue:
            self.counters, self.prepare = [open_issues, urgent_issues], create_issue
            self.owners = [Project.objects.create().pk]
        else:
            self.counters, self.prepare = [unread], create
            self.owners = [make_user().pk for _ in range(OWNERS[work])]

    def rows(self) -> list[dict[Any, int]]:
        return [{owner: rows(owner, counter) for owner in self.owners} for counter in self.counters]

    def ways(self) -> Iterable[tuple[Counter, Callable[[Counter], dict[Any, int]]]]:
        for counter in self.counters:
            yield counter, lambda counter: counter.counts(self.owners)
            yield counter, lambda counter: {owner: counter.count(owner) for owner in self.owners}

    def read(self) -> int:
        """Read in every way, twice: the first may keep what the second finds. Returns how many reads were compared: a
        COMMIT may be under way."""
        compared = 0
        for _ in range(2):
            for counter, way in self.ways():
                before = {owner: rows(owner, counter) for owner in self.owners}
                found = way(counter)
                if before == {owner: rows(owner, counter) for owner in self.owners}:
                    assert found == before, counter.name
                    compared += 1
        return compared

    def heal(self) -> None:
        for counter in self.counters:
            with entries(HEAL_AFTER=0):
                counter.heal()
            counter.flush()


@pytest.mark.parametrize("is_warm", [True, pytest.param(False, marks=pytest.mark.once)], ids=["warm", "cold"])
@pytest.mark.parametrize("work", OWNERS)
def test_reads_are_right_at_once(work, is_warm, writer, make_user, redis_client, record_property):
    """After the kill, after what was on its way has arrived, and after a heal."""
    site = Site(work, make_user)
    for counter in {unread, *site.counters}:
        counter.heal()
    create(writer.spare)
    outcomes: Tally[bool] = Tally()  # whether the rows have changed
    reads = 0
    was_killed = True
    while was_killed:
        for owner in site.owners:
            site.prepare(owner)
        site.read()
        with CaptureQueriesContext(connection) as queries:
            for counter, way in site.ways():
                way(counter)
        assert not queries.captured_queries
        if not is_warm:
            redis_client.delete(*redis_client.keys(f"{{{options.KEY_PREFIX}:*:total:*"), "none")
        before = site.rows()
        was_killed = writer.write(lambda: work(*site.owners), outcomes.total() + 1)
        try:
            reads += site.read()
            outcomes[site.rows() != before] += 1
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
