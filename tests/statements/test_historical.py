"""Models of a data migration: classes without our knowledge, and perhaps without some of the columns."""

from contextlib import nullcontext
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import BooleanField, Field

from tests.support import execute

from .counters import open_tickets
from .models import Agent, Queue, Ticket
from .support import assert_counted, doubts, heal


def historical(*without: str, **others: Field) -> Any:
    """What ``apps.get_model("statements", "Ticket")`` gives, before it had these fields, and while it had others."""
    state = ProjectState()
    for model in (Agent, Queue, Ticket):
        known = ModelState.from_model(model)
        known.fields = {name: f for name, f in known.fields.items() if name not in without} | others
        state.add_model(known)
    return state.apps.get_model("statements", "Ticket")


def test_models_that_lack_columns(ann, ben, desk, owners):
    """They do not say whose rows they change, or whether these count: everybody is recounted."""
    Ticket.objects.bulk_create(
        Ticket(agent=agent, queue=desk, closed=closed, title=str(i))
        for i, (agent, closed) in enumerate([(ann, False), (ann, False), (ann, True), (ben, False)])
    )
    heal()
    whole, ownerless, stateless = historical(), historical("agent"), historical("closed")
    renamed = historical("closed", shut=BooleanField(db_column="closed"))
    for block, work in (
        (nullcontext, lambda: ownerless.objects.filter(closed=False, title__lt="1").delete()),
        (transaction.atomic, lambda: ownerless.objects.filter(title="2").update(closed=False)),
        (nullcontext, lambda: ownerless(pk=ownerless.objects.get(title="3").pk, title="3", closed=True).save()),
        (transaction.atomic, lambda: ownerless.objects.create(title="new")),
        (transaction.atomic, lambda: stateless.objects.filter(title="1").delete()),
        (nullcontext, lambda: renamed.objects.filter(title="2").update(shut=True)),
    ):
        with block():
            work()
        assert doubts(open_tickets) > 0
        heal()
        assert_counted(owners)
    ownerless.objects.update(title="x")  # which nobody counts
    whole.objects.filter(agent_id=ann.pk, closed=False, priority=None).update(closed=True)
    assert_counted(owners, open_tickets)


@pytest.mark.skipif(connection.vendor == "mysql", reason="It has no such triggers.")
def test_an_insert_that_a_trigger_turns_into_an_update(ann, owners):
    """The database says that it has inserted nothing."""
    Ticket.objects.create(agent=ann, title="1", closed=True)
    assert_counted(owners)
    ownerless, table = historical("agent"), Ticket._meta.db_table
    what, undo = f"UPDATE {table} SET closed = false WHERE title = NEW.title;", "DROP TRIGGER turn"
    how = f"BEGIN {what} SELECT RAISE(IGNORE); END"
    if connection.vendor == "postgresql":
        execute(f"CREATE FUNCTION turn() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {what} RETURN NULL; END'")
        how, undo = "EXECUTE FUNCTION turn()", "DROP FUNCTION turn CASCADE"
    execute(f"CREATE TRIGGER turn BEFORE INSERT ON {table} FOR EACH ROW {how}")
    try:
        ownerless.objects.bulk_create([ownerless(title="1")], ignore_conflicts=True)
    finally:
        execute(undo)
    assert_counted(owners, doubt=True)
