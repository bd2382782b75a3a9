"""What the packages do to counted tables by their own means. Run by test_other_packages.py."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.db import connection, transaction
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from import_export.resources import ModelResource
from notifications.models import Notification
from notifications.signals import notify
from simple_history.utils import bulk_create_with_history, bulk_update_with_history
from tablib import Dataset

from notifications_counter.counters import Counter, all_counters
from notifications_counter.writes.door import install
from tests.support import entries

from .counters import changes, inbox, open_jobs
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


def assert_stored(counter: Counter) -> None:
    """Once healed and flushed, the totals are COUNT(*) as well."""
    with entries(HEAL_AFTER=0):
        counter.heal()
    counter.flush()
    stored = dict(counter.totals.objects.values_list("pk", counter.field))
    assert {key: count for key, count in stored.items() if count} == truth(counter)


@contextmanager
def counted(counter: Counter, users: list[Any], doubt: bool = False) -> Iterator[None]:
    """What happens here is counted."""
    keys = [user.pk for user in users]
    counter.counts(keys)
    yield
    assert counter.counts(keys) == {key: truth(counter).get(key, 0) for key in keys}
    if doubt:
        with entries(HEAL_AFTER=0):
            counter.heal()
    assert [shard.status.intents for shard in counter.status()] == [0]
    assert counter.counts(keys) == {key: truth(counter).get(key, 0) for key in keys}


# ---------------------------------------------------------------------------------------------- django-notifications-hq
def test_notifications_hq(users: list[Any]) -> None:
    ann, ben, cem = users
    theirs = Notification.objects
    steps = [
        lambda: notify.send(ben, recipient=ann, verb="wrote", extra={"a": 1}),
        lambda: notify.send(ben, recipient=[ann, cem], verb="wrote", target=cem),
        lambda: notify.send(ann, recipient=type(ann).objects.all(), verb="spoke"),
        lambda: ann.notifications.first().mark_as_read(),
        lambda: ann.notifications.read().first().mark_as_unread(),
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
    ]
    for step in steps:
        with counted(inbox, [ann, cem]):
            step()
    assert truth(inbox)
    assert_stored(inbox)


def test_notifications_hq_rolled_back(users: list[Any]) -> None:
    ann, ben, _ = users
    notify.send(ben, recipient=ann, verb="wrote")
    with counted(inbox, users), transaction.atomic():
        notify.send(ben, recipient=ann, verb="wrote")
        ann.notifications.mark_all_as_read()
        assert inbox.count(ann) == 0
        transaction.set_rollback(True)
    assert inbox.count(ann) == 1
    assert_stored(inbox)


# ------------------------------------------------------------------------------------------------ django-simple-history
def test_simple_history(users: list[Any]) -> None:
    ann, ben, _ = users

    def close_all() -> None:
        jobs = list(Job.objects.all())
        for job in jobs:
            job.done = True
        bulk_update_with_history(jobs, Job, ["done"])

    def revert() -> None:
        Job.history.filter(number=2, done=False).latest().instance.save()

    steps = [
        lambda: Job.objects.create(worker=ann, number=1),
        lambda: bulk_create_with_history([Job(worker=ben, number=n) for n in (2, 3)], Job),
        lambda: Job.objects.get(number=1).delete(),
        lambda: Job.objects.create(worker=ben, number=1),
        close_all,
        revert,
        lambda: Job.objects.filter(number=2).update(worker=ann, done=False),
        lambda: Job.objects.all().delete(),
        lambda: Job.history.filter(done=True).delete(),
        lambda: Job.history.update(done=True),
    ]
    for step in steps:
        with counted(open_jobs, users), counted(changes, users):
            step()
    assert_stored(open_jobs)
    assert_stored(changes)


# ------------------------------------------------------------------------------------------------- django-import-export
@pytest.mark.parametrize("bulk", [False, True], ids=["rows", "bulk"])
def test_import_export(users: list[Any], bulk: bool) -> None:
    ann, ben, _ = users

    class Jobs(ModelResource):
        class Meta:
            model = Job
            import_id_fields = ["number"]
            fields = ["number", "worker", "done"]
            use_bulk = bulk
            batch_size = 2
            skip_unchanged = not bulk
            skip_diff = True

        def for_delete(self, row: Any, instance: Any) -> bool:
            return row["done"] == "gone"

    def import_(*rows: tuple[int, Any, Any]) -> None:
        data = Dataset(*((n, str(user.pk), done) for n, user, done in rows), headers=["number", "worker", "done"])
        Jobs().import_data(data, raise_errors=True)

    with counted(open_jobs, users):
        import_((1, ann, 0), (2, ann, 1), (3, ben, 0))
    with counted(open_jobs, users):
        import_((1, ben, 0), (2, ann, 0), (4, ben, 1), (5, ben, 0))
    with counted(open_jobs, users):
        import_((1, ben, "gone"), (2, ann, 1), (6, ann, 0))
    with counted(open_jobs, users):
        Jobs().import_data(Dataset((7, str(ann.pk), 0), headers=["number", "worker", "done"]), dry_run=True)
    assert open_jobs.counts(users) == {ann.pk: 1, ben.pk: 2, users[2].pk: 0}
    assert_stored(open_jobs)


# ------------------------------------------------------------------------------------------------ django-postgres-extra
only_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="It is for PostgreSQL.")


@only_postgresql
def test_postgres_extra(users: list[Any]) -> None:
    from .counters import free_items
    from .models import Item

    ann, ben, cem = (user.pk for user in users)
    steps = [
        lambda: Item.objects.create(keeper_id=ann, number=1),
        lambda: Item.objects.insert(keeper_id=ben, number=2),
        lambda: Item.objects.bulk_insert([{"keeper_id": cem, "number": n} for n in (3, 4)]),
        lambda: Item.objects.filter(number=1).update(sold=True),
        lambda: Item.objects.filter(number=3).delete(),
    ]
    for step in steps:
        with counted(free_items, users):
            step()
    assert_stored(free_items)


@only_postgresql
def test_upserts_of_postgres_extra_need_a_recount(users: list[Any]) -> None:
    """It executes by itself what it compiles, as raw SQL is executed."""
    from psqlextra.types import ConflictAction

    from .counters import free_items
    from .models import Item

    ann, ben, cem = (user.pk for user in users)
    Item.objects.create(keeper_id=ann, number=1)
    assert free_items.counts([ann, ben, cem]) == {ann: 1, ben: 0, cem: 0}  # and cached
    Item.objects.on_conflict(["number"], ConflictAction.NOTHING).insert(keeper_id=cem, number=2)
    Item.objects.upsert(["number"], {"keeper_id": ben, "number": 1})
    assert free_items.counts([ann, ben, cem]) == {ann: 1, ben: 0, cem: 0}
    assert free_items.recount([ann, ben, cem]).wrong == 3
    assert free_items.counts([ann, ben, cem]) == {ann: 0, ben: 1, cem: 1}
    assert_stored(free_items)


# ------------------------------------------------------------------------------------------------------ django-cachalot
@pytest.mark.skipif(not settings.CACHALOT, reason="Queries are not cached here.")
def test_cachalot(users: list[Any]) -> None:
    ann, ben, _ = users
    mine = Job.objects.filter(worker=ann, done=False)

    def is_fresh() -> None:
        assert mine.count() == truth(open_jobs).get(ann.pk, 0)
        with CaptureQueriesContext(connection) as again:
            mine.count()
        assert len(again) == 0

    steps = [
        lambda: Job.objects.create(worker=ann, number=1),
        lambda: Job.objects.bulk_create([Job(worker=ann, number=n) for n in (2, 3, 4)]),
        lambda: Job.objects.filter(number=1).update(done=True),
        lambda: mine.filter(number=2).update(done=True),
        lambda: mine.filter(Q(number=3) | Q(number=9)).update(worker=ben),
        lambda: Job.objects.filter(number=4).delete(),
        lambda: Job.objects.filter(worker=ann).update(done=False),
    ]
    is_fresh()
    for step in steps:
        with counted(open_jobs, users):
            step()
            is_fresh()
    assert_stored(open_jobs)


@pytest.mark.skipif(not settings.CACHALOT, reason="Queries are not cached here.")
def test_cachalot_is_gone(users: list[Any]) -> None:
    """It puts back what it found: our doors, or what was there before them. A check tells."""
    from cachalot.monkey_patch import patch, unpatch

    unpatch()
    try:
        if settings.CACHALOT == "last":
            with counted(open_jobs, users):
                Job.objects.create(worker=users[0], number=1)
            assert run_checks() == []
        else:
            assert [message.id for message in run_checks() if "notifications_counter" in message.id]
    finally:
        patch()
        install()
