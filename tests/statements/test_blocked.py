"""A statement waits for rows that another transaction has changed, and counts what it changes once that has committed.

Both also run on a table that nobody counts: a counter alters nothing of what a statement does.
"""

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F, Q

from tests.support import PATIENCE, OtherConnection, session, wait_until, waits

from .conftest import ANN, BEN
from .counters import open_tickets, urgent_tickets
from .models import BaseTicket, Ticket, UncountedTicket
from .support import assert_counted, heal, named

pytestmark = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite lets one transaction write at a time.")

COUNTED = (open_tickets, urgent_tickets)

Model = type[BaseTicket]
Work = Callable[[Model], Any]


def change(*conditions: Q, **values: Any) -> Work:
    return lambda model: model.objects.filter(*conditions).update(**values)


def delete(*conditions: Q) -> Work:
    return lambda model: model.objects.filter(*conditions)._raw_delete("default")


def both(*works: Work) -> Work:
    return lambda model: [work(model) for work in works]


def within(model: Model, found: Q) -> Any:
    """Rows that a subquery finds."""
    return model.objects.filter(pk__in=model.objects.filter(found).values("pk"))


# Of ticket 2, which is ann's and open; ticket 4 is hers and closed, ticket 9 is ben's.
FIRST: dict[str, Work] = {
    "closes": change(Q(pk=2), closed=True),
    "reopens": change(Q(pk=4), closed=False),
    "moves": change(Q(pk=2), agent=BEN),
    "deletes": delete(Q(pk=2)),
    "replaces": both(delete(Q(pk=2)), lambda model: model(pk=2, agent_id=ANN, due=None).save(force_insert=True)),
    "inserts": lambda model: model(pk=7, agent_id=ANN, priority=2).save(force_insert=True),
    "swaps the keys": both(change(Q(pk=2), id=40), change(Q(pk=4), id=2), change(Q(pk=40), id=4)),
}

HERS, URGENT = Q(agent=ANN), Q(closed=False, priority=2)

SECOND: dict[str, Work] = {
    "decided": change(HERS, URGENT, closed=True),
    "decided owner": change(HERS, URGENT, agent=BEN),
    "by state": change(Q(closed=False), closed=True),
    "joined": change(Q(agent__name="ann"), closed=True),
    "toggle": change(HERS, closed=~F("closed")),
    "from a column": change(HERS, agent=F("reviewer")),
    "delete": delete(Q(pk__lte=4)),
    "delete with children": lambda model: model.objects.filter(HERS).delete()[0],
    "delete by subquery": lambda model: within(model, Q(closed=False))._raw_delete("default"),
    "save": lambda model: model(pk=2, agent_id=BEN, priority=2).save(force_update=True),
    "save new": lambda model: model(pk=7, agent_id=BEN, closed=True).save(),
    "ignored conflicts": lambda model: len(
        model.objects.bulk_create(
            [model(pk=2, agent_id=BEN), model(pk=4, agent_id=ANN), model(pk=50, agent_id=BEN)], ignore_conflicts=True
        )
    ),
    "bulk_update": lambda model: model.objects.bulk_update(
        [model(pk=2, closed=True, agent_id=BEN), model(pk=4, closed=False, agent_id=ANN)], ["closed", "agent"]
    ),
}


def fill(model: Model) -> None:
    model.objects.all()._raw_delete("default")
    model.objects.bulk_create(
        model(pk=pk, agent_id=agent, reviewer_id=BEN, closed=pk == 4, priority=2)
        for pk, agent in ((1, ANN), (2, ANN), (3, ANN), (4, ANN), (9, BEN), (10, BEN))
    )


def contents(model: Model) -> list[tuple[Any, ...]]:
    return list(model.objects.order_by("pk").values_list("pk", "agent", "closed", "priority", "reviewer"))


def wait_until_blocked(running: Future, session: int) -> None:
    """… or done: not every statement meets the rows of the first transaction."""
    wait_until(lambda: running.done() or waits(session))


def in_autocommit(work: Work, model: Model) -> Any:
    return work(model)


def at_repeatable_read(work: Work, model: Model) -> Any:
    """In a transaction that has looked around before."""
    level = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":  # there it is said of the next transaction
            cursor.execute(level)
        with transaction.atomic():
            if connection.vendor == "postgresql":
                cursor.execute(level)
            list(model.objects.values_list("pk"))
            return work(model)


def outcome(how: Callable[..., Any], *args: Any) -> Any:
    """What it returns, or how it fails."""
    try:
        return how(*args)
    except DatabaseError as error:
        return type(error).__name__


@pytest.mark.slow
@pytest.mark.parametrize("how", [in_autocommit, at_repeatable_read])
def test_statements_that_wait(how, owners):
    agents = ANN, BEN
    # MariaDB answers a plain UPDATE by rows of a moment ago, and a locking one by those of now: both are right.
    models = (Ticket, UncountedTicket) if connection.vendor == "postgresql" else (Ticket,)
    with OtherConnection() as other:
        its = other.run(session)
        chosen = FIRST if how is in_autocommit else {first: FIRST[first] for first in ("closes", "moves", "replaces")}
        for (first, begin), (second, work) in itertools.product(chosen.items(), SECOND.items()):
            outcomes = []
            for model in models:
                fill(model)
                for counter in COUNTED:
                    counter.counts(agents)  # Redis has their totals from here on
                with transaction.atomic():
                    begin(model)
                    running = other.start(outcome, how, work, model)
                    wait_until_blocked(running, its)
                outcomes.append((running.result(PATIENCE), contents(model)))
            with named(f"{second} while the first {first}"):
                if isinstance(outcomes[0][0], str):  # what was announced may have been committed, or not
                    heal(*COUNTED)
                assert_counted(agents, *COUNTED, doubt=True)
                if second != "from a column":  # it locks its rows first, so it also finds what replaces one of them
                    assert outcomes[0] == outcomes[-1]
            heal(*COUNTED)
