"""Helpers of the tests of exactness."""

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import uuid4

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection, connections, transaction
from django.db.models import Count, Sum
from django.test import override_settings
from django.utils import timezone
from django_redis import get_redis_connection

from notifications_counter.buffer import Buffer
from notifications_counter.buffer.types import Delta
from notifications_counter.counters import BUILT_IN, Counter, unread
from notifications_counter.declaration import declaration
from notifications_counter.models import Notification
from notifications_counter.monitoring.status import Status, read_counter, read_status
from notifications_counter.places import visible_counters
from notifications_counter.redis.calls import Call
from notifications_counter.redis.client import Client, read_all_owed
from notifications_counter.upkeep import switch
from notifications_counter.upkeep.phases import Phase
from notifications_counter.writes import hook
from servers import HOST

CLUSTER = "notifications_counter.contrib.redis_cluster.ClusterConnectionFactory"
"""Connects a cache to a Redis Cluster."""

TELLS_TRANSACTIONS = getattr(settings, "DRIVER", "") != "mysqlclient"  # benchmarks say none
"""Whether the driver tells of a transaction that raw SQL has begun."""

PATIENCE = 180
"""Seconds after which a test takes something for hung. However busy the machine is, nothing takes that long."""


def wait_until(condition: Callable[[], Any]) -> Any:
    """What the condition returns, as soon as it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not true after {PATIENCE} seconds"
        time.sleep(0.01)
    return result


def buffer(counter: Counter = unread) -> Buffer:
    """The buffer of a counter."""
    return counter.buffer


def be_a_new_process() -> None:
    """Forget which declarations this process has found in force."""
    switch._in_force.clear()
    switch._told.clear()


def announce(buffer: Buffer, intent: str, owners: Sequence[str]) -> None:
    """Announce an intent, as a transaction does before it commits."""
    assert buffer.client.ask(buffer.announcement(intent, owners)) == [1]


def confirm(buffer: Buffer, intent: str, deltas: Mapping[str, Delta]) -> None:
    """Confirm an intent, as a transaction does after it has committed."""
    buffer.client.ask(buffer.confirmation(intent, list(deltas), list(deltas.values())))


def generation(buffer: Buffer) -> str:
    """The generation whose totals readers may use, empty if there is none."""
    return buffer.status().generation


def total_key(user: Any) -> str:
    """The key of a user's cached total."""
    return buffer().key(f"{generation(buffer())}:{user.pk}")


def doubted(counter: Counter = unread) -> list[str]:
    """Owner keys of users who are in doubt since the last flush."""
    found = get_redis_connection("default").zrangebyscore(counter.buffer.key("pending"), "+inf", "+inf")
    return [owner_key.decode() for owner_key in found]


def status_of(counter: Counter = unread, **options: Any) -> Status:
    """What monitoring says of a counter."""
    return read_status(visible_counters([counter]), **options)


def is_ready(counter: Counter = unread) -> bool:
    """Whether reads use what Redis holds."""
    return read_counter(counter).phase in (Phase.NORMAL, Phase.WALKING)


def make_counter(*args: Any, **kwargs: Any) -> Counter:
    """A counter that is declared now, as if the apps were still being loaded."""
    with mock.patch.object(apps, "ready", False):
        return Counter(*args, **kwargs)


def messages(response: Any) -> list[str]:
    """What a page tells its user."""
    return [str(message) for message in response.context["messages"]]


def notify(user: Any, number: int = 3, read: int = 0) -> list[Notification]:
    """New notifications of a user, of which some are read; flushed. Returns all that the user has."""
    now = timezone.now()
    Notification.objects.bulk_create(
        Notification(user=user, title=str(i), read_at=now if i < read else None) for i in range(number)
    )
    unread.flush()
    return list(Notification.objects.filter(user=user).order_by("pk"))


def create(user: Any, number: int = 1) -> None:
    """New notifications of a user, each by a statement of its own."""
    for _ in range(number):
        Notification.objects.create(user=user, title="x")


def give_to(user: Any, row: Notification) -> None:
    """Give a row to somebody by an upsert, which does not say whose it was."""
    unique = {} if connection.vendor == "mysql" else {"unique_fields": ["pk"]}
    given = Notification(pk=row.pk, user_id=unread.pk_of(user), title="x")
    Notification.objects.bulk_create([given], update_conflicts=True, update_fields=["user"], **unique)


def execute(*statements: Any) -> list[Any]:
    """Run SQL, and return the rows of the last statement."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def wait_no_longer() -> None:
    """Have this connection's statements fail with an OperationalError if they would wait for a lock."""
    limits = {"postgresql": "SET lock_timeout = 10", "mysql": "SET innodb_lock_wait_timeout = 1"}
    execute(limits.get(connection.vendor, "PRAGMA busy_timeout = 10"))


class Undone(Exception):
    pass


@contextmanager
def undone() -> Iterator[None]:
    """A transaction, or the part of one after a savepoint, that is rolled back in the end."""
    with suppress(Undone), transaction.atomic():
        yield
        raise Undone


def make_keys(number: int) -> list[Any]:
    """The primary keys of so many new users, in their order."""
    model = get_user_model()
    model.objects.bulk_create(model(username=f"{uuid4()}") for _ in range(number))
    return list(model.objects.order_by("pk").values_list("pk", flat=True))


def unheard(write: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Write behind the back of the counters, as raw SQL does."""
    with mock.patch.object(hook, "counters_of_table", return_value=()):
        return write(*args, **kwargs)


def rows(user: Any, counter: Counter = unread) -> int:
    """COUNT(*), asked for without anything of the app but the condition."""
    return counter.source._base_manager.filter(counter.q, **{counter.owner: counter.pk_of(user)}).count()


def truth(counter: Counter) -> dict[Any, int]:
    """COUNT(*) or SUM() for each owner that has rows."""
    names = counter.owner_attnames
    found = counter.source._base_manager.filter(counter.q, **{f"{name}__isnull": False for name in names}).order_by()
    sums = found.values_list(*names).annotate(found=Sum(counter.sum, default=0) if counter.sum else Count("pk"))
    return {tuple(owner) if len(names) > 1 else owner[0]: number for *owner, number in sums}


def stored(user: Any, counter: Counter = unread) -> int:
    """What the database has for a user, 0 if nothing."""
    totals = counter.totals._base_manager.filter(pk=counter.pk_of(user))
    return totals.values_list(counter.field, flat=True).first() or 0


def assert_reads(*users: Any, counter: Counter = unread) -> None:
    """Every way of reading gives COUNT(*)."""
    right = {counter.pk_of(user): rows(user, counter) for user in users}
    for _ in range(2):  # the first keeps what the second reads
        assert {key: counter.count(key) for key in right} == right
        assert counter.counts(right) == right


def begin_now() -> None:
    """Run a statement before which whoever has changed in this transaction begins, because it might commit."""
    execute("EXPLAIN SELECT 1")


def assert_exact(*users: Any, counter: Counter = unread, in_doubt: int | None = 0, wrong: int = 0) -> None:
    """Reads give COUNT(*), so do the stored totals once healed and flushed; this many users were in doubt, if known."""
    read_all_owed()  # on a busy machine, what other threads have sent may arrive after what this one sends
    assert counter.buffer.status().intents == 0
    assert in_doubt is None or len(doubted(counter)) == in_doubt
    assert_reads(*users, counter=counter)
    assert counter.recount(users, dry_run=True).wrong == 0
    assert_heals(*users, counter=counter, wrong=wrong)


def assert_heals(*users: Any, counter: Counter = unread, wrong: int = 0) -> None:
    """A run of the flusher makes everything exact, with transactions that never came back overdue at once. Nobody was
    called wrong, but those whom the test has spoiled."""
    with entries(HEAL_AFTER=0):
        counter.heal(PATIENCE)
    counter.flush()
    assert read_counter(counter).wrong == wrong
    right = {counter.pk_of(user): rows(user, counter) for user in users}
    assert {key: stored(key, counter) for key in right} == right
    assert_reads(*users, counter=counter)
    status = counter.buffer.status()
    assert (status.pending, status.flushing) == (0, 0)


@contextmanager
def in_use(*names: str) -> Iterator[None]:
    """Built-in counters of these names are in use, as if COUNTERS had named them when the site started."""
    found = {name: BUILT_IN[name] for name in names}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(declaration._declarations, found))
        stack.enter_context(mock.patch.object(declaration, "_by_table", None))
        for counter in found.values():
            stack.enter_context(mock.patch.object(counter, "is_used", True))
        yield
    for counter in found.values():
        vars(counter).pop("source", None)


@contextmanager
def entries(**changed: Any) -> Iterator[None]:
    """Entries of NOTIFICATIONS_COUNTER changed for a while, the others still those of the test."""
    with override_settings(NOTIFICATIONS_COUNTER={**settings.NOTIFICATIONS_COUNTER, **changed}):
        yield


@contextmanager
def redis_out_of_reach() -> Iterator[None]:
    """The cache moves to a port where no test starts a server. django-redis keeps a pool, with its options, for each
    address, so a server that starts there later would be used with the wrong options."""
    nowhere = {**settings.CACHES["default"], "LOCATION": f"redis://{HOST}:1/0"}
    with override_settings(CACHES={**settings.CACHES, "default": nowhere}):
        yield


@contextmanager
def sent() -> Iterator[list[str]]:
    """The commands and scripts, by name, that are sent to Redis meanwhile."""
    commands: list[str] = []
    exchange = Client._exchange

    def noting(self: Client, calls: Sequence[Call], wait: bool = True) -> Any:
        commands.extend(call.name for call in calls)
        return exchange(self, calls, wait)

    with mock.patch.object(Client, "_exchange", noting):
        yield commands


@contextmanager
def round_trips() -> Iterator[SimpleNamespace]:
    """Count the waits for Redis in a block, and their commands, in all threads."""
    seen = SimpleNamespace(number=0, commands=0)
    exchange = Client._exchange

    def exchanging(self: Client, calls: Sequence[Call], wait: bool = True) -> Any:
        if answers := exchange(self, calls, wait):  # otherwise, the next exchange reads the replies
            seen.number += 1
            seen.commands += len(calls)
        return answers

    with mock.patch.object(Client, "_exchange", exchanging):
        yield seen


def session() -> int:
    """What the server calls this thread's connection. PostgreSQL or MariaDB."""
    return execute("SELECT pg_backend_pid()" if connection.vendor == "postgresql" else "SELECT CONNECTION_ID()")[0][0]


@contextmanager
def fork(work: Callable[[], Any]) -> Iterator[None]:
    """A fork of this process, which does this work beside the block, and must not fail."""
    connections.close_all()
    if not (pid := os.fork()):
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    yield
    assert os.waitpid(pid, 0)[1] == 0


class OtherConnection:
    """Runs functions in a thread, and so on a connection, of its own."""

    def __enter__(self) -> "OtherConnection":
        self._thread = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *_: Any) -> None:
        self._thread.submit(connections.close_all).result()
        self._thread.shutdown()

    def start(self, function: Any, *args: Any, **kwargs: Any) -> Future:
        return self._thread.submit(function, *args, **kwargs)

    def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return self.start(function, *args, **kwargs).result(PATIENCE)


def together(*works: Callable[[], Any]) -> list[Any]:
    """Run functions at the same moment, each on a connection of its own. Returns what they return."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        barrier.wait(PATIENCE)
        return work()

    with ExitStack() as stack:
        running = [stack.enter_context(OtherConnection()).start(run, work) for work in works]
        return [future.result(PATIENCE) for future in running]
