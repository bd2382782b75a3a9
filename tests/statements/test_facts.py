"""What WHERE and SET say of the rows that an UPDATE changes, and what they do not say.

The updates of DECIDED say everything, so they cost one statement. Those of UNDECIDED only look as if they did: taken at
their word, they would be counted wrong.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import connection
from django.db.models import F, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from tests.tasks.counters import visible_posts
from tests.tasks.models import Post, Topic

from .conftest import ANN, BEN, DESK
from .models import Agent, Queue, Ticket, UncountedTicket, Watch
from .support import assert_counted, heal, named

Update = Callable[[QuerySet], int]
Tables = tuple[QuerySet, QuerySet]

DAY = timezone.now()


def change(*conditions: Q, **values: Any) -> Update:
    return lambda tickets: tickets.filter(*conditions).update(**values)


@pytest.fixture
def fresh(ann: Agent, ben: Agent, desk: Queue, owners: list[Any]) -> Callable[[], Tables]:
    """A function that fills two tables with the same rows: one that is counted, and one that is not."""
    kinds = [
        {"closed": closed, "hot": hot, "priority": priority, "due": due, "done": done}
        for closed in (False, True)
        for hot in (False, True)
        for priority in (None, 1, 2)
        for due, done in ((None, DAY), (DAY, None))
    ]
    # Every kind of row for ann, fewer for ben and for nobody, so that no two mistakes cancel out.
    values = [{"agent": ann, "reviewer": ben, "queue": desk, **kind} for kind in kinds]
    values += [{"agent": ben, "reviewer": ann, **kind} for kind in kinds[::5]]
    values += [{"agent": ann, "reviewer": ann, "queue": desk, **kind} for kind in kinds[::4]]
    values += [{"queue": desk, **kind} for kind in kinds[1::2]]
    for i, row in enumerate(values, 1):
        row |= {"pk": i, "parent_id": i - 7 if i > 7 else None, "state": "new" if i % 5 < 3 else "old"}

    def fill() -> Tables:
        for model in (Ticket, UncountedTicket):
            model.objects.all()._raw_delete("default")
            model.objects.bulk_create(model(**row) for row in values)
        return Ticket.objects.all(), UncountedTicket.objects.all()

    return fill


def contents(tickets: QuerySet) -> list[tuple[Any, ...]]:
    values = tickets.order_by("pk").values_list("pk", "agent", "queue", "closed", "priority", "state", "due")
    return [(*row, due is None) for *row, due in values]


HERS, OTHERS = Q(agent=ANN), Q(agent=BEN)
OPEN, MINE = Q(closed=False), Q(agent=ANN, queue=DESK)
FIRST, SECOND = Q(closed=False, priority=1), Q(closed=False, priority=2, due=None)
BY_NAME = Subquery(Agent.objects.filter(name="ben").values("pk")[:1])

DECIDED: dict[str, Update] = {
    "equality": change(MINE, SECOND, closed=True),
    "other types": change(Q(agent=str(ANN), queue=str(DESK).upper(), closed=0, priority="2", due=None), closed=1),
    "not null": change(HERS, FIRST, Q(due__isnull=False), due=None),
    "now": change(HERS, FIRST, Q(due=None), due=Now()),
    "nested": change(Q(Q(agent=ANN), Q(Q(queue=DESK) & Q(priority=2, due=None))), OPEN, closed=True),
    "beside a negation": change(MINE, SECOND, ~Q(state="old"), closed=True),
    "beside NOT NULL": change(MINE, SECOND, Q(priority__isnull=False, agent__isnull=False), closed=True),
    "nobody's": change(OPEN, Q(agent=None, priority=2), ~Q(due=None), agent=BEN),
    "owner": change(HERS, SECOND, agent=BEN),
    "owner as an instance": change(HERS, SECOND, agent=Agent(pk=BEN)),
    "owner to nobody": change(HERS, SECOND, agent=None),
    "owner of rows that do not count": change(Q(closed=True), agent=BEN),
    "as they all were": change(HERS, SECOND, closed=False),
    "two owners at once": change(HERS, SECOND, OTHERS, agent=None),
}

UNDECIDED: dict[str, Update] = {
    "negation": change(MINE, ~OPEN, closed=False),
    "negated AND of IS NULL": change(HERS, FIRST, ~Q(due__isnull=True, hot=True), due=DAY),
    "twice negated IS NULL": change(HERS, FIRST, ~Q(~Q(due__isnull=True)), due=DAY),
    "OR": change(MINE, Q(priority=2), OPEN | Q(hot=True), closed=True),
    "another row's owner": change(Q(queue=DESK, parent__agent=ANN), SECOND, closed=True),
    "a child's": change(MINE, Q(priority=2, children__closed=False), closed=True),
    "equality with a column": change(MINE, Q(closed=F("hot")), closed=True),
    "equality of an expression": lambda q: (
        q.annotate(p=Coalesce("priority", 2)).filter(MINE, p=2, due=DAY).update(closed=True)
    ),
    "a list": change(SECOND, Q(agent__in=[ANN, BEN], queue=DESK), closed=True),
    "a list of keys": lambda q: q.filter(pk__in=list(q.order_by("pk").values_list("pk", flat=True)[:20])).update(
        closed=True
    ),
    "the state alone": change(SECOND, closed=True),
    "SET of a column": change(MINE, SECOND, closed=F("hot")),
    "SET of a value": change(MINE, SECOND, closed=Value(True), due=Value(None)),
    "SET of a nullable column": change(HERS, FIRST, Q(due=None), due=F("done")),
    "SET of a subquery": change(HERS, SECOND, agent=BY_NAME),
    "SET of the owner alone": change(SECOND, agent=BEN),
    "SET of owner and state": change(HERS, agent=BEN, closed=True),
    "what a text decides": change(Q(queue=DESK, priority=1), queue=None),
}


@pytest.mark.parametrize("updates", [DECIDED, UNDECIDED], ids=["all is said", "not all is said"])
def test_rows_are_asked_where_not_all_is_said(fresh, owners, updates, django_assert_num_queries):
    is_decided = updates is DECIDED
    for case, update in updates.items():
        tickets, uncounted = fresh()
        if is_decided:
            heal()
        assert_counted(owners, doubt=not is_decided)  # from here on Redis has their totals
        with named(case):
            with django_assert_num_queries(1) if is_decided else nullcontext():
                changed = update(tickets)
            assert changed > 0 or case == "two owners at once"  # which no row has
            assert_counted(owners, doubt=not is_decided)
            assert changed == update(uncounted)
            assert contents(tickets) == contents(uncounted)


OF_A_SUM: dict[str, Update] = {
    "equality": change(Q(weight=7), weight=-2),
    "other types": change(Q(weight="7"), weight=3),
    "nothing left": change(Q(weight=7), weight=0),
}


def test_one_statement_says_what_a_sum_was_and_becomes(ann, owners, django_assert_num_queries):
    for case, update in OF_A_SUM.items():
        Watch.objects.all().delete()
        Watch.objects.bulk_create(Watch(agent=ann, weight=weight) for weight in (7, 7, 7, 0, -4, 9))
        heal()
        assert_counted(owners)
        with named(case), django_assert_num_queries(1):
            update(Watch.objects.filter(agent=ann))
        with named(case):
            assert_counted(owners)


@pytest.mark.skipif(connection.vendor != "mysql", reason="Here texts are equal only if they are the same.")
def test_texts_that_are_equal_and_not_the_same():
    """By its collation, the database finds the rows of "plain" when it is asked for those of "PLAIN"."""
    topic = Topic.objects.create(id="plain")
    Post.objects.bulk_create(Post(topic=topic, hidden=hidden) for hidden in (False, False, True))
    heal(visible_posts)
    assert_counted(["plain"], visible_posts)
    assert Post.objects.filter(topic="PLAIN", hidden=False).update(hidden=True) == 2
    assert_counted(["plain"], visible_posts)
    assert Post.objects.filter(topic="Plain", hidden=True).update(hidden=False) == 3
    assert_counted(["plain"], visible_posts)
