"""Round trips and statements of each public operation: its budget, and no more."""

import operator

import django
import pytest
from django.db import connection

from benchmarks.operations import OPERATIONS, Operation, cost
from notifications_counter.controller import NotificationController
from notifications_counter.counters import Counter
from notifications_counter.events import EventLog
from notifications_counter.querysets import CountedQuerySet, NotificationQuerySet
from notifications_counter.timeseries import TimeSeries

ASK_NOBODY = {
    # properties and helpers of a counter
    *(
        "source",
        "totals",
        "owner_attname",
        "condition",
        "key_field",
        "reads",
        "db",
        "key",
        "encode",
        "decode",
        "db_keys",
    ),
    *("buffers", "buffer_of", "by_shard"),
    # parts of a query, and of an instance
    *("unread", "read", "for_user", "is_read", "safe_url", "notifications"),
    # settings, the names of keys, and the half of update_counters() that sends
    *("precisions", "samples", "base", "send"),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_an_operation_costs_its_budget(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less is no less a failure: a budget with room to spare guards nothing. Lower it."""
    if connection.vendor == "sqlite":  # versions of Python and Django differ in this
        monkeypatch.setattr(type(connection.features), "max_query_params", 999)
    trips, statements = cost(operation)
    found, budget = (trips, len(statements)), operation.budget()
    # From Django 6.1 on, a bulk_create() of one batch needs no BEGIN and COMMIT.
    is_within = operator.eq if django.VERSION < (6, 1) else operator.le
    assert all(map(is_within, found, budget)), "\n".join([f"{found} instead of {budget}", *statements])


@pytest.mark.once
@pytest.mark.parametrize(
    "kind", [Counter, CountedQuerySet, NotificationQuerySet, NotificationController, EventLog, TimeSeries]
)
def test_every_public_operation_has_a_budget(kind: type) -> None:
    names = " ".join(operation.name for operation in OPERATIONS)
    public = {name for name in vars(kind) if not name.startswith("_")} - ASK_NOBODY
    public -= {f"a{name}" for name in public}  # the same, in a thread
    assert not [name for name in public if f"`{name}(" not in names and f".{name}" not in names]
