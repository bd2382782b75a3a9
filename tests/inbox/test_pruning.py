import re
from contextlib import nullcontext
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from notifications_counter.exceptions import NotInTransaction
from notifications_counter.inbox import retention
from notifications_counter.inbox.retention import prune
from notifications_counter.models import Notification
from tests.support import OtherConnection, assert_exact, execute

from ..management.test_commands import run
from ..writes.test_transactions import by_hand

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)


def notify(user, *days: int, read: bool = False) -> None:
    """A notification for each of these ages."""
    now = timezone.now()
    Notification.objects.bulk_create(
        Notification(user=user, title=str(age), created_at=now - age * DAY, read_at=now if read else None)
        for age in days
    )


def left(user) -> list[int]:
    """The ages of what a user still has, the newest first."""
    newest = Notification.objects.for_user(user).order_by("-created_at", "-pk")
    return [int(title) for title in newest.values_list("title", flat=True)]


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 2)


@pytest.mark.parametrize(
    ("arguments", "of_alice", "of_bob"),
    [
        (["--older-than=90d"], [1, 2, 89], []),
        (["--older-than=90d", "--read-only"], [1, 2, 89, 91, 100], [91, 92, 93]),
        (["--older-than=90d", "--keep-newest=2"], [1, 2, 89], [91, 92]),
        (["--keep-newest=2"], [1, 2], [91, 92]),
    ],
    ids=str,
)
def test_what_is_deleted(healed, alice, bob, small_batches, arguments, of_alice, of_bob):
    notify(alice, 100, 91, 89, 1)
    notify(alice, 95, 2, read=True)
    notify(bob, 91, 92, 93)
    before = left(alice), left(bob)
    deleted = sum(map(len, before)) - len(of_alice) - len(of_bob)
    (line,) = run("prune_notifications", *arguments, "--dry-run")
    assert re.match(f"{deleted} notifications? would be deleted, ", line)
    assert (left(alice), left(bob)) == before
    assert re.match(f"{deleted} notifications? deleted, ", run("prune_notifications", *arguments)[-1])
    assert (left(alice), left(bob)) == (of_alice, of_bob)
    assert_exact(alice, bob)


def test_each_batch_is_a_transaction_of_its_own(healed, alice, small_batches):
    notify(alice, 100, 99, 98, 97)
    seen = []
    with OtherConnection() as other:
        prune(90 * DAY, progress=lambda deleted: seen.append((deleted, other.run(Notification.objects.count))))
    assert seen == [(2, 2), (4, 0)]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite locks the whole database.")
def test_what_others_have_locked_is_left(healed, alice, small_batches):
    notify(alice, 100, 99, 98)
    with OtherConnection() as other, transaction.atomic():
        Notification.objects.filter(title="99").update(read_at=timezone.now())
        result = other.run(prune, 90 * DAY)
    assert (result.deleted, result.in_use) == (2, 1)
    assert left(alice) == [99]
    assert_exact(alice, in_doubt=None)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="Its triggers can't raise such errors.")
@pytest.mark.parametrize(("state", "number"), [("40001", 1213), ("57014", 3024)], ids=["conflict", "time limit"])
def test_a_deletion_that_gives_way_is_left_for_the_next_run(healed, alice, state, number):
    notify(alice, 100)
    what = f"SIGNAL SQLSTATE '{state}' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'refused'"
    if connection.vendor == "postgresql":
        body = f"BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END"
        execute(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
        what = "EXECUTE FUNCTION refuse()"
    execute(f"CREATE TRIGGER refuse BEFORE DELETE ON {Notification._meta.db_table} FOR EACH ROW {what}")
    try:
        with nullcontext() if state == "40001" else pytest.raises(OperationalError):
            assert (prune(90 * DAY).deleted, left(alice)) == (0, [100])
    finally:
        execute("DROP FUNCTION refuse CASCADE" if connection.vendor == "postgresql" else "DROP TRIGGER refuse")
    assert prune(90 * DAY).deleted == 1
    assert_exact(alice, in_doubt=None)


def test_what_becomes_unread_meanwhile_is_left(healed, alice, monkeypatch):
    notify(alice, 100, 99, read=True)
    delete = retention._delete

    def after_another_write(*args):
        with OtherConnection() as other:
            other.run(Notification.objects.filter(title="99").mark_as_unread)
        return delete(*args)

    monkeypatch.setattr(retention, "_delete", after_another_write)
    result = prune(90 * DAY, read_only=True)
    assert (result.deleted, result.in_use) == (1, 1)
    assert left(alice) == [99]
    assert_exact(alice)


def test_nothing_is_deleted_that_would_not_be_committed(healed, alice):
    notify(alice, 5)
    with by_hand("autocommit off", "ROLLBACK"), pytest.raises(NotInTransaction):
        prune(DAY)
    with transaction.atomic():
        assert prune(DAY).deleted == 1
    assert_exact(alice)
