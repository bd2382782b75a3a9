"""Totals that came from elsewhere: a fixture, another database, a counter of another name."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core import serializers
from django.core.management import call_command

from notifications_counter.buffer.upkeep import BATCHES
from notifications_counter.counters import unread
from notifications_counter.models import CounterShard, Notification, UserNotificationsCount
from tests.support import assert_exact, assert_heals, assert_reads, buffer, notify, stored

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def elsewhere(tmp_path, alice, bob) -> Path:
    """What dumpdata has written on a site whose batches have higher numbers."""
    path = tmp_path / "elsewhere.json"
    notes = [Notification(pk=10**6 + i, user=alice, title="x") for i in range(3)]
    totals = [
        UserNotificationsCount(pk=alice.pk, unread_count=3, flushed_batch=7 * BATCHES + 12),
        UserNotificationsCount(pk=bob.pk, unread_count=0, flushed_batch=7 * BATCHES + 9),
    ]
    dump = json.loads(serializers.serialize("json", [*notes, *totals]))
    for entry in dump:
        for name in ("created_at", "updated_at"):
            if name in entry["fields"]:
                entry["fields"][name] = "2026-01-01T00:00:00Z"
    path.write_text(json.dumps(dump))
    return path


@pytest.mark.parametrize("known", [False, True], ids=["on a new site", "on one with counts"])
def test_a_dump_that_is_loaded(healed, alice, bob, elsewhere, known):
    if known:
        notify(alice, 2)
        notify(bob, 1)
        assert_reads(alice, bob)
    call_command("loaddata", str(elsewhere), verbosity=0)
    assert_reads(alice, bob)
    assert_heals(alice, bob)
    notify(alice, 2)
    notify(bob, 2)
    assert (stored(alice), stored(bob)) == (7 if known else 5, 3 if known else 2)
    assert_exact(alice, bob)


def test_a_dump_that_is_loaded_while_everything_is_new(alice, bob, elsewhere):
    call_command("loaddata", str(elsewhere), verbosity=0)
    assert_heals(alice, bob)
    notify(bob, 2)
    assert_exact(alice, bob)
    assert unread.status()[0].epoch == 8


@pytest.mark.parametrize("shards", ["lost", "renamed"])
def test_shards_that_know_nothing_of_the_totals(healed, alice, bob, redis_client, shards):
    """A counter of another name had this totals model, or its shards and Redis were lost."""
    notify(alice)
    for _ in range(2):
        unread.invalidate()
    unread.heal()
    notify(bob)
    Notification.objects.filter(user=bob).mark_as_read()
    unread.flush()
    assert UserNotificationsCount.objects.get(pk=bob.pk).flushed_batch > 3 * BATCHES
    if shards == "lost":
        CounterShard.objects.all().delete()
    else:
        CounterShard.objects.update(counter="former")
    redis_client.delete(*redis_client.keys(f"{buffer().keys.base}*"))
    assert_heals(alice, bob)
    assert unread.status()[0].epoch == 4
    notify(bob, 2)
    assert stored(bob) == 2
    assert_exact(alice, bob)


def test_a_total_with_a_later_batch_starts_one_epoch_and_is_told(healed, alice, bob, caplog):
    notify(alice)
    write(alice, 8, 5 * BATCHES)
    write(bob, 9, 5 * BATCHES + 1)
    assert_heals(alice, bob)
    assert unread.status()[0].epoch == 6
    told = [record for record in caplog.records if "still to come" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]


def write(user: Any, count: int, batch: int) -> None:
    values = {"unread_count": count, "flushed_batch": batch}
    UserNotificationsCount.objects.update_or_create(pk=user.pk, defaults=values)
