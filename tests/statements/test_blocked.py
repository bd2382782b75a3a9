"""A statement waits for rows that another transaction has changed, and counts what it changes once that has committed.

Both also run on a table that nobody counts: a counter alters nothing of what a statement does.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import Case, F, Value, When

from tests.support import PATIENCE, OtherConnection, session, wait_until, waits

from .counters import open_tickets, urgent_tickets
from .models import BaseTicket, Ticket, UncountedTicket
from .support import assert_counted, heal, named

pytestmark = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite lets one transaction write at a time.")

COUNTED = (open_tickets, urgent_tickets)

Model = type[BaseTicket]
Work = Callable[[Model, int, int], Any]

# Of ticket 2, which is ann's and open; ticket 4 is hers and closed, ticket 9 is ben's.
FIRST: dict[str, Work] = {
    "closes": lambda model, ann, ben: model.objects.filter(pk=2).update(closed=True),
    "reopens": lambda model, ann, ben: model.objects.filter(pk=4).update(closed=False),
    "moves": lambda model, ann, ben: model.objects.filter(pk=2).update(agent=ben),
    "closes and moves": lambda model, ann, ben: (
        model.objects.filter(pk=2).update(closed=True),
        model.objects.filter(pk=2).update(agent=ben),
    ),
    "deletes": lambda model, ann, ben: model.objects.filter(pk=2)._raw_delete("default"),
    "replaces": lambda model, ann, ben: (
        model.objects.filter(pk=2)._raw_delete("default"),
        model(pk=2, agent_id=ann, due=None).save(force_insert=True),
    ),
    "inserts": lambda model, ann, ben: model(pk=7, agent_id=ann, priority=2).save(force_insert=True),
    "changes the key": lambda model, ann, ben: model.objects.filter(pk=2).update(id=40),
    "swaps the keys": lambda model, ann, ben: (
        model.objects.filter(pk=2).update(id=40),
        model.objects.filter(pk=4).update(id=2),
        model.objects.filter(pk=40).update(id=4),
    ),
}

SECOND: dict[str, Work] = {
    "decided": lambda model, ann, ben: model.objects.filter(agent=ann, closed=False, priority=2).update(closed=True),
    "decided owner": lambda model, ann, ben: model.objects.filter(agent=ann, closed=False, priority=2).update(
        agent=ben
    ),
    "by keys": lambda model, ann, ben: model.objects.filter(pk__in=[1, 2, 3, 4]).update(closed=True),
    "by state": lambda model, ann, ben: model.objects.filter(closed=False).update(closed=True),
    "by subquery": lambda model, ann, ben: model.objects.filter(
        pk__in=model.objects.filter(agent=ann, closed=False).values("pk")
    ).update(closed=True),
    "joined": lambda model, ann, ben: model.objects.filter(agent__name="ann").update(closed=True),
    "toggle": lambda model, ann, ben: model.objects.filter(agent=ann).update(closed=~F("closed")),
    "from a column": lambda model, ann, ben: model.objects.filter(agent=ann).update(agent=F("reviewer")),
    "case": lambda model, ann, ben: model.objects.filter(agent=ann).update(
        closed=Case(When(closed=True, then=Value(False)), default=Value(True))
    ),
    "delete": lambda model, ann, ben: model.objects.filter(pk__lte=4)._raw_delete("default"),
    "delete by state": lambda model, ann, ben: model.objects.filter(agent=ann, closed=False)._raw_delete("default"),
    "delete by subquery": lambda model, ann, ben: model.objects.filter(
        pk__in=model.objects.filter(closed=False).values("pk")
    )._raw_delete("default"),
    "save": lambda model, ann, ben: model(pk=2, agent_id=ben, priority=2).save(force_update=True),
    "save new": lambda model, ann, ben: model(pk=7, agent_id=ben, closed=True).save(),
    "save some": lambda model, ann, ben: model(pk=4, agent_id=ben, closed=True).save(update_fields=["closed"]),
    "update_or_create": lambda model, ann, ben: model.objects.update_or_create(
        pk=2, defaults={"closed": True}, create_defaults={"agent_id": ann}
    )[1],
    "ignored conflicts": lambda model, ann, ben: len(
        model.objects.bulk_create(
            [model(pk=2, agent_id=ben), model(pk=4, agent_id=ann), model(pk=50, agent_id=ben)], ignore_conflicts=True
        )
    ),
    "bulk_update": lambda model, ann, ben: model.objects.bulk_update(
        [model(pk=2, closed=True, agent_id=ben), model(pk=4, closed=False, agent_id=ann)], ["closed", "agent"]
    ),
}


def fill(model: Model, ann: int, ben: int) -> None:
    model.objects.all()._raw_delete("default")
    model.objects.bulk_create(
        model(pk=pk, agent_id=agent, reviewer_id=ben, closed=pk == 4, priority=2)
        for pk, agent in ((1, ann), (2, ann), (3, ann), (4, ann), (9, ben), (10, ben))
    )


def contents(model: Model) -> list[tuple[Any, ...]]:
    return list(model.objects.order_by("pk").values_list("pk", "agent", "closed", "priority", "reviewer"))


def wait_until_blocked(running: Future, session: int) -> None:
    """… or done: not every statement meets the rows of the first transaction."""
    wait_until(lambda: running.done() or waits(session))


def in_autocommit(work: Work, model: Model, ann: int, ben: int) -> Any:
    return work(model, ann, ben)


def at_repeatable_read(work: Work, model: Model, ann: int, ben: int) -> Any:
    """In a transaction that has looked around before."""
    level = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":  # there it is said of the next transaction
            cursor.execute(level)
        with transaction.atomic():
            if connection.vendor == "postgresql":
                cursor.execute(level)
            list(model.objects.values_list("pk"))
            return work(model, ann, ben)


def outcome(how: Callable[..., Any], *args: Any) -> Any:
    """What it returns, or how it fails."""
    try:
        return how(*args)
    except DatabaseError as error:
        return type(error).__name__


@pytest.mark.slow
@pytest.mark.parametrize("how", [in_autocommit, at_repeatable_read])
def test_statements_that_wait(how, ann, ben, owners):
    agents = ann.pk, ben.pk
    # MariaDB answers a plain UPDATE by rows of a moment ago, and a locking one by those of now: both are right.
    models = (Ticket, UncountedTicket) if connection.vendor == "postgresql" else (Ticket,)
    with OtherConnection() as other:
        its = other.run(session)
        chosen = FIRST if how is in_autocommit else {first: FIRST[first] for first in ("closes", "moves", "replaces")}
        for (first, change), (second, work) in itertools.product(chosen.items(), SECOND.items()):
            outcomes = []
            for model in models:
                fill(model, *agents)
                for counter in COUNTED:
                    counter.counts(agents)  # Redis has their totals from here on
                with transaction.atomic():
                    change(model, *agents)
                    running = other.start(outcome, how, work, model, *agents)
                    wait_until_blocked(running, its)
                outcomes.append((running.result(PATIENCE), contents(model)))
            with named(f"{second} while the first {first}"):
                failed = isinstance(outcomes[0][0], str)
                # MariaDB: what the subquery finds may differ from what it found a moment ago, when rows were locked.
                doubt = failed or (connection.vendor == "mysql" and ("subquery" in second or second == "joined"))
                assert_counted(agents, *COUNTED, doubt=doubt)
                assert outcomes[0] == outcomes[-1]
            if doubt:
                heal(*COUNTED)
