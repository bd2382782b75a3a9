"""Any statements of the ORM, in any order, in any transactions, while others flush and recount, and Redis loses data:
after each, each count is COUNT(*) or SUM(), for others too."""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Case, Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Now
from django.utils import timezone

from notifications_counter.conf import options
from notifications_counter.counters import Counter
from notifications_counter.testing import delete_keys
from tests.support import OtherConnection, entries, savepoint_create
from tests.tasks.counters import free_lots
from tests.tasks.models import Lot, Project

from .counters import COUNTERS
from .models import Agent, Bug, Incident, Queue, Ticket, Watch
from .support import assert_counted, assert_stored, counts, heal, named


class Undone(Exception):
    pass


class World:
    """A few rows of each kind, and a source of random numbers that decides what is done to them."""

    def __init__(self, rng: random.Random, other: OtherConnection):
        self.rng, self.other = rng, other
        self.agents = [Agent.objects.create(name=name).pk for name in ("ann", "ben", "cem")]
        self.queues = [Queue.objects.create().pk for _ in range(2)]
        self.projects = [Project.objects.create().pk for _ in range(2)]
        self.owners = {*self.agents, *self.queues, *self.projects}
        self.stale: list[Ticket] = []  # as they were when they were loaded
        self.open: list[tuple[Any, tuple[list[Any], ...]]] = []  # atomic block or savepoint, owners before it
        self.committed: dict[Counter, dict[Any, int]] = {}  # what others see

    # ------------------------------------------------------------------------------------------------- transactions
    def begin(self, how: str) -> None:
        if how == "begin":
            block: Any = transaction.atomic()
            block.__enter__()
        else:
            block = savepoint_create()
        self.open.append((block, (list(self.agents), list(self.queues), list(self.projects))))

    def end(self, commit: bool) -> None:
        """Innermost first."""
        block, before = self.open.pop()
        if not commit:
            self.agents, self.queues, self.projects = before
        if isinstance(block, transaction.Atomic):
            block.__exit__(*((None, None, None) if commit else (Undone, Undone(), None)))
        elif commit:
            transaction.savepoint_commit(block)
        else:
            transaction.savepoint_rollback(block)

    # ------------------------------------------------------------------------------------------------------- parts
    def agent(self) -> Any:
        return self.rng.choice([*self.agents, None])

    def queue(self) -> Any:
        return self.rng.choice([*self.queues, None])

    def values(self, some: bool = False) -> dict[str, Any]:
        """Values of a new row, or of some of its columns."""
        choose = self.rng.choice
        values = {
            "agent_id": self.agent(),
            "queue_id": self.queue(),
            "reviewer_id": self.agent(),
            "closed": choose([False, False, True]),
            "hot": choose([False, True]),
            "priority": choose([None, 1, 2, 2, -3, 10**6]),
            "due": choose([None, timezone.now()]),
            "state": choose(["new", "old"]),
            "title": choose("xyz"),
        }
        chosen = self.rng.sample(list(values), self.rng.randint(1, 3)) if some else values
        return {name: values[name] for name in chosen}

    def key(self) -> Any:
        """Of a row that exists, as a rule."""
        return self.rng.choice([*Ticket.objects.order_by("pk").values_list("pk", flat=True), 10_000])

    def rows(self, number: int, tickets: QuerySet | None = None) -> list[Any]:
        """Some, from everywhere."""
        found = list((Ticket.objects.all() if tickets is None else tickets).order_by("pk"))
        return self.rng.sample(found, min(number, len(found)))

    def expressions(self) -> dict[str, Any]:
        """What only the database can say."""
        anybody = Agent.objects.order_by(self.rng.choice(["pk", "-pk"])).values("pk")[:1]
        choices: list[dict[str, Any]] = [
            {"closed": ~F("closed")},
            {"closed": F("hot")},
            {"closed": Case(When(priority=1, then=Value(True)), default=F("closed"))},
            {"closed": Value(self.rng.choice([True, False]))},
            {"priority": F("priority") + 1},
            {"priority": -F("priority"), "closed": F("hot")},
            {"due": Now()},
            {"due": Value(None)},
            {"agent": F("reviewer")},
            {"agent": Subquery(anybody)},
            {"agent": None},
            {"state": Case(When(closed=True, then=Value("old")), default=Value("new"))},
        ]
        return self.rng.choice(choices)

    def condition(self) -> Q:
        choose, child = self.rng.choice, Ticket.objects.filter(parent=OuterRef("pk"), closed=False)
        choices: list[Callable[[], Q]] = [
            lambda: Q(agent=self.agent()) if self.rng.random() < 0.8 else Q(agent__isnull=choose([True, False])),
            lambda: Q(queue=self.queue()),
            lambda: Q(closed=choose([True, False])),
            lambda: Q(priority=choose([1, 2])),
            lambda: Q(due__isnull=choose([True, False])),
            lambda: Q(state="new"),
            lambda: Q(pk=self.key()),
            lambda: Q(pk__in=[self.key(), self.key()]),
            lambda: Q(closed=F("hot")),
            lambda: Q(agent__name=choose(["ann", "ben"])),
            lambda: Q(watches__muted=False),
            lambda: Q(pk__in=Incident.objects.filter(severity=1)),
            lambda: Q(Exists(child)),
            lambda: Q(pk__in=list(Ticket.objects.order_by("-pk")[:2].values_list("pk", flat=True))),
        ]
        q = choose(choices)()
        for _ in range(self.rng.choice([0, 1, 1, 2])):
            other = choose(choices)()
            q = choose([q & other, q & other, q | other, q & ~other, ~(q & other), q ^ other])
        return q

    def select(self) -> QuerySet:
        manager = self.rng.choice([Ticket.objects, Ticket.objects, Ticket.unclosed, Bug.objects, Incident.objects])
        found = manager.filter(self.condition())
        extra: list[Callable[[QuerySet], QuerySet]] = [
            lambda q: q,
            lambda q: q,
            lambda q: q.distinct(),
            lambda q: q.annotate(n=Count("watches")).filter(n__lt=2),
            lambda q: q | q.model.objects.filter(pk=self.key()),
            lambda q: q.filter(self.condition()),
        ]
        return self.rng.choice(extra)(found)


# ------------------------------------------------------------------------------------------------------------- creation
def create(world: World) -> None:
    model, values = world.rng.choice([Ticket, Bug, Incident]), world.values()
    world.stale.append(model.objects.create(**values, parent=next(iter(world.rows(1)), None)))


def create_by_expressions(world: World) -> None:
    anybody = Subquery(Agent.objects.order_by("name").values("pk")[:1])
    Ticket.objects.create(**{**world.values(), "due": Now(), "agent_id": world.rng.choice([anybody, world.agent()])})


def save_new_with_key(world: World) -> None:
    Ticket(pk=world.rng.randrange(20_000, 10**9), **world.values()).save(force_insert=world.rng.choice([True, False]))


def bulk_create(world: World) -> None:
    model = world.rng.choice([Ticket, Bug])
    model.objects.bulk_create([model(**world.values()) for _ in range(world.rng.randint(0, 4))], batch_size=2)


def ignore_conflicts(world: World) -> None:
    new = [Ticket(pk=world.key() + n, **world.values()) for n in (0, 0, world.rng.randrange(20_000, 10**9))]
    Ticket.objects.bulk_create(new, ignore_conflicts=True)


def update_conflicts(world: World) -> None:
    unique = {"unique_fields": ["pk"]} if connection.features.supports_update_conflicts_with_target else {}
    new = [Ticket(pk=key, **world.values()) for key in {world.key(), world.key()}]
    fields = world.rng.sample(["closed", "priority", "due", "title", "state", "agent"], 2)
    Ticket.objects.bulk_create(new, update_conflicts=True, update_fields=fields, **unique)


def update_or_create(world: World) -> None:
    Ticket.objects.update_or_create(pk=world.key(), defaults=world.values(some=True), create_defaults=world.values())


def related(world: World) -> None:
    agent, some = Agent.objects.get(pk=world.rng.choice(world.agents)), world.rows(2)
    world.rng.choice(
        [
            lambda: agent.tickets.create(**{k: v for k, v in world.values().items() if k != "agent_id"}),
            lambda: agent.tickets.add(*some),
            lambda: agent.tickets.set(some),
            lambda: agent.tickets.remove(*agent.tickets.all()[:1]),
            lambda: agent.tickets.filter(closed=False).update(**world.values(some=True)),
        ]
    )()


def watch(world: World) -> None:
    """Between two models: the table in the middle is counted."""
    agent, some = Agent.objects.get(pk=world.rng.choice(world.agents)), world.rows(2)
    world.rng.choice(
        [
            lambda: agent.watched.add(*some),
            lambda: agent.watched.remove(*some),
            lambda: some and some[0].watchers.set(world.agents),
            lambda: Watch.objects.filter(agent=agent).update(muted=~F("muted")),
            lambda: Watch.objects.filter(ticket__closed=False).delete(),
            lambda: agent.watched.add(*some, through_defaults={"weight": world.rng.randint(-5, 5)}),
            lambda: Watch.objects.filter(agent=agent).update(weight=F("weight") - 2),
            lambda: Watch.objects.filter(agent=agent, weight=1).update(weight=world.rng.randint(-5, 5)),
        ]
    )()


# ----------------------------------------------------------------------------------------------------- saving, updating
def load(world: World) -> None:
    world.stale += world.rows(2, world.rng.choice([Ticket, Bug, Incident]).objects.all())


def save(world: World) -> None:
    """Whatever it believes, and though it may be gone."""
    there = [ticket for ticket in world.stale if ticket.pk is not None]
    if there:
        ticket, some = world.rng.choice(there), world.values(some=True)
        # Whom it points to may be gone, too.
        for name, value in {**world.values(), **some, "parent": None}.items():
            if name in some or name.endswith("_id") or name == "parent":
                setattr(ticket, name, value)
        exists = type(ticket).objects.filter(pk=ticket.pk).exists()
        ticket.save(update_fields=list(some) if exists and world.rng.random() < 0.5 else None)


def update(world: World) -> None:
    world.select().update(**world.values(some=True))


def update_by_expressions(world: World) -> None:
    values = world.expressions()
    if world.rng.random() < 0.3:
        values = {**{k: v for k, v in world.values(some=True).items() if k != "agent_id"}, **values}
    world.select().update(**values)


def update_child(world: World) -> None:
    Incident.objects.filter(world.condition()).update(severity=F("severity") + 1, **world.values(some=True))


def bulk_update(world: World) -> None:
    tickets = world.rows(3)
    for ticket in tickets:
        for name, value in world.values().items():
            setattr(ticket, name, value)
    Ticket.objects.bulk_update(tickets, world.rng.sample(["agent", "closed", "priority", "due", "queue"], 2))


# ------------------------------------------------------------------------------------------------------------- deletion
def delete(world: World) -> None:
    if world.rng.random() < 0.5:
        found = world.select()
        (found.model.objects.filter(pk__in=found.values("pk")) if found.query.distinct else found).delete()
    elif world.stale:
        ticket = world.stale.pop(world.rng.randrange(len(world.stale)))
        if ticket.pk is not None:
            ticket.delete()


def raw_delete(world: World) -> None:
    Watch.objects.filter(Q(muted=True) | Q(agent=world.agent()))._raw_delete("default")
    childless = Ticket.objects.filter(incident=None, watches=None).values("pk")
    keys = list(childless.filter(pk__gte=world.key())[:2].values_list("pk", flat=True))
    Ticket.objects.filter(world.rng.choice([Q(pk__in=keys), Q(pk__in=keys, closed=False)]))._raw_delete("default")


def delete_owner(world: World) -> None:
    """Cascades, and foreign keys that are set to NULL."""
    model, keys = world.rng.choice(
        [(Agent, world.agents), (Agent, world.agents), (Queue, world.queues), (Project, world.projects)]
    )
    old = model.objects.get(pk=keys.pop(world.rng.randrange(len(keys))))
    values = {"name": old.name} if model is Agent else {}
    if world.rng.random() < 0.5:
        values["pk"] = old.pk  # the next one has the same key
    world.rng.choice([old.delete, model.objects.filter(pk=old.pk).delete])()
    keys.append(model.objects.create(**values).pk)
    world.owners.add(keys[-1])


# ----------------------------------------------------------------------------------------- a primary key of two columns
def lots(world: World) -> None:
    project, number, choose = world.rng.choice(world.projects), world.rng.randint(1, 4), world.rng.choice
    mine = Lot.objects.filter(project=project)
    choose(
        [
            lambda: Lot(project_id=project, number=number, sold=choose([True, False])).save(),
            lambda: Lot.objects.update_or_create(project_id=project, number=number, defaults={"sold": True}),
            lambda: mine.filter(sold=False).update(sold=True),
            lambda: Lot.objects.filter(pk__in=[(project, number), (project, 2)]).update(sold=False),
            lambda: Lot.objects.filter(project__lots__number=number).update(sold=True),
            lambda: Lot.objects.filter(pk=(project, number)).delete(),
            lambda: Lot.objects.bulk_update([Lot(project=lot.project, number=lot.number) for lot in mine], ["sold"]),
        ]
    )()


# ------------------------------------------------------------------------------------------------------- what others do
def meanwhile(world: World) -> None:
    """Another process works. On SQLite, it would wait for the end of the transaction."""
    if world.open and connection.vendor == "sqlite":
        return
    counter, run = world.rng.choice(ALL), world.other.run
    owners = list(world.committed[counter])
    world.rng.choice(
        [
            lambda: run(counter.flush),
            lambda: run(counter.heal),
            lambda: run(counter.recount),
            lambda: run(counter.recount, owners[:1]),
        ]
    )()


def lose(world: World) -> None:
    delete_keys(options.KEY_PREFIX)


OPERATIONS = [
    *(create, create_by_expressions, save_new_with_key, bulk_create, ignore_conflicts),
    *(update_conflicts, update_or_create, related, watch, load, save),
    *(update, update, update, update_by_expressions, update_by_expressions, update_child, bulk_update),
    *(delete, raw_delete, delete_owner, lots),
]
EVENTS = [meanwhile, meanwhile, meanwhile, lose]
TRANSACTIONS = ["begin", "savepoint", "commit", "roll back"]
ALL = (*COUNTERS, free_lots)


FIRST, LAST = map(int, os.environ.get("FUZZ", "0-12").split("-"))
SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed else ()) for seed in range(FIRST, LAST)]


@pytest.mark.parametrize("seed", SEEDS)
def test_any_statements(seed):
    """FUZZ="1000-1100" runs other histories."""
    rng = random.Random(seed)
    steps = [rng.choice(rng.choice([*[OPERATIONS] * 4, *[TRANSACTIONS] * 2, EVENTS])) for _ in range(60)]
    with entries(HEAL_AFTER=0), OtherConnection() as other:
        run(World(rng, other), [bulk_create, bulk_create, *steps])


def run(world: World, steps: list[Any]) -> None:
    heal(*ALL)
    world.committed = {counter: counts(counter, world.owners) for counter in ALL}
    try:
        for number, step in enumerate([*steps, *["commit"] * len(steps)]):
            with named(f"step {number}, {getattr(step, '__name__', step)}"):
                if callable(step):
                    step(world)
                elif step in ("commit", "roll back") and world.open:
                    world.end(step == "commit")
                elif step == "begin" or (step == "savepoint" and world.open):
                    world.begin(step)
                else:
                    continue
                if not world.open:
                    world.committed = {counter: counts(counter, world.owners) for counter in ALL}
                assert_counted(world.owners, *ALL, doubt=True)
                for counter, right in world.committed.items():
                    assert world.other.run(counter.counts, list(right)) == right, counter.name
                if not world.open and world.rng.random() < 0.3:
                    heal(*ALL)
        assert_stored(world.owners, *ALL)
    except BaseException:
        if connection.in_atomic_block:
            transaction.set_rollback(True)
        while world.open:
            if isinstance(block := world.open.pop()[0], transaction.Atomic):
                block.__exit__(None, None, None)
        raise
