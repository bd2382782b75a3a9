"""A database that is restored from a backup, while Redis knows what has happened since."""

import pytest
from django.core.management import call_command
from django.db import connection

import servers
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.backup import save_database
from tests.support import assert_exact, assert_reads, notify, rows, stored

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_backup_that_is_restored(healed, alice, bob, make_user, tmp_path):
    """And nobody says so before the site has gone on."""
    carol = make_user()
    notify(alice, 3)
    connection.close()
    try:
        restore = save_database(tmp_path / "backup")
    except servers.Missing as reason:
        pytest.skip(f"missing: {reason}")
    notify(bob, 2)  # flushed
    Notification.objects.filter(user=alice).mark_as_read()
    Notification.objects.create(user=carol, title="not flushed")
    unread.counts([alice, bob, carol])
    connection.close()
    restore()
    assert [rows(user) for user in (alice, bob, carol)] == [3, 0, 0]
    assert list(unread.counts([alice, bob, carol]).values()) == [0, 2, 1]  # what Redis remembers
    unread.heal()
    unread.flush()
    Notification.objects.create(user=bob, title="after the restore")
    call_command("recount_counters", "--restored")
    assert_reads(alice, bob, carol)
    assert [stored(user) for user in (alice, bob, carol)] == [3, 1, 0]
    assert_exact(alice, bob, carol)
