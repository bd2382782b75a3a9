"""What a read costs, and that it is right whatever it finds."""

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import SynchronousOnlyOperation
from django.core.paginator import Paginator
from django.db import connection, transaction
from django.db.migrations.state import ProjectState
from django.test.utils import CaptureQueriesContext
from django.utils.functional import SimpleLazyObject

from notifications_counter.buffer.buffer import LEASE_SECONDS
from notifications_counter.counters import unread
from notifications_counter.models import CounterState, DoubtRequest, Notification, UserNotificationsCount
from notifications_counter.reads import _remind
from notifications_counter.redis.calls import MAX_ARGUMENTS
from notifications_counter.sql.owners import MAX_LISTED_PKS
from tests.support import (
    OtherConnection,
    announce,
    assert_exact,
    assert_heals,
    begin_now,
    buffer,
    entries,
    execute,
    make_keys,
    notify,
    redis_out_of_reach,
    round_trips,
    rows,
    sent,
    total_key,
    undone,
)
from tests.tasks.models import Project

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

objects = Notification.objects


# ------------------------------------------------------------------------------------------------- nobody has served it
def test_a_developer_is_reminded_of_the_flusher_once(alice, settings, caplog, monkeypatch):
    _remind.cache_clear()
    monkeypatch.setattr(buffer(), "expects_state", False)
    for settings.DEBUG in (False, True, True):
        CounterState.objects.all().delete()
        buffer().client.redis.delete(buffer().key("ready"))
        assert unread.count(alice) == 0
    assert [record.event for record in caplog.records] == ["unserved"]


# ----------------------------------------------------------------------------------------------------------- cost
def test_many_owners_are_asked_together():
    """More owners than one command may have arguments."""
    keys = make_keys(MAX_ARGUMENTS + 1)
    objects.bulk_create(Notification(user_id=key, title="x") for key in keys[::3])
    right = {key: int(i % 3 == 0) for i, key in enumerate(keys)}
    assert unread.counts(keys) == right
    with round_trips() as trips:
        assert list(unread.counts(keys).items()) == list(right.items())
        assert (trips.number, trips.commands) == (2, 2)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Others get a list.")
def test_postgresql_gets_many_owners_as_an_array_of_the_type_of_their_column():
    """With old statistics, a join with unnest() would compare each row with each owner."""
    keys = make_keys(MAX_LISTED_PKS + 1)
    objects.bulk_create(Notification(user_id=key, title="x") for key in keys[1:])
    absent = [2**40, -(2**40)] if isinstance(keys[0], int) else []
    with CaptureQueriesContext(connection) as queries:
        assert unread.counts([*keys, *absent]) == {keys[0]: 0} | dict.fromkeys(keys[1:], 1) | dict.fromkeys(absent, 0)
    kind = Notification._meta.get_field("user").db_type(connection)
    [statement] = [query["sql"] for query in queries if " = ANY(" in query["sql"]]
    assert f"::{kind}[])" in statement


def test_a_missed_total_is_cached_unless_another_reader_is_about_to(alice, redis_client):
    notify(alice)
    unread.count(alice)
    redis_client.set(total_key(alice), "?token", ex=LEASE_SECONDS)
    for expected in (["MGET"], ["MGET", "lease", "keep"]):
        with sent() as commands:
            assert unread.count(alice) == 3
        assert commands == expected
        redis_client.delete(total_key(alice))


def test_others_in_flight_do_not_matter(alice, bob, redis_client):
    """Nobody is, once somebody has deleted the intents: otherwise, rows would be counted for ever."""

    def is_cached(user: Any) -> bool:
        unread.count(user)
        with sent() as commands:
            unread.count(user)
        return commands == ["MGET"]

    announce(buffer(), "1", [str(bob.pk)])
    assert (is_cached(alice), is_cached(bob)) == (True, False)
    redis_client.delete(buffer().key("intents"))
    assert is_cached(bob)


@pytest.mark.keys
def test_many_users_in_every_state(alice, bob, make_user, redis_client):
    """Cached, missed, in doubt, changed here and not committed, without any row."""
    carol, dave, erin = make_user(), make_user(), make_user()
    for user in (alice, bob, carol, dave):
        notify(user, 2)
    unread.counts([alice, bob, carol, dave])
    redis_client.delete(total_key(bob))
    buffer().doubt([str(carol.pk)])
    with transaction.atomic():
        objects.create(user=dave, title="x")
        right = {alice.pk: 2, bob.pk: 2, carol.pk: 2, dave.pk: 3, erin.pk: 0}
        assert unread.counts([alice, bob, carol, dave, erin, alice]) == right
    assert unread.counts([dave, erin, carol, bob, alice]) == right
    assert_exact(alice, bob, carol, dave, erin, in_doubt=1)


def test_totals_do_not_live_for_ever(alice, redis_client):
    notify(alice)
    with entries(TOTAL_TTL=100):
        unread.count(alice)
    assert 0 < redis_client.ttl(total_key(alice)) <= 100
    objects.create(user=alice, title="x")
    assert 0 < redis_client.ttl(total_key(alice)) <= 100
    totals, every = (set(redis_client.scan_iter(match=buffer().key(keys))) for keys in ("*:*", "*"))
    waiting = every - totals
    assert waiting
    assert all(redis_client.ttl(key) == -1 for key in waiting)


def test_a_total_that_redis_would_round_is_counted_anew(alice, redis_client, django_assert_num_queries):
    redis_client.set(total_key(alice), 2**53 - 1)
    objects.create(user=alice, title="x")
    assert unread.count(alice) == 1
    with django_assert_num_queries(0):
        assert unread.count(alice) == 1


def test_a_negative_count_is_not_shown_and_healed(alice, redis_client):
    notify(alice)
    for read in (unread.count, lambda user: unread.counts([user])[user.pk]):
        redis_client.set(total_key(alice), -5)
        assert read(alice) == 3
    assert_exact(alice, in_doubt=1)


# ----------------------------------------------------------------------------------------------------------- keys
@pytest.mark.keys
def test_owners_in_every_form(alice):
    notify(alice)
    for owner in (alice, alice.pk, str(alice.pk), SimpleLazyObject(lambda: alice)):
        assert unread.count(owner) == 3
        assert unread.counts([owner]) == {alice.pk: 3}
    assert unread.counts(iter([alice, alice.pk])) == {alice.pk: 3}
    assert unread.counts([]) == {}
    assert unread.counts(get_user_model().objects.all()) == {alice.pk: 3}
    assert async_to_sync(unread.acount)(alice) == 3
    assert async_to_sync(unread.acounts)([alice]) == {alice.pk: 3}
    for none in (None, AnonymousUser(), get_user_model()(pk=None)):
        for read in (unread.count, lambda owner: unread.counts([owner])):
            with pytest.raises(ValueError, match="needs an owner with a primary key"):
                read(none)


@pytest.mark.keys
def test_instances_of_another_model(alice):
    """Its key may be that of a user. A row whose primary key is a user is as good as the user."""
    notification, *_ = notify(alice)
    for stranger in (notification, SimpleLazyObject(lambda: notification), Project()):
        for read in (unread.count, lambda owner: unread.counts([owner])):
            with pytest.raises(ValueError, match=rf"counts for accounts\.\w+, not for {stranger._meta.label}"):
                read(stranger)
    of_a_migration = ProjectState.from_apps(apps).apps.get_model(alice._meta.label)
    for owner in (UserNotificationsCount.objects.get(pk=alice.pk), of_a_migration(pk=alice.pk)):
        assert unread.count(owner) == 3


@pytest.mark.keys
def test_keys_that_are_none():
    odd = {
        "CharField": ["x" * 101, "with\0zero", "half\ud800", True],
        "UUIDField": ["nobody", "", [], "1.5", True, 2**128],
    }
    integers = ["nobody", "", [], "1.5", 1.5, float("nan"), Decimal("1.5"), True, 2**63, 1e30, b"7", "9" * 5000]
    for owner in odd.get(unread.pk_fields[0].get_internal_type(), integers):
        for read in (unread.count, lambda owner: unread.counts([owner]), lambda owner: unread.recount([owner])):
            with pytest.raises(ValueError, match="not a primary key"):
                read(owner)
    if unread.pk_fields[0].get_internal_type() == "CharField":
        assert unread.count("nobody") == 0


# --------------------------------------------------------------------------------------------- inside transactions
@contextmanager
def repeatable_read() -> Iterator[None]:
    """A transaction that goes on seeing what it saw first."""
    if connection.vendor == "mysql":
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with transaction.atomic():
        if connection.vendor == "postgresql":
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield


@pytest.mark.skipif(connection.vendor == "sqlite", reason="Its transactions exclude each other.")
@pytest.mark.parametrize("warm", [False, True])
def test_a_transaction_that_sees_old_rows_harms_nobody(alice, bob, redis_client, warm):
    """Neither does it mix its old rows with what waits by now, nor keep what it made of them."""
    for user in (alice, bob):
        notify(user)
        unread.count(user)

    def change() -> None:
        objects.bulk_create(Notification(user_id=user.pk, title="x") for user in (alice, bob))
        unread.flush()
        objects.create(user_id=alice.pk, title="x")
        if not warm:
            redis_client.delete(total_key(alice), total_key(bob))

    with OtherConnection() as other, repeatable_read():
        assert rows(alice) == 3
        other.run(change)
        assert rows(alice) == 3
        assert unread.count(alice) in (3, 5)
        assert unread.counts([alice, bob]) in ({alice.pk: 3, bob.pk: 3}, {alice.pk: 5, bob.pk: 4})
    assert_exact(alice, bob)


def test_what_a_transaction_has_changed_by_raw_sql_is_cached_for_nobody_else(alice):
    notify(alice)
    with undone():
        execute(f"DELETE FROM {Notification._meta.db_table}")
        assert unread.count(alice) == 0
    assert_exact(alice)


def test_requests_go_with_what_is_rolled_back(alice, bob):
    with redis_out_of_reach(), transaction.atomic():
        with undone():
            objects.create(user=alice, title="x")
            begin_now()
            assert DoubtRequest.objects.count() == 1
        assert not DoubtRequest.objects.exists()
        objects.create(user=alice, title="x")
        objects.create(user=bob, title="x")
    assert set(DoubtRequest.objects.values_list("owner_key", flat=True)) == {str(alice.pk), str(bob.pk)}
    assert_heals(alice, bob)


@pytest.mark.once
def test_a_read_in_a_coroutine_says_what_to_await(healed, alice):
    async def view() -> int:
        return unread.count(alice)

    assert unread.count(alice) == async_to_sync(unread.acount)(alice) == 0
    with pytest.raises(SynchronousOnlyOperation, match=r"acount\(\)"):  # though it is cached
        async_to_sync(view)()


# ------------------------------------------------------------------------------------------------------------- attach
@pytest.mark.once
def test_attach_sets_the_count_of_each_at_once(healed, alice, bob):
    notify(bob, 2)
    unread.counts([alice, bob])
    owners = Paginator(get_user_model().objects.order_by("username"), 2).page(1)
    with sent() as commands:
        unread.attach(owners, "unread")
    assert commands == ["MGET"]
    assert [owner.unread for owner in owners] == [0, 2]
    async_to_sync(unread.aattach)(owners, "more")
    assert [owner.more for owner in owners] == [0, 2]


@pytest.mark.once
def test_attach_replaces_nothing_that_the_objects_need(healed, alice):
    class Reader:
        def __init__(self, pk):
            self.pk = pk

    for name in ("pk", "username", "is_authenticated", "save"):
        with pytest.raises(ValueError, match=f"User has a '{name}' of its own. Pass another name"):
            unread.attach([Reader(alice.pk), SimpleLazyObject(lambda: alice)], name)
    reader = Reader(alice.pk)
    unread.attach([reader], "unread")
    assert reader.unread == 0
    with pytest.raises(TypeError, match="use up an iterator"):
        unread.attach(get_user_model().objects.iterator(), "unread")
