"""What WHERE and SET say of the rows that an UPDATE changes, and what they do not say.

The updates of DECIDED say everything, so they cost one statement. Those of UNDECIDED only look as if they did: taken at
their word, they would be counted wrong.
"""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from tests.tasks.counters import visible_posts
from tests.tasks.models import Post, Topic

from .counters import new_tickets
from .models import Agent, Queue, Ticket, UncountedTicket, Watch
from .support import assert_counted, heal, named

Update = Callable[[QuerySet, Agent, Agent, Queue], int]

DAY = timezone.now()


Tables = tuple[QuerySet, QuerySet]


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
        heal(new_tickets)  # its condition reads a text
        return Ticket.objects.all(), UncountedTicket.objects.all()

    return fill


def contents(tickets: QuerySet) -> list[tuple[Any, ...]]:
    values = tickets.order_by("pk").values_list("pk", "agent", "queue", "closed", "priority", "state", "due")
    return [(*row, due is None) for *row, due in values]


HERS = {"closed": False, "priority": 2}

DECIDED: dict[str, Update] = {
    "equality": lambda q, ann, ben, desk: q.filter(agent=ann, queue=desk, **HERS).update(closed=True),
    "other types": lambda q, ann, ben, desk: q.filter(
        agent=str(ann.pk), queue=str(desk.pk).upper(), closed=0, priority="2"
    ).update(closed=1),
    "as an expression": lambda q, ann, ben, desk: q.filter(agent=ann, queue=desk, **HERS).update(
        closed=Value(True), due=Value(None)
    ),
    "is null": lambda q, ann, ben, desk: q.filter(agent=ann, closed=False, priority=1, due=None).update(due=DAY),
    "not null": lambda q, ann, ben, desk: q.filter(agent=ann, closed=False, priority=1, due__isnull=False).update(
        due=None
    ),
    "not null by negation": lambda q, ann, ben, desk: (
        q.exclude(due=None).filter(agent=ann, closed=False, priority=1).update(due=None)
    ),
    "now": lambda q, ann, ben, desk: q.filter(agent=ann, closed=False, priority=1, due=None).update(due=Now()),
    "nested": lambda q, ann, ben, desk: q.filter(
        Q(Q(agent=ann), Q(Q(queue=desk) & Q(priority=2))), closed=False
    ).update(closed=True),
    "beside an OR": lambda q, ann, ben, desk: q.filter(
        Q(state="new") | Q(due=None), agent=ann, queue=desk, **HERS
    ).update(closed=True),
    "beside a negation": lambda q, ann, ben, desk: (
        q.filter(agent=ann, queue=desk, **HERS).exclude(state="new").update(closed=True)
    ),
    "beside NOT NULL": lambda q, ann, ben, desk: (
        q.filter(priority__isnull=False, **HERS, agent=ann, queue=desk).filter(agent__isnull=False).update(closed=True)
    ),
    "nobody's": lambda q, ann, ben, desk: (
        q.filter(agent=None, closed=False, priority=2).exclude(due=None).update(agent=ben)
    ),
    "owner": lambda q, ann, ben, desk: q.filter(agent=ann, closed=False, priority=2).update(agent=ben),
    "owner by text": lambda q, ann, ben, desk: q.filter(agent=ann, closed=False, priority=2).update(
        agent_id=str(ben.pk)
    ),
    "owner to nobody": lambda q, ann, ben, desk: q.filter(agent=ann, closed=False, priority=2).update(agent=None),
    "owner of rows that do not count": lambda q, ann, ben, desk: q.filter(closed=True).update(agent=ben),
    "as they were": lambda q, ann, ben, desk: q.filter(agent=ann, **HERS).update(closed=False),
    "as they all were": lambda q, ann, ben, desk: q.filter(**HERS).update(closed=False),
    "decided by one part of an OR": lambda q, ann, ben, desk: q.filter(priority=2).update(state="x"),
    "decided by one part of an AND": lambda q, ann, ben, desk: q.filter(closed=True).exclude(due=None).update(due=None),
    "contradiction": lambda q, ann, ben, desk: (
        q.filter(agent=ann, queue=desk, **HERS).filter(closed=True).update(closed=True)
    ),
    "two owners at once": lambda q, ann, ben, desk: (
        q.filter(agent=ann, closed=False, priority=2).filter(agent=ben).update(agent=None)
    ),
}

UNDECIDED: dict[str, Update] = {
    "negation": lambda q, ann, ben, desk: q.exclude(closed=False).filter(agent=ann, queue=desk).update(closed=False),
    "negation of a nullable": lambda q, ann, ben, desk: (
        q.exclude(priority=2).filter(agent=ann, queue=desk, closed=False).update(closed=True)
    ),
    "negated AND": lambda q, ann, ben, desk: (
        q.exclude(closed=False, priority=2).filter(agent=ann, queue=desk).update(closed=True)
    ),
    "negated AND of IS NULL": lambda q, ann, ben, desk: q.filter(
        ~Q(due__isnull=True, hot=True), agent=ann, closed=False, priority=1
    ).update(due=DAY),
    "negated nesting": lambda q, ann, ben, desk: q.filter(
        ~Q(Q(Q(due=None), hot=True), done=None), agent=ann, closed=False, priority=1
    ).update(due=DAY),
    "negated owner": lambda q, ann, ben, desk: q.exclude(agent=ann).filter(queue=desk, **HERS).update(closed=True),
    "twice negated": lambda q, ann, ben, desk: q.filter(
        ~Q(~Q(closed=True, hot=True)), agent=ann, queue=desk, priority=2
    ).update(closed=False),
    "twice negated IS NULL": lambda q, ann, ben, desk: q.filter(
        ~Q(~Q(due__isnull=True)), agent=ann, closed=False, priority=1
    ).update(due=DAY),
    "OR": lambda q, ann, ben, desk: q.filter(Q(closed=False) | Q(hot=True), agent=ann, queue=desk, priority=2).update(
        closed=True
    ),
    "OR at the top": lambda q, ann, ben, desk: q.filter(Q(agent=ann, queue=desk, **HERS) | Q(hot=True)).update(
        closed=True
    ),
    "OR of querysets": lambda q, ann, ben, desk: (
        q.filter(agent=ann, queue=desk, **HERS) | q.filter(agent=ben, queue=desk)
    ).update(closed=True),
    "OR within a negation": lambda q, ann, ben, desk: q.filter(~Q(Q(closed=True) | Q(hot=True)), agent=ann).update(
        closed=True
    ),
    "XOR": lambda q, ann, ben, desk: q.filter(Q(closed=False) ^ Q(hot=True), agent=ann, queue=desk, priority=2).update(
        closed=True
    ),
    "another row's": lambda q, ann, ben, desk: q.filter(parent__closed=False, agent=ann, queue=desk, priority=2).update(
        closed=True
    ),
    "another row's owner": lambda q, ann, ben, desk: q.filter(parent__agent=ann, **HERS, queue=desk).update(
        closed=True
    ),
    "another table": lambda q, ann, ben, desk: q.filter(agent__name="ann", queue=desk, **HERS).update(closed=True),
    "a child's": lambda q, ann, ben, desk: q.filter(children__closed=False, agent=ann, queue=desk, priority=2).update(
        closed=True
    ),
    "rows of a subquery": lambda q, ann, ben, desk: q.filter(
        pk__in=q.filter(closed=False).values("parent"), agent=ann, queue=desk, priority=2
    ).update(closed=True),
    "a condition of a subquery": lambda q, ann, ben, desk: q.filter(
        Exists(q.model.objects.filter(parent=OuterRef("pk"), closed=False)), agent=ann, priority=2
    ).update(closed=True),
    "equality with a subquery": lambda q, ann, ben, desk: q.filter(
        agent=Subquery(Agent.objects.filter(name="ben").values("pk")[:1]), **HERS
    ).update(closed=True),
    "equality with a column": lambda q, ann, ben, desk: q.filter(closed=F("hot"), agent=ann, queue=desk).update(
        closed=True
    ),
    "owner equal to a column": lambda q, ann, ben, desk: q.filter(reviewer=F("agent"), closed=False).update(
        closed=True
    ),
    "equality of an expression": lambda q, ann, ben, desk: (
        q.annotate(p=Coalesce("priority", 2)).filter(p=2, agent=ann, queue=desk, due=DAY).update(closed=True)
    ),
    "equality of a case": lambda q, ann, ben, desk: (
        q.annotate(shut=Case(When(hot=True, then=True), default=F("closed")))
        .filter(shut=False, agent=ann)
        .update(closed=True)
    ),
    "another column": lambda q, ann, ben, desk: q.filter(reviewer=ben, hot=False, **HERS).update(closed=True),
    "a list": lambda q, ann, ben, desk: q.filter(agent__in=[ann, ben], **HERS, queue=desk).update(closed=True),
    "a range": lambda q, ann, ben, desk: q.filter(priority__lte=2, agent=ann, queue=desk, closed=False).update(
        closed=True
    ),
    "a list of keys": lambda q, ann, ben, desk: q.filter(
        pk__in=list(q.order_by("pk").values_list("pk", flat=True)[:20])
    ).update(closed=True),
    "a part of a date": lambda q, ann, ben, desk: q.filter(due__gte=DAY, agent=ann, closed=False, priority=1).update(
        due=None
    ),
    "nothing": lambda q, ann, ben, desk: q.update(closed=True),
    "the owner alone": lambda q, ann, ben, desk: q.filter(agent=ann, queue=desk).update(closed=True),
    "the state alone": lambda q, ann, ben, desk: q.filter(**HERS).update(closed=True),
    "SET of a column": lambda q, ann, ben, desk: q.filter(agent=ann, queue=desk, **HERS).update(closed=F("hot")),
    "SET of a condition": lambda q, ann, ben, desk: q.filter(agent=ann, queue=desk, **HERS).update(closed=Q(hot=True)),
    "SET of a case": lambda q, ann, ben, desk: q.filter(agent=ann, queue=desk, **HERS).update(
        closed=Case(When(hot=True, then=True), default=False)
    ),
    "SET of a sum": lambda q, ann, ben, desk: (
        q.filter(agent=ann, queue=desk, closed=False, priority=1).exclude(due=None).update(priority=F("priority") + 1)
    ),
    "SET of a nullable column": lambda q, ann, ben, desk: q.filter(
        agent=ann, closed=False, priority=1, due=None
    ).update(due=F("done")),
    "SET of a subquery": lambda q, ann, ben, desk: q.filter(agent=ann, **HERS).update(
        agent=Subquery(Agent.objects.filter(name="ben").values("pk"))
    ),
    "SET of the owner to a column": lambda q, ann, ben, desk: q.filter(agent=ann, **HERS).update(agent=F("reviewer")),
    "SET of the owner alone": lambda q, ann, ben, desk: q.filter(**HERS).update(agent=ben),
    "SET of the owner to nobody": lambda q, ann, ben, desk: q.filter(closed=False).update(agent=None),
    "SET of owner and state": lambda q, ann, ben, desk: q.filter(agent=ann).update(agent=ben, closed=True),
    "SET of a text": lambda q, ann, ben, desk: q.filter(queue=desk, priority=1).update(state="new"),
    "equality of a text": lambda q, ann, ben, desk: q.filter(queue=desk, priority=1, state="new").update(state="x"),
    "what a text decides": lambda q, ann, ben, desk: q.filter(queue=desk, priority=1).update(queue=None),
}


def test_one_statement_where_all_is_said(fresh, ann, ben, desk, owners, django_assert_num_queries):
    for case, update in DECIDED.items():
        tickets, uncounted = fresh()
        assert_counted(owners)
        with named(case), django_assert_num_queries(1):
            changed = update(tickets, ann, ben, desk)
        with named(case):
            assert_counted(owners)
            assert changed == update(uncounted, ann, ben, desk)
            assert contents(tickets) == contents(uncounted)


def test_rows_are_asked_where_not_all_is_said(fresh, ann, ben, desk, owners):
    for case, update in UNDECIDED.items():
        tickets, uncounted = fresh()
        assert_counted(owners)
        with named(case):
            changed = update(tickets, ann, ben, desk)
            assert changed > 0
            assert_counted(owners)
            assert changed == update(uncounted, ann, ben, desk)
            assert contents(tickets) == contents(uncounted)


OF_A_SUM: dict[str, Callable[[QuerySet, Agent], int]] = {
    "equality": lambda q, ben: q.filter(weight=7).update(weight=-2),
    "as they were": lambda q, ben: q.filter(weight=7).update(weight=7),
    "other types": lambda q, ben: q.filter(weight="7").update(weight=Value(3)),
    "the owner": lambda q, ben: q.filter(weight=7).update(agent=ben),
    "nothing added": lambda q, ben: q.filter(weight=0).update(weight=9),
    "nothing left": lambda q, ben: q.filter(weight=7).update(weight=0),
}


@pytest.mark.parametrize("case", OF_A_SUM)
def test_one_statement_says_what_a_sum_was_and_becomes(case, ann, ben, owners, django_assert_num_queries):
    tickets = Ticket.objects.bulk_create(Ticket() for _ in range(6))
    weights = [7, 7, 7, 0, -4, 9]
    Watch.objects.bulk_create(Watch(agent=ann, ticket=t, weight=w) for t, w in zip(tickets, weights, strict=True))
    assert_counted(owners)
    with django_assert_num_queries(1):
        assert OF_A_SUM[case](Watch.objects.filter(agent=ann, muted=False), ben)
    assert_counted(owners)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Elsewhere, rows are looked at first.")
def test_one_statement_returns_what_a_sum_was(ann, owners, django_assert_num_queries):
    ticket = Ticket.objects.create()
    Watch.objects.create(agent=ann, ticket=ticket, weight=5)
    for value in (F("weight") * -3, 8):
        with django_assert_num_queries(1):
            assert Watch.objects.filter(agent=ann).update(weight=value) == 1
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
