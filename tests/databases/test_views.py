"""A connection that sees other rows than everyone else: what it counts is neither cached nor stored."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from unittest import mock

import pytest
from django.db import connection, transaction

from notifications_counter.counters import unread
from notifications_counter.exceptions import ConfigurationError
from notifications_counter.models import Notification
from tests.support import OtherConnection, Undone, assert_exact, execute, notify, rows, sent

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

objects = Notification.objects


def assert_no_maintenance(reason: str) -> None:
    for maintain in (unread.flush, unread.heal, unread.recount, lambda: unread.recount([])):
        with pytest.raises(ConfigurationError, match=reason):
            maintain()


# --------------------------------------------------------------------------------------------------------- old rows
@pytest.fixture
def write_ahead_log() -> Iterator[None]:
    if connection.vendor != "sqlite":
        pytest.skip("Other databases show new rows.")
    execute("PRAGMA journal_mode = WAL")
    yield
    execute("PRAGMA journal_mode = DELETE")


def test_while_a_queryset_is_half_read(write_ahead_log, alice):
    notify(alice)
    with OtherConnection() as other, closing(objects.iterator(chunk_size=1)) as half_read:
        next(half_read)
        other.run(objects.create, user=alice, title="x")
        assert unread.count(alice) == rows(alice) == 3
    assert_exact(alice)


def test_what_was_read_to_its_end_does_not_matter(write_ahead_log, alice):
    notify(alice)
    assert len(list(objects.iterator(chunk_size=1))) == 3
    assert objects.first()
    unread.count(alice)
    with sent() as commands:
        unread.count(alice)
    assert commands == ["MGET"]


# --------------------------------------------------------------------------------------------- uncommitted rows
@contextmanager
def read_uncommitted(scope: str) -> Iterator[None]:
    """This connection sees what others have not committed."""
    its = connection.settings_dict
    shared = {"NAME": f"file:{its['NAME']}?cache=shared"} if connection.vendor == "sqlite" else {}
    connection.close()
    with mock.patch.dict(its, shared), closing(connection):
        execute(f"SET {scope} TRANSACTION ISOLATION LEVEL READ UNCOMMITTED" if not shared else scope)
        yield


SCOPES = {"mysql": ["SESSION", ""], "sqlite": ["PRAGMA read_uncommitted = 1"]}.get(connection.vendor, [])


@pytest.mark.parametrize("scope", SCOPES)
def test_what_is_rolled_back(alice, scope):
    notify(alice)
    with OtherConnection() as other, read_uncommitted(scope):
        block = transaction.atomic()
        other.run(block.__enter__)
        other.run(objects.create, user=alice, title="x")
        assert unread.count(alice) == (4 if scope else 3)
        if scope == "SESSION":
            assert_no_maintenance("READ UNCOMMITTED")
        other.run(block.__exit__, Undone, Undone(), None)
        assert unread.count(alice) == 3
    assert_exact(alice, in_doubt=None)


# ------------------------------------------------------------------------------------------------------ hidden rows
@pytest.fixture
def reader() -> Iterator[str]:
    """The name of a role that does not see all rows."""
    if connection.vendor != "postgresql":
        pytest.skip("Other databases hide no rows.")
    table, name = Notification._meta.db_table, f"reader_of_{connection.settings_dict['NAME']}"
    execute(
        f"CREATE ROLE {name}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}",
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY public_rows ON {table} USING (kind <> 'secret')",
    )
    yield name
    execute(
        f"DROP POLICY public_rows ON {table}",
        f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
        f"DROP OWNED BY {name}",
        f"DROP ROLE {name}",
    )


@pytest.mark.parametrize("inside", [False, True], ids=["autocommit", "transaction"])
def test_row_level_security(reader, alice, inside):
    notify(alice)
    objects.create(user=alice, title="x", kind="secret")
    execute(f"SET ROLE {reader}")
    try:
        with transaction.atomic() if inside else nullcontext():
            assert unread.count(alice) == rows(alice) == 3
        assert_no_maintenance("row-level security")
    finally:
        execute("RESET ROLE")
    assert unread.count(alice) == 4
    assert_exact(alice)
