import signal
import subprocess
import sys
from concurrent.futures import Future
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.inbox import retention
from notifications_counter.inbox.retention import prune
from notifications_counter.models import Notification
from tests.support import (
    PATIENCE,
    OtherConnection,
    assert_exact,
    assert_heals,
    rows,
    session,
    wait_until,
    waits,
)

from ..management.test_commands import run

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


# -------------------------------------------------------------------------------------------------- what is deleted
def test_what_is_old_is_deleted(healed, alice, bob, small_batches):
    notify(alice, 100, 91, 89, 1)
    notify(alice, 95, 2, read=True)
    notify(bob, 90, 0)
    lines = run("prune_notifications", "--older-than", "90d")
    assert lines[-1].startswith("4 notifications deleted, ")
    assert (left(alice), left(bob)) == ([1, 2, 89], [0])
    assert_exact(alice, bob)


@pytest.mark.parametrize(
    ("age", "kept"), [("47h", [1]), ("49h", [1, 2]), ("1w", [1, 2]), ("2w", [1, 2, 8]), ("0h", [])]
)
def test_units(healed, alice, age, kept):
    notify(alice, 8, 2, 1)
    run("prune_notifications", "--older-than", age)
    assert left(alice) == kept


def test_unread_ones_can_be_left(healed, alice, small_batches):
    notify(alice, 100, 99, 98, 97)
    notify(alice, 96, 95, 94, 1, read=True)
    run("prune_notifications", "--older-than", "90d", "--read-only")
    assert left(alice) == [1, 97, 98, 99, 100]
    assert unread.count(alice) == 4
    assert_exact(alice)


def test_the_newest_can_be_left(healed, alice, bob, small_batches):
    notify(alice, 100, 99, 98, 97, 96)
    notify(bob, 100, 1, 99)
    run("prune_notifications", "--older-than", "90d", "--keep-newest", "2")
    assert (left(alice), left(bob)) == ([96, 97], [1, 99])
    assert_exact(alice, bob)


def test_the_newest_are_told_apart_by_their_keys_if_they_were_created_at_once(healed, alice):
    now = timezone.now() - DAY
    Notification.objects.bulk_create(Notification(user=alice, title="x", created_at=now) for _ in range(5))
    pks = sorted(Notification.objects.values_list("pk", flat=True))
    run("prune_notifications", "--keep-newest", "2")
    assert sorted(Notification.objects.values_list("pk", flat=True)) == pks[-2:]


def test_dry_run_counts(healed, alice, small_batches):
    notify(alice, 100, 99, 98, 1)
    waits = []
    assert prune(90 * DAY, dry_run=True, wait=waits.append).deleted == 3
    (line,) = run("prune_notifications", "--older-than", "90d", "--dry-run")
    assert line.startswith("3 notifications would be deleted, ")
    assert left(alice) == [1, 98, 99, 100]
    assert waits == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "pass --older-than, --keep-newest, or both"),
        (["--read-only"], "pass --older-than, --keep-newest, or both"),
        (["--older-than", "90"], "'90' is not an age. Pass a number of hours, days or weeks"),
        (["--older-than", "-1d"], "argument --older-than"),
        (["--older-than", "999999d"], "is not an age"),
        (["--keep-newest", "0"], "0 is not at least 1"),
        (["--older-than", "90d", "--database", "nowhere"], "invalid choice: 'nowhere'"),
    ],
)
def test_what_makes_no_sense_is_refused(healed, alice, arguments, error):
    notify(alice, 100)
    with pytest.raises(CommandError, match=error):
        call_command("prune_notifications", *arguments)
    assert left(alice) == [100]


def test_progress_is_shown(healed, alice, small_batches):
    notify(alice, 100, 99, 98)
    lines = run("prune_notifications", "--older-than", "90d", verbosity=2)
    assert lines[:2] == ["notifications deleted: 2", "notifications deleted: 3"]


# ------------------------------------------------------------------------------------------------------------ gently
def test_it_rests_as_long_as_it_works(healed, alice, small_batches):
    notify(alice, 100, 99, 98, 97, 96)
    waits = []
    result = prune(90 * DAY, wait=waits.append)
    assert len(waits) == 2
    assert all(0 < seconds < result.seconds for seconds in waits)


def test_each_batch_is_a_transaction_of_its_own(healed, alice, small_batches):
    notify(alice, 100, 99, 98, 97)
    seen = []
    with OtherConnection() as other:
        prune(90 * DAY, progress=lambda deleted: seen.append((deleted, other.run(Notification.objects.count))))
    assert seen == [(2, 2), (4, 0)]


@pytest.mark.skipif(connection.vendor != "mysql", reason="The others skip what is locked.")
def test_a_deadlock_leaves_the_batch(healed, alice, bob, monkeypatch):
    """Another transaction locks the rows by an index, so it has their entries of it when it meets our locks. MariaDB
    11.8 has them both wait in one order."""
    notify(alice, 100, 99)
    notify(bob, *[1] * 50)
    delete = QuerySet.delete

    def mark_as_read():
        with transaction.atomic():
            Notification.objects.for_user(bob).mark_as_read()  # more work than ours, so ours is the one to give way
            Notification.objects.for_user(alice).mark_as_read()

    with OtherConnection() as other:
        reader = other.run(session)

        def delete_when_the_other_waits(rows: QuerySet) -> tuple[int, dict[str, int]]:
            reads.append(other.start(mark_as_read))
            wait_until(lambda: waits(reader))
            return delete(rows)

        monkeypatch.setattr(QuerySet, "delete", delete_when_the_other_waits)
        reads: list[Future] = []
        result = prune(90 * DAY)
        reads[0].result(PATIENCE)
    assert (result.deleted, result.in_use) in {(0, 2), (2, 0)}
    assert left(alice) == ([] if result.deleted else [99, 100])
    assert_exact(alice, bob)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite locks the whole database.")
def test_what_others_have_locked_is_left(healed, alice, small_batches):
    notify(alice, 100, 99, 98)
    with OtherConnection() as other, transaction.atomic():
        Notification.objects.filter(title="99").update(read_at=timezone.now())
        result = other.run(prune, 90 * DAY)
    assert (result.deleted, result.in_use) == (2, 1)
    assert left(alice) == [99]
    assert_exact(alice, in_doubt=None)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite locks the whole database.")
def test_what_others_change_at_once_is_left(healed, alice):
    """Above READ COMMITTED, such rows cannot be locked."""
    notify(alice, 100, 99)
    if connection.vendor == "mysql":
        levels = ["SESSION innodb_snapshot_isolation = {}", "SESSION TRANSACTION ISOLATION LEVEL {}"]
        new, usual = ("ON", "REPEATABLE READ"), ("DEFAULT", "READ COMMITTED")
    else:
        levels, new, usual = ["default_transaction_isolation = '{}'"], ["repeatable read"], ["read committed"]

    def lock_after_another_write(execute, sql, params, many, context):
        if "FOR UPDATE" in sql:
            rows(alice)  # the transaction sees what there is now
            other.run(Notification.objects.for_user(alice).filter(title="99").mark_as_read)
        return execute(sql, params, many, context)

    with OtherConnection() as other, connection.cursor() as cursor:
        for level, value in zip(levels, new, strict=True):
            cursor.execute(f"SET {level.format(value)}")
        with connection.execute_wrapper(lock_after_another_write):
            result = prune(90 * DAY)
        for level, value in zip(levels, usual, strict=True):
            cursor.execute(f"SET {level.format(value)}")
    assert (result.deleted, result.in_use) == (0, 2)
    assert_exact(alice)


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


def test_where_nothing_would_be_committed_nothing_is_deleted(healed, alice):
    notify(alice, 100)
    transaction.set_autocommit(False)
    try:
        assert prune(90 * DAY, dry_run=True).deleted == 1
        with pytest.raises(CommandError, match="Switch autocommit on"):
            run("prune_notifications", "--older-than", "90d")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert_exact(alice)


# -------------------------------------------------------------------------------------------------------- interrupted
@pytest.fixture
def pruning(child_environment):
    """Starts the command in a process of its own, with a step at which it waits for a signal."""
    code = (
        "import time, django; django.setup()\n"
        "from django.core.management import call_command\n"
        "from notifications_counter.inbox import retention\n"
        "retention.BATCH = 2\n"
        "{fault}\n"
        "call_command('prune_notifications', '--older-than', '90d')"
    )
    processes = []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    def start(fault: str) -> subprocess.Popen:
        command = [sys.executable, "-c", code.format(fault=fault)]
        processes.append(subprocess.Popen(command, env=child_environment, **pipes))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


IN_THE_TRANSACTION = """
from django.db.models.query import QuerySet
real, calls = QuerySet.delete, []
def delete_and_wait(self):
    result = real(self)
    calls.append(1)
    if len(calls) == 2:
        print('deleted', flush=True)
        time.sleep(60)
    return result
QuerySet.delete = delete_and_wait
"""


BETWEEN_TWO_BATCHES = """
from notifications_counter.management.console import Stop
wait = Stop.wait
def wait_for_long(self, seconds):
    print('resting', flush=True)
    wait(self, 60)
Stop.wait = wait_for_long
"""


def test_killed_in_a_batch_it_goes_on_where_it_was(healed, alice, bob, pruning, small_batches):
    notify(alice, 100, 99, 98)
    notify(bob, 97, 96, 1)
    process = pruning(IN_THE_TRANSACTION)
    assert process.stdout.readline() == "deleted\n"
    process.kill()
    process.wait()
    assert left(alice) == [98]
    assert left(bob) == [1, 96, 97]
    assert [unread.count(user) for user in (alice, bob)] == [rows(user) for user in (alice, bob)]

    def pruned() -> bool:  # the server may still have the locks of the killed process for a moment
        prune(90 * DAY)
        return (left(alice), left(bob)) == ([], [1])

    wait_until(pruned)
    assert_heals(alice, bob)


def test_a_signal_ends_it_between_two_batches(healed, alice, pruning):
    notify(alice, 100, 99, 98, 97, 96)
    process = pruning(BETWEEN_TWO_BATCHES)
    assert process.stdout.readline() == "resting\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "2 notifications deleted, " in out
    assert out.splitlines()[-1] == "Stopped. Run the command again to continue."
    assert left(alice) == [96, 97, 98]
    assert_exact(alice)
    run("prune_notifications", "--older-than", "90d")
    assert left(alice) == []
