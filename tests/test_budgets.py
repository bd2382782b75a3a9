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
from django.test.utils import CaptureQueriesContext

from notifications_counter.counters import unread
from notifications_counter.events import count_types, record_events
from notifications_counter.models import Notification
from notifications_counter.timeseries import update_counters
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


def new(number: int) -> list[Notification]:
    """Unsaved instances, each for another user."""
    return [Notification(user=one, title="Hello") for one in users(number)]


def of_everybody(number: int) -> Any:
    users(number)
    return Notification.objects.all()


def forgotten(them: Any) -> Any:
    """Every cached total is dropped, as Redis may at any time."""
    redis = buffer().client.redis
    redis.delete(*redis.scan_iter(match=buffer().key("*:*"), count=1000))
    return them


def in_one_transaction(number: int) -> Operation:
    them = users(number)

    def create() -> None:
        with transaction.atomic():
            for one in them:
                Notification.objects.create(user=one, title="Hello")
            unread.count(them[0])

    return create


# ---------------------------------------------------------------------------------------------------------- operations
OPERATIONS = [
    ("count(), cached", lambda: partial(unread.count, user()), 1, 0),
    ("count(), not cached", lambda: partial(unread.count, forgotten(user())), 3, 2),
    ("counts() of 1,000, cached", lambda: partial(unread.counts, users(1000)), 1, 0),
    ("counts() of 2,500, not cached", lambda: partial(unread.counts, forgotten(users(2500))), 7, 4),
    ("top(10) of 1,000", lambda: users(1000) and partial(unread.top, 10), 1, 1),
    # writes
    ("create()", lambda: partial(Notification.objects.create, user=user(), title="Hello"), 1, 1),
    ("save() of a title", lambda: partial(loaded().save, update_fields=["title"]), 0, 1),
    ("delete() of one", lambda: loaded().delete, 1, 3),
    ("mark_as_read() of one", lambda: loaded().mark_as_read, 1, 2),
    ("mark_as_read() of a user's", lambda: Notification.objects.for_user(user()).mark_as_read, 1, 1),
    ("mark_as_read() of 100 users'", lambda: of_everybody(100).mark_as_read, 1, 3),
    ("delete() of 100 users'", lambda: of_everybody(100).delete, 1, 3),
    ("bulk_create() for 2,500", lambda: partial(Notification.objects.bulk_create, new(2500)), 5, 3),
    ("100 create() and a count() in a transaction", lambda: in_one_transaction(100), 1, 103),
    # maintenance
    ("flush() of nothing", lambda: unread.flush, 1, 3),
    ("flush() of 2,500", lambda: send(users(2500, each=0)) or unread.flush, 6, 12),
    ("heal(), all is well", lambda: unread.heal, 4, 5),
    ("recount() of 2,500", lambda: partial(unread.recount, users(2500)), 8, 11),
    ("recount() of everyone, 2,500", lambda: users(2500) and unread.recount, 10, 16),
    ("status of one counter", lambda: partial(status_of, unread), 4, 2),
    # the recipes
    ("update_counters() of 10", lambda: partial(update_counters, {f"hits{n}": 1 for n in range(10)}), 1, 0),
    ("record_events() of 100", lambda: partial(record_events, [{"type": "login"}] * 100), 1, 0),
    ("count_types() of 9", lambda: record_events([{"type": f"{n}"} for n in range(9)]) and count_types, 2, 0),
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
