"""Models of a data migration: classes without our knowledge, and perhaps without some of the columns."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import models, transaction
from django.db.migrations.state import ModelState, ProjectState

from .counters import open_tickets
from .models import Agent, Queue, Ticket
from .support import assert_counted, doubts, heal


def historical(*without: str) -> Any:
    """What ``apps.get_model("statements", "Ticket")`` gives, at a time before it had these fields."""
    state = ProjectState()
    for model in (Agent, Queue, Ticket):
        known = ModelState.from_model(model)
        known.managers = [("objects", models.Manager())]
        known.fields = {name: f for name, f in known.fields.items() if name not in ("watchers", *without)}
        state.add_model(known)
    return state.apps.get_model("statements", "Ticket")


@pytest.fixture
def tickets(ann: Agent, ben: Agent, desk: Queue, owners: list[Any]) -> None:
    Ticket.objects.bulk_create(
        Ticket(agent=agent, queue=desk, closed=closed, title=str(i))
        for i, (agent, closed) in enumerate([(ann, False), (ann, False), (ann, True), (ben, False)])
    )
    heal()
    assert_counted(owners)


WITHOUT_OWNER: dict[str, Callable[[Any], Any]] = {
    "delete": lambda model: model.objects.filter(title="0").delete(),
    "delete by counted columns": lambda model: model.objects.filter(closed=False, title__lt="2").delete(),
    "update": lambda model: model.objects.filter(title="2").update(closed=False),
    "save": lambda model: model(pk=model.objects.get(title="3").pk, title="3", closed=True).save(),
    "create": lambda model: model.objects.create(title="new"),
}


@pytest.mark.parametrize("atomic", [False, True], ids=["autocommit", "atomic"])
def test_a_clone_that_lacks_the_owner(tickets, owners, atomic):
    """It does not say whose rows they were: everybody is recounted."""
    model = historical("agent")
    for work in WITHOUT_OWNER.values():
        if atomic:
            with transaction.atomic():
                work(model)
        else:
            work(model)
        assert doubts(open_tickets) > 0
        heal()
        assert_counted(owners)


def test_a_clone_that_lacks_a_column_of_the_condition(tickets, owners):
    model = historical("closed")
    model.objects.filter(title="0").delete()
    assert doubts(open_tickets) > 0
    heal()
    assert_counted(owners)


def test_a_clone_that_changes_what_nobody_counts(tickets, owners):
    historical("agent").objects.update(title="x")
    assert_counted(owners)
