"""Random statements do the same to the rows of a counted table as to those of its twin, which nobody counts."""

import random
from typing import Any

import pytest
from django.db import connection
from django.db.models import Case, Count, Exists, F, OuterRef, Q, Subquery, When
from django.db.models.functions import Coalesce, Mod

from tests.statements.models import Agent, Ticket, UncountedTicket
from tests.statements.support import assert_stored, heal, named

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ["ann", "ben", "cid"]


@pytest.fixture
def agents(_own_keys: None, transactional_db: None) -> list[Agent]:
    heal()
    return [Agent.objects.create(name=name) for name in NAMES]


def fill(agents: list[Agent], rng: random.Random, number: int) -> None:
    rows = [
        {
            "pk": pk,
            "agent": rng.choice([*agents, None]),
            "reviewer": rng.choice(agents),
            "parent_id": rng.randint(1, number),
            "closed": rng.random() < 0.3,
            "priority": rng.choice([None, 1, 2, 3]),
            "title": rng.choice("xyz"),
        }
        for pk in range(1, number + 1)
    ]
    for model in (Ticket, UncountedTicket):
        model.objects.all()._raw_delete("default")
        model.objects.bulk_create(model(**row) for row in rows)


def contents(model: Any) -> list[tuple[Any, ...]]:
    columns = ("pk", "agent", "reviewer", "parent", "closed", "priority", "title", "hot")
    return list(model.objects.order_by("pk").values_list(*columns))


def fewest(model: Any) -> Subquery:
    """The agent with the fewest open tickets, at this moment."""
    ticket = model.__name__.lower()
    open_tickets = Count(f"{ticket}s", filter=Q(**{f"{ticket}s__closed": False}))
    return Subquery(Agent.objects.annotate(n=open_tickets).order_by("n", "pk").values("pk")[:1])


def selections(model: Any, agents: list[Agent], rng: random.Random) -> list[Any]:
    rows, name, priority = model.objects.all(), rng.choice(NAMES), rng.choice([1, 2, 3])
    children = model.objects.filter(parent=OuterRef("pk"), closed=rng.choice([True, False]))
    found = [
        rows,
        rows.filter(agent=rng.choice(agents)),
        rows.filter(agent__name=name),
        rows.filter(Q(agent__name=name) | Q(reviewer__name=name), priority=priority),
        rows.exclude(agent__name=name),
        rows.filter(title="x", closed=False),
        rows.filter(parent__closed=True),
        rows.filter(children__priority=priority).distinct(),
        rows.filter(Exists(children)),
        rows.filter(agent__in=Agent.objects.filter(name__gt="b")),
        rows.annotate(n=Count("children")).filter(n__gt=1),
        rows.filter(pk__in=model.objects.filter(parent__closed=False).values("parent")),
        rows.filter(priority=None),
    ]
    if connection.vendor != "mysql":  # which has no LIMIT in a subquery
        found.append(rows.filter(pk__in=model.objects.order_by("priority", "pk").values("pk")[: rng.randint(0, 20)]))
    return found


def changes(model: Any, agents: list[Agent], rng: random.Random) -> list[dict[str, Any]]:
    parent = model.objects.filter(pk=OuterRef("parent_id"))
    found: list[dict[str, Any]] = [
        {"closed": True},
        {"closed": ~F("closed")},
        {"agent": rng.choice(agents)},
        {"agent": F("reviewer"), "reviewer": F("agent")},
        {"agent": Case(When(priority=2, then=F("reviewer")), default=F("agent")), "closed": False},
        {"priority": Mod(Coalesce(F("priority"), 0) + 1, 4)},
        {"hot": Q(priority__isnull=True), "title": "y"},
    ]
    if connection.vendor != "mysql":  # its rows are changed one after the other, in an order that it chooses
        found += [{"agent": fewest(model)}, {"closed": Subquery(parent.values("closed")[:1]), "agent": None}]
    return found


def run(model: Any, agents: list[Agent], rng: random.Random) -> int:
    rows = rng.choice(selections(model, agents, rng))
    if rng.random() < 0.15:
        return rows.model.objects.filter(pk__in=rows.values("pk"))._raw_delete("default")
    values = rng.choice(changes(model, agents, rng))
    if "closed" in values and isinstance(values["closed"], Subquery):
        rows = rows.filter(parent__isnull=False, parent__pk__in=model.objects.values("pk"))
    return rows.update(**values)


def compare(agents: list[Agent], seed: int) -> None:
    results = [(run(model, agents, random.Random(seed)), contents(model)) for model in (Ticket, UncountedTicket)]
    assert results[0] == results[1]


def test_a_statement_does_the_same_to_many_rows_as_without_counters(agents):
    """In portions, a later one would find another agent with the fewest open tickets than an earlier one."""
    ann, ben, cid = agents
    for model in (Ticket, UncountedTicket):
        model.objects.bulk_create(model(pk=pk, agent=ann if pk <= 2000 else cid, parent_id=1) for pk in range(1, 2501))
    for model in (Ticket, UncountedTicket):
        assert model.objects.filter(agent__name="ann").update(agent=fewest(model)) == 2000
    assert contents(Ticket) == contents(UncountedTicket)
    assert_stored([agent.pk for agent in agents])


def test_random_statements_do_the_same_as_without_counters(agents):
    for seed in range(8):
        rng = random.Random(seed)
        fill(agents, rng, 40)
        with named(f"seed {seed}"):
            for _ in range(12):
                step = rng.randrange(2**32)
                with named(f"step {step}"):
                    compare(agents, step)
            assert_stored([agent.pk for agent in agents])
