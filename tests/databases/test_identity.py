"""Whose keys are whose: each database has an id, and a database that was emptied or replaced has another one."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from notifications_counter import events
from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.databases import identity
from notifications_counter.databases.identity import identify, look_up
from notifications_counter.exceptions import BufferUnavailable, DatabaseChanged
from notifications_counter.models import DatabaseId, Notification, RecountRequest
from tests.support import (
    OtherConnection,
    assert_exact,
    assert_heals,
    assert_reads,
    begin_now,
    buffer,
    notify,
    redis_out_of_reach,
    rows,
)

pytestmark = pytest.mark.django_db(transaction=True)


def empty() -> None:
    """What another process does: it empties the database, and says so."""
    known = dict(identity._known)
    call_command("flush", interactive=False, verbosity=0)
    identity._known.clear()
    identity._known.update(known)


def replace() -> None:
    """Put another database in the place of this one, with the same rows, as another process sees it."""
    known = dict(identity._known)
    DatabaseId.objects.update(uid="another")
    identity._known.clear()
    buffer().enter()
    identity._known.clear()
    identity._known.update(known)


@pytest.fixture
def kept(healed: None, alice: Any) -> Any:
    """A user whose total is cached."""
    notify(alice, 3)
    assert_reads(alice)
    return alice


def test_a_new_user_of_an_emptied_database_does_not_read_an_old_count(kept: Any, make_user: Callable[..., Any]) -> None:
    empty()
    new = make_user(pk=kept.pk, username="alice")
    assert unread.count(new) == 0
    assert unread.counts([new]) == {new.pk: 0}
    assert_heals(new)


def test_a_test_with_serialized_rollback_does_not_read_the_counts_of_the_test_before(make_user: Any) -> None:
    """Django restores the id of the database, and sends no ``post_migrate``."""
    rows_of_migrations = connection.creation.serialize_db_to_string()
    assert "databaseid" in rows_of_migrations
    unread.heal()
    user = make_user()
    notify(user, 2)
    assert_reads(user)
    call_command("flush", interactive=False, verbosity=0, inhibit_post_migrate=True)
    connection.creation.deserialize_db_from_string(rows_of_migrations)
    other = make_user(pk=user.pk)
    assert_reads(other)
    notify(other)
    assert_heals(other)


def test_what_waits_for_an_emptied_database_is_not_flushed(kept: Any, make_user: Callable[..., Any]) -> None:
    Notification.objects.create(user=kept, title="waits")
    old = buffer()
    empty()
    new = make_user(pk=kept.pk, username="alice")
    unread.heal()
    unread.flush()
    assert_exact(new)
    with pytest.raises(DatabaseChanged):
        old.upkeep.status()


@pytest.mark.parametrize("step", ["before the statement", "begun", "committed"])
def test_a_transaction_that_is_under_way_while_the_database_is_replaced(kept: Any, step: str) -> None:
    with OtherConnection() as other:
        old = buffer()
        if step == "before the statement":
            replace_elsewhere(other)
            Notification.objects.create(user=kept, title="late")
        elif step == "begun":
            if connection.vendor == "sqlite":
                pytest.skip("SQLite has one writer.")
            with transaction.atomic():
                Notification.objects.create(user=kept, title="late")
                begin_now()
                assert old.upkeep.status().intents == 1
                replace_elsewhere(other)
                other.run(unread.heal)
        else:
            old.announce("killed", [str(kept.pk)])
            Notification.objects.create(user=kept, title="late")
            replace_elsewhere(other)
            assert [part.id for part in other.run(intents)] == ["killed"]
    assert_reads(kept)
    assert_heals(kept)
    assert rows(kept) == 4


def replace_elsewhere(other: OtherConnection) -> None:
    other.run(replace)


def intents() -> list[Any]:
    look_up(connection)
    return list(buffer().upkeep.intents())


def test_keys_that_were_left_are_of_no_use(kept: Any) -> None:
    old, owner_key = buffer(), str(kept.pk)
    old.announce("part", [owner_key])
    replace()
    for use in (
        lambda: old.announce("late", [owner_key]),
        lambda: old.confirm("part", {owner_key: 1}),
        lambda: old.mark_dirty([owner_key]),
        lambda: old.snapshot([owner_key]),
        lambda: old.upkeep.recover(10**6, "server"),
        lambda: old.listen(1),
        lambda: old.total(owner_key),
        old.upkeep.forget,
        old.upkeep.status,
        old.enter,
    ):
        with pytest.raises(DatabaseChanged):
            use()
    assert old.fix(1, "lease", {owner_key: 1}) == {owner_key: False}
    assert (old.upkeep.complete(1, "server"), old.upkeep.cut(1), old.upkeep.finish(1, "mark")) == (False, None, False)
    assert old.client.breaker.down_since is None  # that is no outage
    assert_reads(kept)


def test_nothing_that_waited_is_left_of_the_old_keys(kept: Any, redis_client: redis.Redis) -> None:
    Notification.objects.create(user=kept, title="waits")
    old = buffer()
    replace()
    assert {key.decode() for key in redis_client.scan_iter(match=f"{old.keys.base}:*") if b":total:" not in key} == {
        old.keys.ready
    }


def test_a_redis_that_was_emptied_learns_again_whose_keys_they_are(kept: Any, redis_client: redis.Redis) -> None:
    old = buffer()
    redis_client.delete(*redis_client.keys(f"{{{options.KEY_PREFIX}:*"))
    unread.heal()
    assert_reads(kept)
    replace()
    with pytest.raises(DatabaseChanged):
        old.total(str(kept.pk))


def test_a_database_that_comes_back_gets_a_new_id(kept: Any, caplog: pytest.LogCaptureFixture) -> None:
    first, row = buffer(), DatabaseId.objects.get()
    replace()
    DatabaseId.objects.update(uid=row.uid)
    look_up(connection)
    identify(connection).buffers.clear()  # another process
    unread.heal()
    assert DatabaseId.objects.get().uid not in (row.uid, "another")
    (left,) = [record for record in caplog.records if getattr(record, "event", "") == "database_left"]
    assert "give each a KEY_PREFIX of its own" in left.getMessage()
    assert buffer().keys.base != first.keys.base
    assert_exact(kept)


def test_each_run_asks_for_the_id(kept: Any) -> None:
    old = buffer()
    DatabaseId.objects.update(uid="another")  # by SQL, so that nobody hears of it
    unread.heal()
    assert buffer().keys.base != old.keys.base
    assert_exact(kept)


def test_the_id_is_asked_for_once_and_when_a_connection_is_made(kept: Any) -> None:
    identity._known.clear()
    connection.close()
    with CaptureQueriesContext(connection) as queries:  # it connects first
        assert unread.count(kept) == 3
    assert not queries.captured_queries
    connection.close()
    connection.connect()
    with CaptureQueriesContext(connection) as queries:
        buffer()
    assert not queries.captured_queries


def test_a_database_without_the_table_counts_rows_and_keeps_nothing(kept: Any, redis_client: redis.Redis) -> None:
    with connection.schema_editor() as editor:
        editor.delete_model(DatabaseId)
    identity._known.clear()
    before = set(redis_client.scan_iter(match=f"{{{options.KEY_PREFIX}:unread:*"))
    try:
        assert unread.count(kept) == 3
        Notification.objects.create(user=kept, title="unseen by Redis")
        assert_reads(kept)
        assert RecountRequest.objects.count() == 1
        with pytest.raises(BufferUnavailable, match="migrate"):
            unread.flush()
        with transaction.atomic():
            assert unread.count(kept) == 4
            assert rows(kept) == 4  # the transaction was not spoiled
        assert set(redis_client.scan_iter(match=f"{{{options.KEY_PREFIX}:unread:*")) == before
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(DatabaseId)
    assert_heals(kept)


def test_no_row_is_made_in_a_transaction(alice: Any) -> None:
    DatabaseId.objects.all().delete()
    identity._known.clear()
    with transaction.atomic():
        assert unread.count(alice) == 0
        assert not DatabaseId.objects.exists()
    assert unread.count(alice) == 0
    assert DatabaseId.objects.count() == 1


def test_redis_out_of_reach_at_the_first_use(alice: Any) -> None:
    with redis_out_of_reach():
        Notification.objects.create(user=alice, title="new")
        assert unread.count(alice) == 1
    assert_heals(alice)


@contextmanager
def database(name: str) -> Iterator[None]:
    """Work on another database of this server for a while."""
    before = connection.settings_dict["NAME"]
    connection.close()
    connection.settings_dict["NAME"] = name
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before


@pytest.fixture
def copied(kept: Any, tmp_path: Path) -> Iterator[str]:
    """The name of a copy of this database, with its rows and its id."""
    name, theirs = str(connection.settings_dict["NAME"]), str(tmp_path / "copy")
    connection.close()
    if connection.vendor == "sqlite":
        shutil.copy(name, theirs)
    elif connection.vendor == "postgresql":
        theirs = f"{name}_copy"
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "{theirs}" TEMPLATE "{name}"')
    else:
        pytest.skip("MariaDB copies no database in one statement.")
    yield theirs
    if connection.vendor == "postgresql":
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{theirs}"')


def test_a_copy_has_keys_of_its_own(kept: Any, copied: str) -> None:
    uid, mine = DatabaseId.objects.get().uid, buffer().keys.base
    with database(copied):
        assert DatabaseId.objects.get().uid == uid
        assert buffer().keys.base != mine
        Notification.objects.create(user=kept, title="only here")
        assert unread.count(kept) == 4
        unread.heal()
        assert_exact(kept)
    assert buffer().keys.base == mine
    assert buffer().upkeep.status().ready  # nobody has left these keys
    assert_exact(kept)
    assert rows(kept) == 3


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite's databases are files.")
def test_a_file_is_the_same_under_its_uri(kept: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = buffer().keys.base
    monkeypatch.chdir(tmp_path)
    with database(f"file:{connection.settings_dict['NAME']}?mode=rw"):
        assert buffer().keys.base == mine


def test_logs_go_on_when_the_server_is_replaced() -> None:
    """As by pg_upgrade: what they hold is nowhere else, while counts are made again."""
    old, new = (identity.Database("row", ["mysite", "public"], system=[system]) for system in (1, 2))
    assert old.id != new.id
    assert old.lasting_id == new.lasting_id != identity.Database("row", ["mysite", "blue"], system=[1]).lasting_id


def test_the_traces_of_a_test_database_go_by_themselves(kept: Any, redis_client: redis.Redis) -> None:
    old = buffer().keys
    events.record_event({"type": "login"})
    empty()
    unread.heal()
    assert redis_client.get(old.ready) == b"left"
    assert events.count_events() == 0
    traces = [old.ready, old.database, *redis_client.scan_iter(match=f"{{{options.KEY_PREFIX}:events*")]
    assert len(traces) == 7
    assert all(0 < redis_client.ttl(key) <= 86400 for key in traces)


def test_those_of_another_stay(redis_client: redis.Redis) -> None:
    DatabaseId.objects.update(uid="0" * 32)
    identity._known.clear()
    events.record_event({"type": "login"})
    unread.heal()
    assert redis_client.ttl(buffer().keys.database) == -1
    assert redis_client.ttl(f"{events._log.base}:events") == -1
