"""A condition decided in Python must never say otherwise than the database."""

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import CharField, F, Model, Q, Value
from django.db.models.functions import Length, Now
from django.test.utils import register_lookup
from django.utils import timezone

from notifications_counter.declaration.condition import Condition
from notifications_counter.models import Notification
from tests.statements.models import Ticket
from tests.tasks.models import Campaign, Project, RecurringTask, Task, Transfer

pytestmark = [pytest.mark.django_db]

DECIDED = [
    Q(done=True),
    Q(done=False),
    ~Q(done=False),
    Q(campaign=None),
    Q(campaign__isnull=False),
    Q(done=False, campaign=None),
    Q(done=False) | Q(campaign=None),
    ~Q(done=False, campaign=None),
    ~(Q(done=False) | Q(campaign=None)),
    Q(done=False) & ~Q(campaign=None),
    ~Q(campaign=None) | ~Q(done=True),
    Q(pk__isnull=True),
    Q(),
]
# On MariaDB and MySQL, different texts may be equal.
DECIDED_BY_TEXTS = [
    Q(title="a"),
    ~Q(title="a"),
    Q(done=False, title="a"),
    Q(done=True) | ~Q(title=""),
]
LEFT_TO_THE_DATABASE = [
    Q(title__gt="a"),
    Q(title__in=["a", "A"]),
    Q(title=F("title")),
    Q(done=False) ^ Q(campaign=None),
    Q(project_id=uuid.UUID(int=1)),
]


PARTLY_DECIDED = [
    Q(done=False, title__gt="a"),
    Q(done=True) | ~Q(title__gt="a"),
]


@pytest.fixture
def rows() -> list[Task]:
    project, campaign = Project.objects.create(id=uuid.UUID(int=1)), Campaign.objects.create()
    for done in (False, True):
        for in_campaign in (None, campaign):
            for title in ("a", "A", ""):
                Task.objects.create(project=project, done=done, campaign=in_campaign, title=title)
    return list(Task.objects.all())


@pytest.mark.parametrize("q", DECIDED + DECIDED_BY_TEXTS + PARTLY_DECIDED + LEFT_TO_THE_DATABASE, ids=str)
def test_python_and_database_agree(rows, q):
    condition = Condition(Task, q)
    matching = set(Task.objects.filter(q).values_list("pk", flat=True))
    said = {row.pk: condition.value_of(vars(row), connection) for row in rows}
    if q in DECIDED:
        assert said == {row.pk: row.pk in matching for row in rows}
    elif q in DECIDED_BY_TEXTS:
        assert all(value in (None, pk in matching) for pk, value in said.items())
        assert connection.vendor == "mysql" or None not in said.values()
    elif q in PARTLY_DECIDED:
        assert said == {row.pk: row.pk in matching if row.done else None for row in rows}
    else:
        assert set(said.values()) == {None}
    flagged = Task.objects.values_list("pk", condition.value)
    assert {pk for pk, flag in flagged if flag} == matching
    assert {flag for _, flag in flagged} <= {0, 1}


@pytest.mark.parametrize(
    ("done", "value"),
    [(True, 1), (False, 0), (1, 1), (0, 0), ("1", 1), ("False", 0), (Value(True), None)],
    ids=str,
)
def test_booleans_in_every_form(done, value):
    """As Django would write them."""
    assert Condition(Task, Q(done=True)).value_of({"done": done}, connection) == value


@pytest.mark.parametrize(
    ("read_at", "value"),
    [
        (None, 1),
        (datetime(2024, 1, 1), 0),
        (timezone.now() + timedelta(days=9), 0),
        (Now(), None),
        (F("created_at"), None),
        (Value(None), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_null_or_not(read_at, value, recwarn):
    assert Condition(Notification, Q(read_at=None)).value_of({"read_at": read_at}, connection) == value
    recwarn.clear()  # naive datetimes are the site's own affair


@pytest.mark.parametrize(
    ("title", "value"), [("a", 1), ("b", None if connection.vendor == "mysql" else 0), ("a" * 101, None), (7, None)]
)
def test_texts_that_may_be_stored_as_others(title, value):
    assert Condition(Task, Q(title="a")).value_of({"title": title}, connection) == value
    cut = Condition(Task, Q(title="a" * 101))
    assert cut.value_of({"title": "a" * 101}, connection) is None


def test_a_deferred_field_is_left_to_the_database(rows):
    row = Task.objects.defer("done").get(pk=rows[0].pk)
    assert Condition(Task, Q(done=True)).value_of(vars(row), connection) is None
    assert row.get_deferred_fields() == {"done"}


@pytest.mark.parametrize(
    ("model", "q", "fields"),
    [
        (Notification, Q(read_at=None), {"read_at"}),
        (Task, Q(done=False) | ~Q(campaign=None), {"done", "campaign"}),
        (Task, Q(title=F("id")), {"title", "id"}),
        (Transfer, Q(), set()),
    ],
)
def test_the_fields_it_reads(model: type[Model], q: Q, fields: set[str]):
    assert {field.name for field in Condition(model, q).fields} == fields


@pytest.mark.parametrize("column", ["id", "priority"])
def test_a_sum_is_an_integer(column):
    Ticket.objects.create(priority=3)
    total = Ticket.objects.aggregate(total=Condition(Ticket, Q(), column).total)["total"]
    assert type(total) is int


def test_the_fields_of_an_expression():
    with register_lookup(CharField, Length):
        condition = Condition(Task, Q(title__length=3))
        assert {field.name for field in condition.fields} == {"title"}
        assert condition.value_of({"title": "abc"}, connection) is None


def test_a_child_has_the_columns_of_its_parent():
    child: Any = RecurringTask(done=False)
    assert Condition(Task, Q(done=False)).value_of(vars(child), connection) == 1


@pytest.mark.parametrize(
    ("priority", "value"),
    [
        (None, 0),
        (-3, -3),
        ("7", 7),
        (2.9, 2),
        (True, 1),
        (F("priority") + 1, None),
        ("seven", None),
        (2**31, None if connection.vendor == "mysql" else 2**31),  # which may cut it
    ],
    ids=str,
)
def test_what_a_row_adds_to_a_sum(priority, value):
    """As Django would write it."""
    condition = Condition(Ticket, Q(closed=False), "priority")
    assert condition.value_of({"closed": False, "priority": priority}, connection) == value
    assert condition.value_of({"closed": True, "priority": priority}, connection) == 0
    assert condition.value_of({"closed": False}, connection) is None
    assert {field.name for field in condition.fields} == {"closed", "priority"}
