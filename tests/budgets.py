"""Counts the round trips and statements of each public operation, which a test holds to its budget.

A *round trip* is one wait of a process for Redis: commands that are sent together are one. A *statement* is anything
that the database runs, including BEGIN and COMMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import CharField
from django.template import Context, engines
from django.test import Client as Browser
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from notifications_counter.buffer.calls import Call
from notifications_counter.buffer.client import Client
from notifications_counter.counters import unread
from notifications_counter.events import EventLog
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification
from notifications_counter.timeseries import TimeSeries
from notifications_counter.writes.transaction import request_recounts
from tests.support import status_of


class Operation(NamedTuple):
    """``prepare`` creates the data of the operation, and returns the operation. Its budget is a number of round
    ``trips`` and, on PostgreSQL, of ``statements``. Other databases take ``elsewhere`` statements. ``sqlite``, which
    takes only some hundred parameters at once, may take more. Users with ``text_keys``, which may be equal although
    they differ, have their own numbers of trips, statements on PostgreSQL, and statements elsewhere."""

    name: str
    prepare: Callable[[], Callable[[], object]]
    trips: int
    statements: int
    elsewhere: int | None = None
    sqlite: int | None = None
    text_keys: tuple[int, int, int] | None = None

    def budget(self) -> tuple[int, int]:
        """Return the round trips and statements for these users and this database."""
        if self.text_keys and isinstance(unread.key_fields[0], CharField):
            trips, statements, elsewhere = self.text_keys
            return trips, statements if connection.vendor == "postgresql" else elsewhere
        if self.sqlite and connection.vendor == "sqlite":
            return self.trips, self.sqlite
        return self.trips, self.statements if connection.vendor == "postgresql" else self.elsewhere or self.statements


# --------------------------------------------------------------------- counting
@contextmanager
def round_trips() -> Iterator[SimpleNamespace]:
    """Count the waits for Redis in a block, and their commands, in all threads."""
    seen = SimpleNamespace(number=0, commands=0)
    exchange = Client.exchange

    def exchanging(self: Client, calls: Sequence[Call], wait: bool = True) -> Any:
        if answers := exchange(self, calls, wait):  # otherwise, the next exchange reads the replies
            seen.number += 1
            seen.commands += len(calls)
        return answers

    def asking(self: Client, key: str) -> Any:
        seen.number += 1
        return info(self, key)

    info = Client.info
    with mock.patch.multiple(Client, exchange=exchanging, info=asking):
        yield seen


@contextmanager
def freight() -> Iterator[SimpleNamespace]:
    """Count the bound parameters in a block, and the rows that statements return or change. SQLite does not tell how
    many it returns."""
    seen = SimpleNamespace(parameters=0, rows=0)

    def executing(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        result = execute(sql, params, many, context)
        seen.parameters += len(params or ())
        seen.rows += max(0, context["cursor"].rowcount)
        return result

    with connection.execute_wrapper(executing):
        yield seen


class Cost(NamedTuple):
    trips: int
    commands: int
    statements: list[str]
    parameters: int
    rows: int


def cost(operation: Operation) -> Cost:
    """Return the cost of an operation in an empty database, without the first use of a script on a server and the
    handshake of a new connection."""
    unread.heal(seconds=600)
    do = operation.prepare()
    with CaptureQueriesContext(connection) as queries, round_trips() as trips, freight() as bulk:
        do()
    return Cost(trips.number, trips.commands, [q["sql"] for q in queries], bulk.parameters, bulk.rows)


# ------------------------------------------------------------------ what there is
def users(number: int, each: int = 3) -> list[Any]:
    """Create users with unread notifications, flushed and cached."""
    model = get_user_model()
    for i in range(0, number, 500):
        names = (f"user{n}" for n in range(i, min(number, i + 500)))
        model.objects.bulk_create(model(username=name, password="!") for name in names)
    them = list(model.objects.order_by("pk"))
    send(them * each)
    unread.flush()
    unread.counts(them)
    return them


def user(each: int = 3) -> Any:
    return users(1, each)[0]


def send(to: list[Any]) -> None:
    Notification.objects.bulk_create(Notification(user=one, title="Hello") for one in to)


def loaded() -> Notification:
    """Create a notification of a new user."""
    return Notification.objects.filter(user=user())[0]


def forgotten(them: Any) -> Any:
    """Drop every cached total, as Redis may at any time."""
    (buffer,) = unread.buffers
    redis = buffer.client.redis
    redis.delete(*redis.scan_iter(match=f"{buffer.keys.base}:total:*", count=1000))
    return them


def waiting(number: int) -> list[Any]:
    """Create users with pending changes."""
    them = users(number, each=0)
    send(them)
    return them


def doubted(number: int) -> list[Any]:
    """Create users in doubt."""
    them = users(number)
    (buffer,) = unread.buffers
    buffer.doubt([str(one.pk) for one in them])
    return them


def requested(number: int) -> list[Any]:
    """Create users with RecountRequests. A heal of zero seconds recounts a few of them."""
    them = users(number)
    request_recounts(unread.db, [(unread, str(one.pk)) for one in them])
    return them


def lost(number: int) -> list[Any]:
    """Create users to whom a walk is due."""
    them = users(number)
    unread.invalidate()
    return them


def changed(row: Any, **values: Any) -> Any:
    for name, value in values.items():
        setattr(row, name, value)
    return row


def of_user() -> Any:
    return Notification.objects.for_user(user())


def of_everybody(number: int) -> Any:
    users(number)
    return Notification.objects.all()


def controller() -> NotificationController:
    return NotificationController(user())


def marks_one(how: str) -> Callable[[], bool]:
    row = loaded()
    return partial(getattr(NotificationController(row.user_id), how), row.pk)


def new(number: int) -> list[Notification]:
    """Return unsaved instances, each for another user."""
    return [Notification(user=one, title="Hello") for one in users(number)]


def browser() -> Browser:
    client = Browser()
    client.force_login(user(each=30))
    return client


def opens_one() -> Callable[[], object]:
    row = loaded()
    client = Browser()
    client.force_login(row.user)
    return partial(client.post, f"/notifications/{row.pk}/")


def page(text: str) -> Callable[[], str]:
    """Return a function that renders a template for a user, without the cost of a session."""
    request = RequestFactory().get("/")
    request.user = user()
    template = engines["django"].from_string("{% load notifications_inbox %}" + text)  # type: ignore[attr-defined]
    return partial(template.template.render, Context({"request": request}))


def events(number: int = 10) -> EventLog:
    log = EventLog("operations")
    log.record_events({"type": f"type{n % 3}", "timestamp": n} for n in range(number))
    return log


def series() -> TimeSeries:
    some = TimeSeries()
    some.update_counter("hits")
    return some


def in_one_transaction(them: list[Any]) -> None:
    with transaction.atomic():
        for one in them:
            Notification.objects.create(user=one, title="Hello")


def count_after_a_change(one: Any) -> None:
    with transaction.atomic():
        Notification.objects.create(user=one, title="Hello")
        unread.count(one)


# -------------------------------------------------------------------- operations
REQUESTS = [
    # reads
    Operation("`count()`, cached", lambda: partial(unread.count, user()), 1, 0),
    Operation("`count()`, not cached", lambda: partial(unread.count, forgotten(user())), 3, 1),
    Operation("`count()` of a user in doubt", lambda: partial(unread.count, doubted(1)[0]), 3, 1),
    Operation("`counts()` of 1,000 users, cached", lambda: partial(unread.counts, users(1000)), 1, 0),
    Operation(
        "`counts()` of 1,000 users, not cached", lambda: partial(unread.counts, forgotten(users(1000))), 3, 1, sqlite=2
    ),
    Operation("`attach()` to 1,000 users, cached", lambda: partial(unread.attach, users(1000), "unread"), 1, 0),
    Operation("`top(10)` of 1,000 users", lambda: users(1000) and partial(unread.top, 10), 1, 1),
    Operation("`{% badge %}` and `{% unread_count %}`", lambda: page("{% badge %}{% unread_count %}"), 1, 0),
    Operation(
        "a page of the inbox, session and user included", lambda: partial(browser().get, "/notifications/"), 1, 3
    ),
    Operation(
        "the count as JSON, session and user included", lambda: partial(browser().get, "/notifications/counts/"), 1, 2
    ),
    Operation("opening a notification, session and user included", opens_one, 1, 4, text_keys=(1, 6, 7)),
    # writes of one
    Operation("`create()`", lambda: partial(Notification.objects.create, user=user(), title="Hello"), 1, 1),
    Operation("`create()` and `count()` in one transaction", lambda: partial(count_after_a_change, user()), 1, 4),
    Operation("`save()` of a new instance", lambda: new(1)[0].save, 1, 1),
    Operation("`save()` of a changed instance", lambda: changed(loaded(), read_at=timezone.now()).save, 1, 4),
    Operation(
        '`save(update_fields=["title"])`',
        lambda: partial(changed(loaded(), title="Bye").save, update_fields=["title"]),
        0,
        1,
    ),
    Operation("`delete()` of an instance", lambda: loaded().delete, 1, 3, elsewhere=4),
    Operation("`mark_as_read()` of an instance", lambda: loaded().mark_as_read, 1, 2, text_keys=(1, 4, 5)),
    Operation("`mark_as_seen()` of an instance", lambda: loaded().mark_as_seen, 0, 2),
    # writes of many
    Operation("`for_user().mark_as_read()`", lambda: of_user().mark_as_read, 1, 1, text_keys=(1, 3, 4)),
    Operation("`for_user().mark_as_seen()`", lambda: of_user().mark_as_seen, 0, 1),
    Operation("`mark_as_read()` of 100 users' rows", lambda: of_everybody(100).mark_as_read, 1, 3, elsewhere=4),
    Operation(
        "`for_user().update(read_at=…)`",
        lambda: partial(of_user().update, read_at=timezone.now()),
        1,
        1,
        text_keys=(1, 3, 4),
    ),
    Operation("`update(title=…)`", lambda: partial(of_user().update, title="Bye"), 0, 1),
    Operation("`for_user().delete()`", lambda: of_user().delete, 1, 3, text_keys=(1, 3, 4)),
    Operation("`delete()` of 100 users' rows", lambda: of_everybody(100).delete, 1, 3, elsewhere=4),
    Operation(
        "`bulk_create()` for 1,000 users", lambda: partial(Notification.objects.bulk_create, new(1000)), 1, 3, sqlite=12
    ),
    Operation("a transaction that creates 100 for 100 users", lambda: partial(in_one_transaction, users(100)), 1, 102),
]
"""The operations of a site's requests."""

OPERATIONS = [
    *REQUESTS,
    # their variants
    Operation(
        "`counts()` of 2,500 users, not cached", lambda: partial(unread.counts, forgotten(users(2500))), 7, 3, sqlite=5
    ),
    Operation("`acount()`, cached", lambda: partial(async_to_sync(unread.acount), user()), 1, 0),
    Operation("`acounts()` of 1,000 users, cached", lambda: partial(async_to_sync(unread.acounts), users(1000)), 1, 0),
    Operation(
        "`mark_as_unread()` of an instance that is unread", lambda: loaded().mark_as_unread, 1, 5, text_keys=(0, 7, 7)
    ),
    Operation(
        "`for_user().mark_as_unread()`, none is read", lambda: of_user().mark_as_unread, 1, 1, text_keys=(0, 3, 3)
    ),
    Operation("`bulk_create()` of 1", lambda: partial(Notification.objects.bulk_create, new(1)), 1, 3),
    Operation(
        "`bulk_create()` for 2,500 users", lambda: partial(Notification.objects.bulk_create, new(2500)), 5, 3, sqlite=25
    ),
    Operation("a transaction that creates 1 notification", lambda: partial(in_one_transaction, users(1)), 1, 3),
    # a user's notifications
    Operation("`NotificationController.unread_count`", lambda: partial(getattr, controller(), "unread_count"), 1, 0),
    Operation("`NotificationController.mark_as_seen()`", partial(marks_one, "mark_as_seen"), 0, 1),
    Operation("`NotificationController.mark_all_as_seen()`", lambda: controller().mark_all_as_seen, 0, 1),
    Operation("`NotificationController.mark_as_read()`", partial(marks_one, "mark_as_read"), 1, 1, text_keys=(1, 3, 4)),
    Operation(
        "`NotificationController.mark_all_as_read()`", lambda: controller().mark_all_as_read, 1, 1, text_keys=(1, 3, 4)
    ),
    # maintenance
    Operation("`flush()`, nothing waits", lambda: unread.flush, 1, 3),
    Operation("`flush()` of 1 user", lambda: waiting(1) and unread.flush, 3, 8),
    Operation("`flush()` of 1,000 users", lambda: waiting(1000) and unread.flush, 4, 8),
    Operation(
        "`flush()` of 1,000 users in two chunks", lambda: waiting(1000) and partial(unread.flush, chunk_size=500), 5, 18
    ),
    Operation("`flush()` of 2,500 users", lambda: waiting(2500) and unread.flush, 5, 10),
    Operation("`heal()`, all is well", lambda: unread.heal, 4, 5),
    Operation("`heal(0)`, 2,500 requests", lambda: requested(2500) and partial(unread.heal, 0), 7, 17),
    Operation("`heal()` of everyone, 2,500 users", lambda: lost(2500) and unread.heal, 9, 22),
    Operation("`recount()` of 1 user", lambda: partial(unread.recount, users(1)), 3, 1),
    Operation("`recount()` of 1,000 users", lambda: partial(unread.recount, users(1000)), 3, 1),
    Operation("`recount()` of 2,500 users", lambda: partial(unread.recount, users(2500)), 5, 3),
    Operation("`recount()` of everyone, 2,500 users", lambda: users(2500) and unread.recount, 10, 4),
    Operation("`invalidate()`", lambda: unread.invalidate, 4, 6),
    Operation("`status()`", lambda: unread.status, 2, 1),
    Operation("`read_status()` of one counter", lambda: partial(status_of, unread), 4, 2),
    # beside it
    Operation("`update_counter()`", lambda: partial(series().update_counter, "hits"), 1, 0),
    Operation(
        "`update_counters()` of 10 names",
        lambda: partial(series().update_counters, {f"hits{n}": 1 for n in range(10)}),
        1,
        0,
    ),
    Operation("`get_counter()`", lambda: partial(series().get_counter, "hits", 5), 1, 0),
    Operation("`list_counters()`", lambda: series().list_counters, 3, 0),
    Operation("`clean_counters()` at seven precisions", lambda: series().clean_counters, 29, 0),
    Operation("`record_event()`", lambda: partial(events().record_event, {"type": "login"}), 1, 0),
    Operation("`record_events()` of 100", lambda: partial(events().record_events, [{"type": "login"}] * 100), 1, 0),
    Operation("`get_event()`", lambda: partial(events().get_event, 1), 1, 0),
    Operation("`latest()`", lambda: events().latest, 1, 0),
    Operation("`oldest()`", lambda: events().oldest, 1, 0),
    Operation("`before()`", lambda: partial(events().before, 5), 1, 0),
    Operation("`after()`", lambda: partial(events().after, 5), 1, 0),
    Operation("`count_events()`", lambda: events().count_events, 1, 0),
    Operation("`count_type()`", lambda: partial(events().count_type, "type1"), 1, 0),
    Operation("`list_types()`", lambda: events().list_types, 1, 0),
    Operation("`count_types()`", lambda: events().count_types, 2, 0),
    Operation("`trim_events()`", lambda: partial(events().trim_events, max_length=5), 1, 0),
]
