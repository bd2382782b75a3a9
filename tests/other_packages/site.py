"""What the packages do to counted tables by their own means. Run by test_other_packages.py."""

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.db import connection, transaction
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from notifications.models import Notification
from notifications.signals import notify

from notifications_counter.counters import Counter, all_counters
from notifications_counter.writes.door import install
from tests.support import entries

from .counters import inbox, open_jobs
from .models import Job

pytestmark = pytest.mark.django_db(transaction=True)


def truth(counter: Counter) -> dict[Any, int]:
    """COUNT(*) for each owner, asked by hand: no cache of queries stands in between."""
    flag, params = (
        counter.source._base_manager.filter(counter.q).values_list(counter.owner_attnames[0]).query.sql_with_params()
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM ({flag}) AS counted", params)
        found = [counter.key_fields[0].to_python(key) for (key,) in cursor.fetchall()]
    return {key: found.count(key) for key in found}


@pytest.fixture
def users(make_user: Any) -> list[Any]:
    for counter in all_counters():
        counter.heal()
    return [make_user() for _ in range(3)]


def assert_counted(counter: Counter, users: list[Any], *steps: Callable[[], Any]) -> None:
    """Each of these steps is counted, and all of them are flushed."""
    keys = [user.pk for user in users]
    counter.counts(keys)  # and caches them
    for step in steps:
        step()
        assert counter.counts(keys) == {key: truth(counter).get(key, 0) for key in keys}
        assert [shard.status.intents for shard in counter.status()] == [0]
    with entries(HEAL_AFTER=0):
        counter.heal()
    counter.flush()
    stored = dict(counter.totals.objects.values_list("pk", counter.field))
    assert {key: count for key, count in stored.items() if count} == truth(counter)


# ---------------------------------------------------------------------------------------------- django-notifications-hq
def test_notifications_hq(users: list[Any]) -> None:
    ann, ben, cem = users
    theirs = Notification.objects

    def roll_back() -> None:
        with transaction.atomic():
            notify.send(ben, recipient=ann, verb="wrote")
            ann.notifications.mark_all_as_read()
            assert inbox.count(ann) == 0
            transaction.set_rollback(True)

    assert_counted(
        inbox,
        [ann, cem],
        lambda: notify.send(ben, recipient=ann, verb="wrote", extra={"a": 1}),
        lambda: notify.send(ben, recipient=[ann, cem], verb="wrote", target=cem),
        lambda: notify.send(ann, recipient=type(ann).objects.all(), verb="spoke"),
        roll_back,
        lambda: ann.notifications.first().mark_as_read(),
        lambda: ann.notifications.mark_all_as_read(),
        lambda: theirs.mark_all_as_unread(recipient=ann),
        lambda: theirs.unread().mark_all_as_read(ann),
        lambda: theirs.filter(verb="spoke").mark_all_as_deleted(),
        lambda: theirs.mark_all_as_unread(),
        lambda: theirs.deleted().mark_all_as_active(recipient=cem),
        lambda: theirs.mark_as_sent(),
        lambda: ann.notifications.unread()[0].delete(),
        lambda: cem.notifications.unread().delete(),
        lambda: ben.delete(),
    )
    assert truth(inbox)


# ------------------------------------------------------------------------------------------------ django-postgres-extra
@pytest.mark.skipif(connection.vendor != "postgresql", reason="It is for PostgreSQL.")
def test_postgres_extra(users: list[Any]) -> None:
    """It executes by itself what it compiles for an upsert, as raw SQL is executed: that needs a recount."""
    from psqlextra.types import ConflictAction

    from .counters import free_items
    from .models import Item

    ann, ben, cem = (user.pk for user in users)
    assert_counted(
        free_items,
        users,
        lambda: Item.objects.create(keeper_id=ann, number=1),
        lambda: Item.objects.insert(keeper_id=ben, number=2),
        lambda: Item.objects.bulk_insert([{"keeper_id": cem, "number": n} for n in (3, 4)]),
        lambda: Item.objects.filter(number=3).update(sold=True),
        lambda: Item.objects.filter(number=2).delete(),
    )
    Item.objects.on_conflict(["number"], ConflictAction.NOTHING).insert(keeper_id=cem, number=2)
    Item.objects.upsert(["number"], {"keeper_id": ben, "number": 1})
    assert free_items.counts(users) == {ann: 1, ben: 0, cem: 1}
    assert free_items.recount(users).wrong == 3
    assert free_items.counts(users) == {ann: 0, ben: 1, cem: 2}


# ------------------------------------------------------------------------------------------------------ django-cachalot
needs_cachalot = pytest.mark.skipif(not settings.CACHALOT, reason="Queries are not cached here.")


@needs_cachalot
def test_cachalot(users: list[Any]) -> None:
    ann, ben, _ = users
    mine = Job.objects.filter(worker=ann, done=False)

    def then_fresh(step: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            step()
            assert mine.count() == truth(open_jobs).get(ann.pk, 0)
            with CaptureQueriesContext(connection) as again:
                mine.count()
            assert len(again) == 0

        return run

    steps = [
        lambda: Job.objects.create(worker=ann, number=1),
        lambda: Job.objects.bulk_create([Job(worker=ann, number=n) for n in (2, 3, 4)]),
        lambda: Job.objects.filter(number=1).update(done=True),
        lambda: mine.filter(number=2).update(done=True),
        lambda: mine.filter(Q(number=3) | Q(number=9)).update(worker=ben),
        lambda: Job.objects.filter(number=4).delete(),
        lambda: Job.objects.filter(worker=ann).update(done=False),
    ]
    assert_counted(open_jobs, users, *map(then_fresh, steps))


@needs_cachalot
def test_cachalot_is_gone(users: list[Any]) -> None:
    """It puts back what it found: our doors, or what was there before them. A check tells."""
    from cachalot.monkey_patch import patch, unpatch

    unpatch()
    try:
        if settings.CACHALOT == "last":
            assert_counted(open_jobs, users, lambda: Job.objects.create(worker=users[0], number=1))
            assert run_checks() == []
        else:
            assert [message.id for message in run_checks() if "notifications_counter" in message.id]
    finally:
        patch()
        install()
