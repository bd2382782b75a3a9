"""A database that is restored from a backup, while Redis knows what has happened since; totals that came from
elsewhere; and the history that tells of all that."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection

import servers
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.upkeep.history import history
from tests.backup import save_database
from tests.support import assert_exact, assert_reads, notify, rows, stored, unheard

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def backup(tmp_path: Path) -> Callable[[], Callable[[], None]]:
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


def test_a_backup_that_is_restored(healed, alice, bob, make_user, backup):
    """And nobody says so before the site has gone on."""
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
    unread.heal()
    unread.flush()
    Notification.objects.create(user=bob, title="after the restore")
    call_command("recount_counters", "--restored")
    assert_reads(alice, bob, carol)
    assert [stored(user) for user in (alice, bob, carol)] == [3, 1, 0]
    assert_exact(alice, bob, carol)


def test_the_history(alice, monkeypatch):
    """It tells of all but flushes, and is bounded."""
    unread.heal()
    notify(alice)
    unheard(Notification.objects.create, user=alice, title="x")
    unread.recount([alice], dry_run=True)
    unread.recount([alice])
    unread.invalidate()
    events = history.oldest()
    assert [event["type"] for event in events] == [
        "declared",
        "recovery",
        "walked",
        "recount",
        "mismatched",
        "recovery",
    ]
    assert {event["counter"] for event in events} == {"unread"}
    assert (events[3]["owners"], events[3]["wrong"]) == (1, 1)
    monkeypatch.setattr("notifications_counter.upkeep.history.LENGTH", 3)
    unread.heal()
    assert [event["type"] for event in history.oldest()] == ["mismatched", "recovery", "walked"]
