"""Random statements do the same to the rows of a counted table as to those of its twin, which nobody counts: they
change the same rows in the same order, and fire the same triggers. Each read is COUNT(*) or SUM(), in their transaction
and after it."""

import itertools
import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import Case, Count, Exists, F, OuterRef, Q, Subquery, Value, When
from django.db.models.functions import Coalesce, Mod

from tests.statements.counters import COUNTERS
from tests.statements.models import Agent, Queue, Ticket, UncountedTicket
from tests.statements.support import assert_counted, assert_stored, heal, named
from tests.support import entries, execute, undone

pytestmark = pytest.mark.django_db(transaction=True)

NAMES, DESK = ["ann", "ben", "cid"], UUID(int=5)
TWINS = (Ticket, UncountedTicket)
NUMBER = 40

# What triggers do besides noting that they have fired. %s is the table.
SKIPS = "OLD.id % 3 = 0 AND NOT EXISTS (SELECT 1 FROM twin_notes WHERE event = 'filling')"
WRITE = "UPDATE %s SET priority = COALESCE(priority, 0) + 1, closed = NOT closed WHERE id = NEW.parent_id;"
TRIGGERS: dict[str, dict[tuple[str, str, str], str]] = {
    "note": {},
    "skip rows": {
        ("postgresql", "BEFORE", "UPDATE"): f"IF {SKIPS} THEN RETURN NULL; END IF;",
        ("postgresql", "BEFORE", "DELETE"): f"IF {SKIPS} THEN RETURN NULL; END IF;",
        ("sqlite", "BEFORE", "UPDATE"): f"SELECT RAISE(IGNORE) WHERE {SKIPS};",
        ("sqlite", "BEFORE", "DELETE"): f"SELECT RAISE(IGNORE) WHERE {SKIPS};",
    },
    "write to other rows": {
        ("postgresql", "BEFORE", "UPDATE"): f"IF pg_trigger_depth() = 1 THEN {WRITE} END IF;",
        ("sqlite", "BEFORE", "UPDATE"): WRITE,
    },
}


@pytest.fixture
def agents(_own_keys: None, transactional_db: None) -> list[Agent]:
    heal()
    Queue.objects.create(pk=DESK)
    return [Agent.objects.create(name=name) for name in NAMES]


@contextmanager
def triggers(actions: dict[tuple[str, str, str], str]) -> Iterator[None]:
    """Triggers of both tables, and a table in which they note that they have fired, and for which rows."""
    key = {"postgresql": "SERIAL", "mysql": "INTEGER AUTO_INCREMENT", "sqlite": "INTEGER"}[connection.vendor]
    execute(f"CREATE TABLE twin_notes (id {key} PRIMARY KEY, event VARCHAR(20), ticket INTEGER)")
    undo = ["DROP TABLE twin_notes"]
    for model, moment, event in itertools.product(TWINS, ("BEFORE", "AFTER"), ("INSERT", "UPDATE", "DELETE")):
        table, row = model._meta.db_table, "OLD" if event == "DELETE" else "NEW"
        name = f"{table}_{moment}_{event}"
        body = f"BEGIN INSERT INTO twin_notes (event, ticket) VALUES ('{moment} {event}', {row}.id); "
        body += actions.get((connection.vendor, moment, event), "").replace("%s", table)
        trigger = f"CREATE TRIGGER {name} {moment} {event} ON {table} FOR EACH ROW"
        if connection.vendor == "postgresql":
            execute(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ {body} RETURN {row}; END $$")
            execute(f"{trigger} EXECUTE FUNCTION {name}()")
            undo.append(f"DROP FUNCTION {name} CASCADE")
        else:
            execute(f"{trigger} {body} END")
            undo.append(f"DROP TRIGGER {name}")
    if connection.vendor == "postgresql":  # which otherwise may know more of one twin than of the other
        execute(*(f"ALTER TABLE {model._meta.db_table} SET (autovacuum_enabled = false)" for model in TWINS))
    try:
        yield
    finally:
        execute(*reversed(undo))


def rows_of(agents: list[Agent], rng: random.Random, keys: Iterable[int]) -> list[dict[str, Any]]:
    return [
        {
            "pk": pk,
            "agent": rng.choice([*agents, None]),
            "reviewer": rng.choice(agents),
            "parent_id": rng.randint(1, NUMBER),
            "queue_id": rng.choice([DESK, None]),
            "closed": rng.random() < 0.3,
            "priority": rng.choice([None, 1, 2, 3]),
            "state": rng.choice(["new", "old"]),
            "title": rng.choice("xyz"),
        }
        for pk in keys
    ]


def fill(model: Any, agents: list[Agent], rng: random.Random) -> None:
    """The table is as if it were new, because the order in which rows are stored matters to PostgreSQL."""
    table = model._meta.db_table
    execute("INSERT INTO twin_notes (event) VALUES ('filling')")
    model.objects.all()._raw_delete("default")
    if connection.vendor == "postgresql":
        execute(f"TRUNCATE {table} CASCADE")
    model.objects.bulk_create(model(**row) for row in rows_of(agents, rng, rng.sample(range(1, NUMBER + 1), NUMBER)))
    if connection.vendor == "postgresql":  # or autovacuum may do so for one table only: plans decide the order
        execute(f"ANALYZE {table}")
    execute("DELETE FROM twin_notes")


def contents(model: Any) -> list[tuple[Any, ...]]:
    columns = ("pk", "agent", "reviewer", "queue", "parent", "closed", "priority", "state", "title", "hot")
    return list(model.objects.order_by("pk").values_list(*columns))


def fewest(model: Any) -> Subquery:
    """The agent with the fewest open tickets, at this moment."""
    ticket = model.__name__.lower()
    open_tickets = Count(f"{ticket}s", filter=Q(**{f"{ticket}s__closed": False}))
    return Subquery(Agent.objects.annotate(n=open_tickets).order_by("n", "pk").values("pk")[:1])


def selections(model: Any, agents: list[Agent], rng: random.Random) -> list[Any]:
    rows, name, priority = model.objects.all(), rng.choice(NAMES), rng.choice([1, 2, 3])
    children = model.objects.filter(parent=OuterRef("pk"), closed=rng.choice([True, False]))
    return [
        rows,
        rows.filter(agent=rng.choice(agents)),
        rows.filter(Q(agent__name=name) | Q(reviewer__name=name), priority=priority),
        rows.exclude(agent__name=name),
        rows.filter(title="x", closed=False),
        rows.filter(parent__closed=True),
        rows.filter(children__priority=priority).distinct(),
        rows.filter(Exists(children)),
        rows.annotate(n=Count("children")).filter(n__gt=1),
        rows.filter(pk__in=model.objects.filter(parent__closed=False).values("parent")),
    ]


def changes(model: Any, agents: list[Agent], rng: random.Random) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"closed": True},
        {"closed": ~F("closed")},
        {"agent": rng.choice(agents)},
        {"agent": F("reviewer"), "reviewer": F("agent")},
        {"agent": Case(When(priority=2, then=F("reviewer")), default=F("agent")), "closed": False},
        {"priority": Mod(Coalesce(F("priority"), 0) + 1, 4)},
        {"state": Case(When(closed=True, then=Value("old")), default=Value("new"))},
        {"queue": None, "priority": 2},
        {"id": F("id") + 1000, "closed": ~F("closed")},
    ]
    # Those of MySQL are changed one after the other, in an order that it chooses.
    return found if connection.vendor == "mysql" else [*found, {"agent": fewest(model)}]


def insertions(model: Any, agents: list[Agent], rng: random.Random) -> list[Callable[[], Any]]:
    rows = [model(**row) for row in rows_of(agents, rng, rng.sample(range(1, 2 * NUMBER), 10))]
    target = {} if connection.vendor == "mysql" else {"unique_fields": ["pk"]}
    return [
        lambda: len(model.objects.bulk_create(rows)),
        lambda: len(model.objects.bulk_create(rows, ignore_conflicts=True)),
        lambda: len(model.objects.bulk_create(rows, update_conflicts=True, update_fields=["closed"], **target)),
        lambda: model.objects.bulk_update(rows, ["closed", "agent"]),
        lambda: model.objects.update_or_create(pk=rows[0].pk, defaults={"agent": rows[0].agent})[1],
        lambda: rows[0].save(),
    ]


def outcome(model: Any, agents: list[Agent], rng: random.Random, is_counted: bool) -> Any:
    """What a statement returns or raises, the rows after it, and the triggers that have fired. If the table is counted,
    reads are right."""
    owners = [*(agent.pk for agent in agents), DESK]
    fill(model, agents, rng)
    rows, values = rng.choice(selections(model, agents, rng)), rng.choice(changes(model, agents, rng))
    works: list[Callable[[], Any]] = [
        lambda: rows.update(**values),
        lambda: model.objects.filter(pk__in=rows.values("pk"))._raw_delete("default"),
        lambda: model.objects.filter(pk__in=rows.values("pk")).delete()[0],
        rng.choice(insertions(model, agents, rng)),
    ]
    work = rng.choices(works, [6, 1, 1, 2])[0]
    outer, inner = rng.choice([nullcontext, transaction.atomic]), rng.choice([nullcontext, undone])
    if is_counted:
        assert_counted(owners, doubt=True)  # and Redis has their totals
    try:
        with outer(), inner():
            result = work()
            if is_counted:
                assert_counted(owners, doubt=True)
    except DatabaseError as error:
        result = type(error).__name__
    if is_counted:
        assert_counted(owners, doubt=True)
    fired = execute("SELECT event, ticket FROM twin_notes ORDER BY id")
    return result, contents(model), sorted(fired) if connection.vendor == "mysql" else fired


@pytest.mark.parametrize(
    "what", ["note", *(pytest.param(what, marks=pytest.mark.slow) for what in TRIGGERS if TRIGGERS[what])]
)
def test_random_statements_do_the_same_as_without_counters(what, agents):
    """Beside triggers that do something. FUZZ="1000-1100" runs other statements."""
    actions = TRIGGERS[what]
    if actions and connection.vendor == "mysql":
        pytest.skip("MariaDB and MySQL have no such triggers.")
    writes = "write" in what  # nobody counts what triggers write
    with triggers(actions):
        for seed in range(*map(int, os.environ.get("FUZZ", "0-40").split("-"))):
            with named(f"seed {seed}"):
                counted = outcome(Ticket, agents, random.Random(seed), is_counted=not writes)
                assert counted == outcome(UncountedTicket, agents, random.Random(seed), is_counted=False)
        if writes:
            for counter in COUNTERS:
                counter.recount()
        with entries(MAX_TRANSACTION_AGE=0):  # a statement that failed may be under way, as far as is known
            assert_stored([*(agent.pk for agent in agents), DESK])
