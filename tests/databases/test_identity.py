"""Whose keys are whose: each database has an id."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import redis
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

import servers
from notifications_counter import timeseries
from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.databases import identity
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import DatabaseId, DoubtRequest, Notification
from tests.support import assert_exact, assert_heals, assert_reads, buffer, notify, rows

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kept(healed: None, alice: Any) -> Any:
    """A user whose total is cached."""
    notify(alice, 3)
    assert_reads(alice)
    return alice


def test_a_database_that_was_emptied_has_other_keys(kept: Any, make_user: Any) -> None:
    """A new user with an old primary key reads no old count, and what waited is not flushed."""
    Notification.objects.create(user=kept, title="waits")
    call_command("flush", interactive=False, verbosity=0)
    new = make_user(pk=kept.pk, username="alice")
    assert_reads(new)
    assert_heals(new)


def test_the_id_is_asked_for_when_a_connection_is_made(kept: Any) -> None:
    """And not by the first read, whose queries a site's test may count."""
    identity.databases.clear()
    connection.close()
    connection.connect()
    with CaptureQueriesContext(connection) as queries:
        assert unread.count(kept) == 3
    assert not queries.captured_queries


def test_a_process_with_an_empty_redis_tells_the_database(kept: Any, use: Any) -> None:
    """Nobody else would learn of its changes there."""
    identity.databases.clear()
    with servers.redis() as empty:
        use(empty.url)
        Notification.objects.create(user=kept, title="told")
        assert DoubtRequest.objects.count() == 1


def test_a_database_without_the_table_counts_rows_and_keeps_nothing(kept: Any, redis_client: redis.Redis) -> None:
    with connection.schema_editor() as editor:
        editor.delete_model(DatabaseId)
    identity.databases.clear()
    before = set(redis_client.scan_iter(match=f"{{{options.KEY_PREFIX}:unread}}*"))
    try:
        assert unread.count(kept) == 3
        Notification.objects.create(user=kept, title="unseen by Redis")
        assert_reads(kept)
        assert DoubtRequest.objects.count() == 1
        for work in (unread.flush, unread.invalidate):
            with pytest.raises(BufferUnavailable, match=r"\A((?!LINE 1|\n).)*`manage\.py migrate`"):
                work()
        with pytest.raises(BufferUnavailable, match="cannot be read"):
            timeseries.update_counter("hits")
        with transaction.atomic():
            assert unread.count(kept) == 4
            assert rows(kept) == 4  # the transaction was not spoiled
        assert set(redis_client.scan_iter(match=f"{{{options.KEY_PREFIX}:unread}}*")) == before
    finally:
        with connection.schema_editor() as editor:
            editor.create_model(DatabaseId)
    assert_heals(kept)


def test_no_row_is_made_in_a_transaction(alice: Any) -> None:
    DatabaseId.objects.all().delete()
    identity.databases.clear()
    with transaction.atomic():
        assert unread.count(alice) == 0
        with closing(connections.create_connection("default")) as other:
            other.ensure_connection()
        assert not DatabaseId.objects.exists()
    assert unread.count(alice) == 0
    assert DatabaseId.objects.count() == 1


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
    uid, mine = DatabaseId.objects.get().uid, buffer().base
    connection.close()
    with mock.patch.dict(connection.settings_dict, NAME=copied), closing(connection):
        assert DatabaseId.objects.get().uid == uid
        assert buffer().base != mine
        Notification.objects.create(user=kept, title="only here")
        assert unread.count(kept) == 4
        assert_heals(kept)
    assert buffer().base == mine
    assert_exact(kept)
    assert rows(kept) == 3


NAMES = {
    "mysql": lambda name: {"NAME": "", "OPTIONS": {"database": name}},
    "sqlite": lambda name: {"NAME": f"file:{name}"},
}


@pytest.mark.skipif(connection.vendor not in NAMES, reason="Nothing else names it.")
def test_settings_may_name_the_database_in_another_way() -> None:
    other = connection.copy()
    other.settings_dict |= NAMES[connection.vendor](other.settings_dict["NAME"])
    with closing(other):
        assert identity.look_up(other).id == identity.look_up(connection).id
