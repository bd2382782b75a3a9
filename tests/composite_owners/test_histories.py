"""Random histories, compared with GROUP BY."""

import random
from collections.abc import Callable
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from notifications_counter.counters import Counter

from .counters import points, unread_by_app, unseen_by_app, votes
from .models import CourseNotification, Vote
from .support import TEXTS, assert_counted, assert_stored

Step = Callable[[], Any]


def play(steps: list[Step], *counters: Counter) -> None:
    """Random steps, some in transactions, of which some are rolled back; flushed and recounted now and then."""
    keep = [lambda: [counter.flush() for counter in counters], lambda: [counter.heal() for counter in counters]]
    for _ in range(4):
        for _ in range(4):
            random.choice(steps)()
        with transaction.atomic():
            for _ in range(3):
                random.choice(steps)()
            assert_counted(*counters)
            if random.random() < 0.3:
                transaction.set_rollback(True)
        random.choice(keep)()
        assert_counted(*counters)
    assert_stored(*counters)


def some(model: Any) -> Any:
    """Some of the rows."""
    pks = list(model.objects.values_list("pk", flat=True))
    return model.objects.filter(pk__in=random.sample(pks, min(len(pks), 4)))


def test_course_notifications_by_app_seen_and_read_apart(make_user) -> None:
    users = [make_user() for _ in range(2)]

    def notification() -> CourseNotification:
        return CourseNotification(user=random.choice(users), app_name=random.choice(TEXTS))

    def mark(column: str) -> int:
        rows = CourseNotification.objects.filter(user=random.choice(users), app_name=random.choice(TEXTS))
        return rows.update(**{column: timezone.now()})

    play(
        [
            lambda: notification().save(),
            lambda: CourseNotification.objects.bulk_create(notification() for _ in range(20)),
            lambda: mark("last_seen"),
            lambda: mark("last_read"),
            lambda: some(CourseNotification).update(app_name=random.choice(TEXTS)),
            lambda: some(CourseNotification).delete(),
        ],
        unseen_by_app,
        unread_by_app,
    )


def test_three_columns_of_integers() -> None:
    def vote() -> Vote:
        shop = random.choice([1, 2, 2**31 - 1, -5, None])
        item = random.choice([1, 11, 2**63 - 1, -(2**63)])
        return Vote(shop=shop, item=item, stars=random.randint(0, 5), points=random.choice([None, -7, 0, 3]))

    play(
        [
            lambda: vote().save(),
            lambda: Vote.objects.bulk_create(vote() for _ in range(20)),
            lambda: some(Vote).update(hidden=True),
            lambda: Vote.objects.filter(shop=1, item=11, stars=0).update(hidden=True),
            lambda: some(Vote).update(stars=random.randint(0, 5)),
            lambda: some(Vote).update(points=F("points") - 4),
            lambda: Vote.objects.filter(shop=1, item=11, hidden=False, points=3).update(points=-3),
        ],
        votes,
        points,
    )
