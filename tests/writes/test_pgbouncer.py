"""PgBouncer in transaction mode: nothing relies on what an earlier transaction has left in its session."""

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import assert_exact, assert_reads, entries, notify, rows, savepoint_create, session

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="PgBouncer is for PostgreSQL."),
    pytest.mark.slow,
]

objects = Notification.objects


def test_a_session_for_each_transaction(through_pgbouncer, alice, bob):
    assert len({session() for _ in range(3)}) == 3
    unread.heal()
    notify(alice, 6)
    objects.create(user=bob, title="new")
    objects.filter(title="0").update(user=bob, read_at=Now())
    assert objects.for_user(alice).mark_as_read() == 5
    objects.filter(user=alice, title__in="12").mark_as_unread()
    objects.filter(title="1").delete()
    assert_reads(alice, bob)

    with transaction.atomic():
        its = session()
        objects.for_user(bob).update(user=alice)
        kept = savepoint_create()
        objects.for_user(alice).delete()
        assert unread.counts([alice, bob]) == {alice.pk: 0, bob.pk: 0}
        transaction.savepoint_rollback(kept)
        assert unread.counts([alice, bob]) == {alice.pk: 2, bob.pk: 0}
        assert session() == its
    with transaction.atomic():
        objects.create(user=bob, title="lost")
        assert unread.count(bob) == 1
        transaction.set_rollback(True)
    assert_reads(alice, bob)

    with entries(FLUSH_CHUNK=1):
        unread.flush()
    assert len(list(objects.iterator(chunk_size=2))) == 6
    assert unread.recount().wrong == 0
    unread.invalidate()
    assert unread.top(1) == [(alice.pk, 2)]
    unread.heal()
    assert unread.top(1) == [(alice.pk, rows(alice))]
    assert_exact(alice, bob)
