"""A condition decided in Python must never say otherwise than the database."""

import uuid
from datetime import datetime
from typing import Any

import pytest
from django.db import connection
from django.db.models import CharField, F, Model, Q, TextChoices, Value
from django.db.models.functions import Length, Now
from django.test.utils import register_lookup

from notifications_counter.declaration.condition import NOT_NULL, Condition
from notifications_counter.models import Notification
from tests.statements.models import Ticket
from tests.tasks.models import Campaign, Project, Task, Transfer

pytestmark = pytest.mark.django_db

IS_MYSQL = connection.vendor == "mysql"  # where different texts may be equal, and what is too large may be cut

DECIDED = [
    Q(done=True),
    Q(done=False, campaign=None),
    Q(done=False) & Q(Q(campaign__isnull=False)),
    Q(pk__isnull=True),
    ~Q(campaign=None),
    Q(project_id=uuid.UUID(int=1)),
    Q(project__in=[uuid.UUID(int=1), uuid.UUID(int=2)]),
    ~Q(project=uuid.UUID(int=2)),
    ~Q(done=False),
    ~Q(done__in=[True, False]),
    Q(campaign=None, done__in=[False]),
    Q(),
]
DECIDED_BY_TEXTS = [Q(title="a"), Q(done=False, title=""), Q(title__in=["a", "b"]), ~Q(title="a")]
DECIDED_BY_TEXTS += [~Q(title__in=["a", ""]), ~Q(title="a") & Q(done=False)]
LEFT_TO_THE_DATABASE = [  # unless a part of it says that a row does not count
    ~Q(done=False, campaign=None),
    ~Q(campaign=1),
    Q(title__in=["a", "A"]) & ~Q(title="a"),
    Q(done=False) | Q(campaign__isnull=False),
    Q(done=False, title__gt="a"),
    Q(title=F("title")),
    Q(campaign=None) & Q(campaign__isnull=False),
    Q(title="a") & Q(title="A"),
]


@pytest.fixture
def rows() -> list[Task]:
    project, campaign = Project.objects.create(id=uuid.UUID(int=1)), Campaign.objects.create()
    for done in (False, True):
        for in_campaign in (None, campaign):
            for title in ("a", "A", ""):
                Task.objects.create(project=project, done=done, campaign=in_campaign, title=title)
    return list(Task.objects.all())


@pytest.mark.parametrize("q", DECIDED + DECIDED_BY_TEXTS + LEFT_TO_THE_DATABASE, ids=str)
def test_python_and_database_agree(rows, q):
    condition = Condition(Task, q)
    matching = set(Task.objects.filter(q).values_list("pk", flat=True))
    said = {row.pk: condition.value_of(vars(row), connection) for row in rows}
    if q in DECIDED:
        assert said == {row.pk: row.pk in matching for row in rows}
    elif q in DECIDED_BY_TEXTS:
        assert all(value in (None, pk in matching) for pk, value in said.items())
        assert IS_MYSQL or None not in said.values()
    else:
        assert None in said.values()
        assert not [pk for pk in matching if said[pk] is not None]
    flagged = Task.objects.values_list("pk", condition.value)
    assert {pk for pk, flag in flagged if flag} == matching
    assert {flag for _, flag in flagged} <= {0, 1}


class Letter(TextChoices):
    A = "a"
    B = "b"


UNSURE = None if IS_MYSQL else 0
"""What a value adds that is not equal to the wanted one, or NULL for a column that cannot be. MySQL may take such texts
for equal, and store such a NULL as another value."""

VALUES: list[tuple[type[Model], Q, str, dict[Any, int | None]]] = [
    (Task, Q(done=True), "done", {1: 1, 0: 0, None: UNSURE, "1": None, Value(True): None, NOT_NULL: None}),
    (Notification, Q(read_at=None), "read_at", {None: 1, NOT_NULL: 0, datetime(2024, 1, 1): 0, "2024-01-01": 0}),
    (Notification, Q(read_at=None), "read_at", {Now(): None, F("created_at"): None}),
    (Task, Q(title__isnull=False), "title", {"a": 1, "": None, None: UNSURE}),
    (Task, Q(campaign=None), "campaign_id", {None: 1, 7: 0, 7.5: None}),
    (Task, Q(title="a"), "title", {"a": 1, "b": UNSURE, None: UNSURE, "a" * 101: None, 7: None}),
    (Task, Q(title="a" * 101), "title", {"a" * 101: None}),
    (Ticket, Q(priority=5), "priority", {None: 0, 5: 1, 6: 0, "5": None}),
    (Ticket, Q(priority__in=[5, 6]), "priority", {None: 0, 5: 1, 6: 1, 7: 0, "5": None, NOT_NULL: None}),
    (Ticket, Q(priority__in=[]), "priority", {5: 0}),
    (Ticket, ~Q(priority=5), "priority", {None: None, 5: None, 6: None}),
    (Task, ~Q(done=True), "done", {1: 0, 0: 1, None: None, "1": None, NOT_NULL: None}),
    (Task, Q(title__in=["a", Letter.B]), "title", {"a": 1, "b": 1, "c": UNSURE, 7: None}),
    (Task, Q(title=Letter.A), "title", {Letter.A: 1, Letter.B: UNSURE}),
]


@pytest.mark.parametrize(("model", "q", "name", "values"), VALUES)
def test_values_in_every_form(model, q, name, values):
    """As Django would write them, or as the database may store them."""
    condition = Condition(model, q)
    assert {value: condition.value_of({name: value}, connection) for value in values} == values


@pytest.mark.parametrize(
    ("priority", "value"), [(None, 0), (-3, -3), (True, 1), ("7", None), (F("priority") + 1, None)], ids=str
)
def test_what_a_row_adds_to_a_sum(priority, value):
    condition = Condition(Ticket, Q(closed=False), "priority")
    added = condition.value_of({"closed": False, "priority": priority}, connection)
    assert added == (None if IS_MYSQL else value)  # which may clip a number
    assert condition.value_of({"closed": True, "priority": priority}, connection) == 0
    assert condition.value_of({"closed": False}, connection) is None
    assert {field.name for field in condition.fields} == {"closed", "priority"}


@pytest.mark.parametrize("column", ["id", "priority"])
def test_a_sum_is_an_integer(column):
    Ticket.objects.create(priority=3)
    total = Ticket.objects.aggregate(total=Condition(Ticket, Q(), column).aggregate)["total"]
    assert type(total) is int


def test_the_fields_it_reads():
    def fields(model: type[Model], q: Q) -> set[str]:
        return {field.name for field in Condition(model, q).fields}

    assert fields(Task, Q(done=False) | ~Q(campaign=None)) == {"done", "campaign"}
    assert fields(Task, Q(title=F("id"))) == {"title", "id"}
    assert fields(Transfer, Q()) == set()
    with register_lookup(CharField, Length):
        assert fields(Task, Q(title__length=3)) == {"title"}
        assert Condition(Task, Q(title__length=3)).value_of({"title": "abc"}, connection) is None
