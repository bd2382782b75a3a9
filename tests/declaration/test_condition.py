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
LEFT_TO_THE_DATABASE = [
    Q(title="a"),
    Q(title__gt="a"),
    Q(title__in=["a", "A"]),
    Q(title=F("title")),
    Q(done=False) ^ Q(campaign=None),
    Q(project_id=uuid.UUID(int=1)),
]


PARTLY_DECIDED = [
    Q(done=False, title="a"),
    Q(done=True) | ~Q(title="a"),
]


@pytest.fixture
def rows() -> list[Task]:
    project, campaign = Project.objects.create(id=uuid.UUID(int=1)), Campaign.objects.create()
    for done in (False, True):
        for in_campaign in (None, campaign):
            for title in ("a", "A", ""):
                Task.objects.create(project=project, done=done, campaign=in_campaign, title=title)
    return list(Task.objects.all())


@pytest.mark.parametrize("q", DECIDED + PARTLY_DECIDED + LEFT_TO_THE_DATABASE, ids=str)
def test_python_and_database_agree(rows, q):
    condition = Condition(Task, q)
    matching = set(Task.objects.filter(q).values_list("pk", flat=True))
    said = {row.pk: condition.holds(vars(row), connection) for row in rows}
    if q in DECIDED:
        assert said == {row.pk: row.pk in matching for row in rows}
    elif q in PARTLY_DECIDED:
        assert said == {row.pk: row.pk in matching if row.done else None for row in rows}
    else:
        assert set(said.values()) == {None}
    flagged = Task.objects.values_list("pk", condition.flag)
    assert {pk for pk, flag in flagged if flag} == matching
    assert {flag for _, flag in flagged} <= {0, 1}


@pytest.mark.parametrize(
    ("done", "holds"),
    [(True, True), (False, False), (1, True), (0, False), ("1", True), ("False", False), (Value(True), None)],
    ids=str,
)
def test_booleans_in_every_form(done, holds):
    """As Django would write them."""
    assert Condition(Task, Q(done=True)).holds({"done": done}, connection) is holds


@pytest.mark.parametrize(
    ("read_at", "holds"),
    [
        (None, True),
        (datetime(2024, 1, 1), False),
        (timezone.now() + timedelta(days=9), False),
        (Now(), None),
        (F("created_at"), None),
        (Value(None), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_null_or_not(read_at, holds, recwarn):
    assert Condition(Notification, Q(read_at=None)).holds({"read_at": read_at}, connection) is holds
    recwarn.clear()  # naive datetimes are the site's own affair


def test_a_deferred_field_is_left_to_the_database(rows):
    row = Task.objects.defer("done").get(pk=rows[0].pk)
    assert Condition(Task, Q(done=True)).holds(vars(row), connection) is None
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


def test_the_fields_of_an_expression():
    with register_lookup(CharField, Length):
        condition = Condition(Task, Q(title__length=3))
        assert {field.name for field in condition.fields} == {"title"}
        assert condition.holds({"title": "abc"}, connection) is None


def test_a_child_has_the_columns_of_its_parent():
    child: Any = RecurringTask(done=False)
    assert Condition(Task, Q(done=False)).holds(vars(child), connection) is True
