"""Round trips and statements of the public operations: their budgets, and no more.

A *round trip* is one wait of a process for Redis: commands that are sent together are one. A *statement* is anything
that the database runs, including BEGIN and COMMIT.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import django
import pytest
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import deletion
from django.template import Context, engines
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.events import EventLog
from notifications_counter.models import Notification
from notifications_counter.timeseries import TimeSeries
from notifications_counter.writes.transaction import request_recounts
from tests.support import buffer, round_trips, status_of

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="Other databases need some more statements."),
]

Operation = Callable[[], object]


# ------------------------------------------------------------------------------------------------ what there is before
def users(number: int, each: int = 1) -> list[Any]:
    """Users with unread notifications, flushed and cached."""
    model = get_user_model()
    model.objects.bulk_create(model(username=f"user{n}", password="!") for n in range(number))
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
    """A notification of a new user."""
    return Notification.objects.filter(user=user())[0]


def changed(**values: Any) -> Notification:
    row = loaded()
    for name, value in values.items():
        setattr(row, name, value)
    return row


def new(number: int) -> list[Notification]:
    """Unsaved instances, each for another user."""
    return [Notification(user=one, title="Hello") for one in users(number)]


def mine() -> Any:
    return Notification.objects.for_user(user())


def of_everybody(number: int) -> Any:
    users(number)
    return Notification.objects.all()


def forgotten(them: Any) -> Any:
    """Every cached total is dropped, as Redis may at any time."""
    redis = buffer().client.redis
    redis.delete(*redis.scan_iter(match=f"{buffer().keys.base}:total:*", count=1000))
    return them


def flush_of(number: int, **options: Any) -> Operation:
    send(users(number, each=0))
    return partial(unread.flush, **options)


def doubted() -> Any:
    one = user()
    buffer().doubt([str(one.pk)])
    return one


def heal_of_requests(number: int) -> Operation:
    """A heal of zero seconds recounts a few of them."""
    request_recounts(unread.db, [(unread, str(one.pk)) for one in users(number)])
    return partial(unread.heal, 0)


def heal_of_everyone(number: int) -> Operation:
    users(number)
    unread.invalidate()
    return unread.heal


def visit(address: str) -> Operation:
    client = Client()
    client.force_login(user(each=30))
    return partial(client.get, address)


def open_one() -> Operation:
    row, client = loaded(), Client()
    client.force_login(row.user)
    return partial(client.post, f"/notifications/{row.pk}/")


def badges() -> Operation:
    """A template for a user, without the cost of a session."""
    request = RequestFactory().get("/")
    request.user = user()
    template = engines["django"].from_string("{% load notifications_inbox %}{% badge %}{% unread_count %}")
    return partial(template.template.render, Context({"request": request}))


def in_one_transaction(number: int) -> Operation:
    them = users(number)

    def create() -> None:
        with transaction.atomic():
            for one in them:
                Notification.objects.create(user=one, title="Hello")
            unread.count(them[0])

    return create


def events() -> EventLog:
    log = EventLog("operations")
    log.record_events({"type": f"type{n % 3}", "timestamp": n} for n in range(10))
    return log


def series() -> TimeSeries:
    some = TimeSeries()
    some.update_counter("hits")
    return some


# ---------------------------------------------------------------------------------------------------------- operations
OPERATIONS = [
    ("count(), cached", lambda: partial(unread.count, user()), 1, 0),
    ("count(), not cached", lambda: partial(unread.count, forgotten(user())), 3, 1),
    ("count(), in doubt", lambda: partial(unread.count, doubted()), 3, 1),
    ("counts() of 1,000, cached", lambda: partial(unread.counts, users(1000)), 1, 0),
    ("counts() of 2,500, not cached", lambda: partial(unread.counts, forgotten(users(2500))), 7, 3),
    ("attach() to 1,000, cached", lambda: partial(unread.attach, users(1000), "unread"), 1, 0),
    ("top(10) of 1,000", lambda: users(1000) and partial(unread.top, 10), 1, 1),
    ("badges of a page", badges, 1, 0),
    ("inbox, session and user included", lambda: visit("/notifications/"), 1, 3),
    ("count as JSON, session and user included", lambda: visit("/notifications/counts/"), 1, 2),
    ("opening one, session and user included", open_one, 1, 4),
    # writes of one
    ("create()", lambda: partial(Notification.objects.create, user=user(), title="Hello"), 1, 1),
    ("save() of a changed one", lambda: changed(read_at=timezone.now()).save, 1, 4),
    ("save() of a title", lambda: partial(changed(title="Bye").save, update_fields=["title"]), 0, 1),
    ("delete() of one", lambda: loaded().delete, 1, 3),
    ("mark_as_read() of one", lambda: loaded().mark_as_read, 1, 2),
    ("mark_as_seen() of one", lambda: loaded().mark_as_seen, 0, 2),
    ("mark_as_unread() of one that is unread", lambda: loaded().mark_as_unread, 1, 5),
    # writes of many
    ("mark_as_read() of a user's", lambda: mine().mark_as_read, 1, 1),
    ("mark_as_seen() of a user's", lambda: mine().mark_as_seen, 0, 1),
    ("mark_as_read() of 100 users'", lambda: of_everybody(100).mark_as_read, 1, 3),
    ("update() of titles", lambda: partial(mine().update, title="Bye"), 0, 1),
    ("delete() of a user's", lambda: mine().delete, 1, 3),
    ("delete() of 100 users'", lambda: of_everybody(100).delete, 1, 3),
    ("bulk_create() of 1", lambda: partial(Notification.objects.bulk_create, new(1)), 1, 3),
    ("bulk_create() for 2,500", lambda: partial(Notification.objects.bulk_create, new(2500)), 5, 3),
    ("100 create() and a count() in a transaction", lambda: in_one_transaction(100), 1, 103),
    # maintenance
    ("flush() of nothing", lambda: unread.flush, 1, 2),
    ("flush() of 1", lambda: flush_of(1), 3, 7),
    ("flush() of 2,500", lambda: flush_of(2500), 5, 9),
    ("flush() of 1,000 in two chunks", lambda: flush_of(1000, chunk_size=500), 5, 17),
    ("heal(), all is well", lambda: unread.heal, 4, 5),
    ("heal(0), 2,500 requests", lambda: heal_of_requests(2500), 7, 17),
    ("heal() of everyone, 2,500", lambda: heal_of_everyone(2500), 9, 22),
    ("recount() of 1", lambda: partial(unread.recount, users(1)), 3, 1),
    ("recount() of 2,500", lambda: partial(unread.recount, users(2500)), 5, 3),
    ("recount() of everyone, 2,500", lambda: users(2500) and unread.recount, 10, 4),
    ("invalidate()", lambda: unread.invalidate, 4, 6),
    ("status()", lambda: unread.status, 2, 1),
    ("read_status() of one counter", lambda: partial(status_of, unread), 4, 2),
    # beside it
    ("update_counters() of 10", lambda: partial(series().update_counters, {f"hits{n}": 1 for n in range(10)}), 1, 0),
    ("get_counter()", lambda: partial(series().get_counter, "hits", 5), 1, 0),
    ("list_counters()", lambda: series().list_counters, 3, 0),
    ("clean_counters() at seven precisions", lambda: series().clean_counters, 29, 0),
    ("record_events() of 100", lambda: partial(events().record_events, [{"type": "login"}] * 100), 1, 0),
    ("get_event()", lambda: partial(events().get_event, 1), 1, 0),
    ("latest()", lambda: events().latest, 1, 0),
    ("after()", lambda: partial(events().after, 5), 1, 0),
    ("count_types()", lambda: events().count_types, 2, 0),
    ("trim_events()", lambda: partial(events().trim_events, max_length=5), 1, 0),
]


@pytest.fixture(autouse=True)
def _a_common_site(healed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing points to a notification, and no model is a child of it."""
    monkeypatch.setattr(deletion, "get_candidate_relations_to_delete", lambda options: ())


@pytest.mark.parametrize(
    ("prepare", "trips", "statements"), [each[1:] for each in OPERATIONS], ids=[each[0] for each in OPERATIONS]
)
def test_an_operation_costs_its_budget(prepare: Callable[[], Operation], trips: int, statements: int) -> None:
    """Less is no less a failure: a budget with room to spare guards nothing. Lower it."""
    operation = prepare()
    with CaptureQueriesContext(connection) as queries, round_trips() as waits:
        operation()
    found, budget = (waits.number, len(queries)), (trips, statements)
    # From Django 6.1 on, a bulk_create() of one batch needs no BEGIN and COMMIT.
    is_within = operator.eq if django.VERSION < (6, 1) else operator.le
    assert all(map(is_within, found, budget)), "\n".join([f"{found}", *(query["sql"] for query in queries)])


def test_a_flush_binds_a_chunk_as_a_whole() -> None:
    bound: list[Any] = []

    def executing(execute: Callable[..., Any], sql: str, params: Any, *args: Any) -> Any:
        bound.extend(params or ())
        return execute(sql, params, *args)

    flush = flush_of(1000)
    with connection.execute_wrapper(executing):
        flush()
    assert len(bound) < 20
