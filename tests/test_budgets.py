"""Round trips and statements of each public operation: its budget, and no more."""

import operator
import re
from functools import cached_property
from types import FunctionType

import django
import pytest
from django.db import connection
from django.db.models import deletion

from notifications_counter.counters import Counter
from notifications_counter.events import EventLog
from notifications_counter.inbox.controller import NotificationController
from notifications_counter.models import Notification, NotificationQuerySet
from notifications_counter.timeseries import TimeSeries
from tests.budgets import OPERATIONS, Operation, cost

ASK_NOBODY = {
    # properties and helpers of a counter
    *(
        "source",
        "totals",
        "condition",
        "reads",
        "columns",
        "has_columns",
        "fingerprint",
        "db",
        "key",
        "encode",
        "decode",
    ),
    *("buffers", "buffers_in", "buffer_of", "make_buffer", "by_shard"),
    *("breakdown", "abreakdown"),  # needs an owner of several columns: tests/composite_owners/test_breakdown.py
    # parts of a query, and of an instance
    *("unread", "read", "unseen", "for_user", "is_read", "safe_url", "notifications"),
    # settings, the names of keys, and the half of update_counters() that sends
    *("precisions", "samples", "base", "send"),
}


@pytest.fixture(autouse=True)
def _a_common_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing points to a notification, and no model is a child of it."""
    monkeypatch.setattr(deletion, "get_candidate_relations_to_delete", lambda options: ())
    if connection.vendor == "sqlite":  # versions of Python and Django differ in this
        monkeypatch.setattr(type(connection.features), "max_query_params", 999)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_costs_its_budget(operation: Operation) -> None:
    """Less is no less a failure: a budget with room to spare guards nothing. Lower it."""
    spent = cost(operation)
    trips, statements = operation.budget()
    found, budget = (spent.trips, len(spent.statements)), (trips, statements)
    # From Django 6.1 on, a bulk_create() of one batch needs no BEGIN and COMMIT.
    is_within = operator.eq if django.VERSION < (6, 1) else operator.le
    assert all(map(is_within, found, budget)), "\n".join([f"{found} instead of {budget}", *spent.statements])


def named(name: str) -> Operation:
    return next(operation for operation in OPERATIONS if operation.name == name)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="No other takes a list as one parameter.")
def test_a_flush_binds_a_chunk_as_a_whole() -> None:
    assert cost(named("`flush()` of 1,000 users")).parameters < 20


@pytest.mark.once
@pytest.mark.parametrize(
    "kind", [Counter, NotificationQuerySet, Notification, NotificationController, EventLog, TimeSeries]
)
def test_every_public_operation_has_a_budget(kind: type) -> None:
    covered = {name for operation in OPERATIONS for name in re.findall(r"[`.](\w+)[(`]", operation.name)}
    ours = (FunctionType, property, cached_property)
    public = {name for name, what in vars(kind).items() if isinstance(what, ours) and not name.startswith("_")}
    public -= ASK_NOBODY
    public -= {f"a{name}" for name in public}  # the same, in a thread
    assert public <= covered
