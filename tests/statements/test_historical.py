"""Models of a data migration: classes without our knowledge, and perhaps without some of the columns."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import models, transaction
from django.db.migrations.state import ModelState, ProjectState
from django.db.models.sql import DeleteQuery, InsertQuery, Query

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


def test_a_clone_with_every_column(tickets, ann, ben, owners):
    model = historical()
    assert model is not Ticket
    for step in (
        lambda: model.objects.create(agent_id=ann.pk, title="new"),
        lambda: model.objects.bulk_create([model(agent_id=ben.pk), model(agent_id=ann.pk, closed=True)]),
        lambda: model.objects.filter(title="0").update(closed=True),
        lambda: model.objects.filter(agent=ann.pk, closed=False, priority=None, due=None).update(agent_id=ben.pk),
        lambda: model.objects.filter(title="3").delete(),
        lambda: model(pk=model.objects.get(title="2").pk, agent_id=ann.pk, title="2").save(),
    ):
        step()
        assert_counted(owners, doubt=True)


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


def test_doubt_that_is_rolled_back(tickets, owners):
    with transaction.atomic():
        historical("agent").objects.filter(title="0").delete()
        transaction.set_rollback(True)
    assert_counted(owners)


def test_a_clone_that_changes_what_nobody_counts(tickets, owners):
    historical("agent").objects.update(title="x")
    assert_counted(owners)


def test_a_clone_that_lacks_the_owner_and_queries_of_other_classes(tickets, owners):
    model = historical("agent")

    class OtherInsertQuery(InsertQuery):
        """As of another package."""

    class OtherDeleteQuery(DeleteQuery):
        """Likewise."""

    class Purge(Query):
        """Of none of Django's kinds."""

        compiler = "SQLDeleteCompiler"

    insert, delete, purge = OtherInsertQuery(model), OtherDeleteQuery(model), Purge(model)
    insert.insert_values(model._meta.local_concrete_fields[1:], [model(title="new")])
    delete.add_filter("title", "0")
    purge.add_filter("title", "1")
    for query in (insert, delete, purge):
        query.get_compiler("default").execute_sql(None)
        assert doubts(open_tickets) > 0
        heal()
        assert_counted(owners)
