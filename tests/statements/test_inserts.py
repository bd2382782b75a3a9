"""Rows whose instances do not say what is written, because a field of another package may set any column."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.test.utils import isolate_apps
from django.utils import timezone

from tests.support import execute

from .counters import open_tickets
from .models import BaseTicket, Ticket
from .support import COUNTERS, assert_counted, doubts


class Shout(models.CharField):
    def pre_save(self, model_instance: Any, add: bool) -> Any:
        model_instance.hot = True
        return super().pre_save(model_instance, add).upper()


@pytest.fixture
def shouted() -> Any:
    """A model of the counted table with such a field."""
    with isolate_apps("tests.statements"):

        class Shouted(BaseTicket):
            title = Shout(max_length=20, default="")

            class Meta:
                app_label = "statements"
                db_table = Ticket._meta.db_table
                managed = False

        yield Shouted


def test_rows_that_are_read_back_leave_nobody_in_doubt(shouted, ann, ben, desk, owners):
    assert_counted(owners)
    shouted.objects.create(agent=ann, queue=desk, priority=2)
    rows = [shouted(agent=ann), shouted(agent=ann, queue=desk), shouted(agent=ben, closed=True), shouted(priority=2)]
    if not connection.features.can_return_rows_from_bulk_insert:
        for number, row in enumerate(rows):
            row.pk = 100 + number
    one, *_ = shouted.objects.bulk_create(rows)
    assert_counted(owners)
    one.agent_id, one.closed = ben.pk, True
    one.save()
    one.delete()
    assert_counted(owners)


def test_rows_that_may_have_been_there_before_are_in_doubt(shouted, ann, ben, owners):
    rows = [shouted(pk=1, agent=ann), shouted(pk=2, agent=ben), shouted(pk=3, agent=ann, closed=True)]
    shouted.objects.bulk_create(rows[:1])
    assert_counted(owners)
    shouted.objects.bulk_create(rows, ignore_conflicts=True)
    assert_counted(owners, doubt=True)
    assert {doubts(counter) for counter in COUNTERS} == {0, 2}  # of those who were inserted, and of no one else


def test_owners_that_an_expression_sets_by_keys_are_read_back(ann, ben, owners):
    rows = [Ticket(pk=pk, agent=ann, reviewer=ben) for pk in (1, 2)] + [Ticket(pk=3, agent=ben, reviewer=ann)]
    Ticket.objects.bulk_create(rows)
    assert_counted(owners)
    for row in rows[:2]:
        row.agent = ben
    assert Ticket.objects.bulk_update(rows[:2], ["agent"]) == 2
    assert_counted(owners)
    assert Ticket.objects.filter(pk__in=[rows[2].pk, -1]).update(agent=F("reviewer"), id=F("id") + 1000) == 1
    assert_counted(owners, doubt=True)
    assert Ticket.objects.filter(pk=-1).update(agent=F("reviewer")) == 0


@pytest.mark.parametrize("chosen", [Q(due__lt=Now()), Q(title="")], ids=["by the time", "by a text"])
@pytest.mark.parametrize("number", [1, 2], ids=["few", "many"])
def test_owners_that_an_expression_sets(chosen, number, ann, ben, owners, monkeypatch):
    """If the rows are few, they are named by their keys before, and seen before and after."""
    monkeypatch.setattr("notifications_counter.writes.rows.MAX_NAMED_ROWS", 1)
    due = timezone.now() - timedelta(hours=1)
    Ticket.objects.bulk_create(Ticket(agent=ann, reviewer=ben, due=due) for _ in range(number))
    assert_counted(owners)
    assert Ticket.objects.filter(chosen).update(agent=F("reviewer")) == number
    assert_counted(owners, doubt=number > 1)


def test_a_statement_that_puts_everyone_in_doubt_is_logged(ann, caplog, monkeypatch):
    monkeypatch.setattr("notifications_counter.writes.plans.TELL_SECONDS", -1)
    Ticket.objects.create(agent=ann)
    assert Ticket.objects.filter(agent__name=ann.name).update(agent=F("reviewer")) == 1
    assert "on statements.Ticket does not say whose" in caplog.messages[-1]


def test_owners_that_an_expression_sets_along_with_the_key(ann, ben, owners):
    """Nobody says whose the rows become, so everyone is in doubt."""
    Ticket.objects.bulk_create([Ticket(agent=ann, reviewer=ben), Ticket(agent=ben, reviewer=ann)])
    assert_counted(owners)
    change = {"agent": F("reviewer"), "id": F("id") + 1000}
    assert Ticket.objects.filter(agent=ann).update(**change) == 1
    assert_counted(owners, doubt=True)
    assert Ticket.objects.filter(title="nobody's").update(**change) == 0


@pytest.mark.skipif(connection.vendor != "sqlite", reason="Others store no text in a column of integers.")
def test_a_row_whose_owner_is_no_primary_key(ann, owners):
    first, _ = Ticket.objects.bulk_create([Ticket(agent=ann), Ticket(agent=ann)])
    assert_counted(owners)
    table = Ticket._meta.db_table
    with connection.constraint_checks_disabled():
        execute(f"UPDATE {table} SET agent_id = 'nobody' WHERE id = {first.pk}")
        open_tickets.recount([ann.pk])
        assert Ticket.objects.filter(pk__gt=0).update(closed=True) == 2
        assert open_tickets.count(ann) == 0
        execute(f"DELETE FROM {table} WHERE id = {first.pk}")
