"""A database that is restored from a backup, while Redis knows what has happened since."""

from collections.abc import Callable

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

import servers
from notifications_counter.counters import unread
from notifications_counter.exceptions import NotInTransaction
from notifications_counter.models import CounterShard, Notification
from tests.backup import save_database
from tests.support import assert_exact, assert_heals, assert_reads, buffer, notify, rows, stored

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def backup(tmp_path) -> Callable[[], Callable[[], None]]:
    """A function that saves the database, and returns another one that restores it."""

    def save() -> Callable[[], None]:
        connection.close()
        try:
            restore = save_database(tmp_path / "backup")
        except servers.Missing as reason:
            pytest.skip(f"missing: {reason}")

        def close_and_restore() -> None:
            connection.close()
            restore()

        return close_and_restore

    return save


@pytest.mark.parametrize("early", [False, True], ids=["at once", "after the site has gone on"])
def test_restored_from_a_backup(healed, alice, bob, make_user, backup, early):
    carol = make_user()
    notify(alice, 3)
    restore = backup()
    notify(bob, 2)  # flushed
    Notification.objects.filter(user=alice).mark_as_read()
    Notification.objects.create(user=carol, title="not flushed")
    unread.counts([alice, bob, carol])
    restore()
    assert [rows(user) for user in (alice, bob, carol)] == [3, 0, 0]
    assert list(unread.counts([alice, bob, carol]).values()) == [0, 2, 1]  # what Redis remembers
    if early:
        unread.heal()
        unread.flush()
        Notification.objects.create(user=bob, title="after the restore")
    call_command("recount_counters", "--restored")
    assert_reads(alice, bob, carol)
    assert_exact(alice, bob, carol)


def test_a_restore_that_took_a_flushed_batch_away_is_noticed(healed, alice, bob, backup, caplog):
    notify(alice, 3)
    restore = backup()
    notify(bob, 2)
    Notification.objects.filter(user=alice).mark_as_read()
    restore()
    assert_heals(alice, bob)
    assert [stored(user) for user in (alice, bob)] == [3, 0]
    assert [record for record in caplog.records if "the database went back in time" in record.getMessage()]


def test_what_was_cut_before_a_restore_is_not_written_after_it(healed, alice, backup):
    """Its number is the next one, and the batch before is another one now."""
    notify(alice)
    restore = backup()
    notify(alice, 2)
    Notification.objects.create(user=alice, title="x")
    cut = buffer().upkeep.cut(1, buffer().upkeep.status().finished)
    restore()
    assert unread.flush().batches == 0
    CounterShard.objects.filter(counter="unread").update(finished=cut.batch - 1, batch_id="another")
    assert unread.flush().batches == 0
    assert stored(alice) == 3
    assert_heals(alice)


def test_a_restore_is_of_everyone(healed, alice):
    for option in (["--dry-run"], ["--owner", str(alice.pk)]):
        with pytest.raises(CommandError, match="--restored recounts and corrects everyone"):
            call_command("recount_counters", "--restored", *option)


def test_no_invalidate_inside_a_transaction(alice):
    with transaction.atomic(), pytest.raises(NotInTransaction):
        unread.invalidate()
