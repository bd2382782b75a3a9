"""The flusher on real servers: what reaches the database, and what is kept away from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections, transaction

from notifications_counter.buffer import Buffer
from notifications_counter.counters import unread
from notifications_counter.exceptions import ConfigurationError, NotInTransaction
from notifications_counter.models import DoubtRequest, Notification, UserNotificationsCount
from notifications_counter.monitoring.history import history
from notifications_counter.monitoring.status import read_counter
from notifications_counter.redis.client import read_all_owed
from notifications_counter.signals import event_reported
from notifications_counter.sql.counts import count_rows
from notifications_counter.sql.target import Target
from notifications_counter.testing import isolated_counters
from notifications_counter.timeseries import get_counter
from notifications_counter.upkeep import comparison, flush
from notifications_counter.upkeep.findings import Difference, Result
from notifications_counter.upkeep.flush import MAX_COMPARED_TOTAL
from tests.support import (
    PATIENCE,
    TELLS_TRANSACTIONS,
    OtherConnection,
    announce,
    assert_exact,
    assert_heals,
    assert_reads,
    buffer,
    confirm,
    doubted,
    entries,
    execute,
    make_keys,
    notify,
    status_of,
    stored,
    together,
    total_key,
    unheard,
    wait_no_longer,
    wait_until,
)
from tests.tasks.counters import open_issues, urgent_issues, visible_posts
from tests.tasks.models import Issue, Post, Project, ProjectIssueCount, Topic, TopicPostCount

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.keys]

NOBODY = {
    "User": ["zwölf", "1.5", "01", "9" * 19, "1,5", str(2**63)],
    "UUIDUser": ["zwölf", "12", "0123456789ABCDEF0123456789ABCDEF"],
    "StringUser": ["x" * 101, "a\0b"],
}
"""Members that are no primary keys of users."""


def create(user: Any, number: int = 1) -> None:
    Notification.objects.bulk_create(Notification(user_id=getattr(user, "pk", user), title="x") for _ in range(number))


def skipped(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """How many owners were skipped at a time, and some of them, with the reasons."""
    found = [record for record in caplog.records if getattr(record, "event", "") == "skipped"]
    assert {record.levelname for record in found} <= {"ERROR"}
    return [(record.owners, record.examples) for record in found]


# ------------------------------------------------------------------------------------------------------- what is stored
def test_counts_are_stored_in_chunks(healed, monkeypatch):
    """A flush whose time was over after a chunk goes on there."""
    monkeypatch.setattr("notifications_counter.buffer.buffer.OWNERS_PER_CALL", 3)
    monkeypatch.setattr("notifications_counter.upkeep.flush.OWNERS_PER_CHUNK", 5)
    keys = make_keys(23)
    for i, key in enumerate(keys):
        create(key, 1 + i % 3)
    unread.counts(keys[:10])
    done: list[Any] = []

    def note(event: str, fields: Any, **_: Any) -> None:
        done.extend([(fields["owners"], fields["of"])] if event == "stored" else [])

    event_reported.connect(note)
    first = unread.flush(0)
    assert (0 < first.owners <= 5, first.unfinished) == (True, True)
    create(keys[0])  # not in that batch
    assert unread.flush() == Result(24 - first.owners)
    assert done == [(5, 23), (10, 23), (15, 23), (20, 23), (23, 23), (1, 1)]
    Notification.objects.for_user(keys[0]).mark_as_read()
    create(keys[1])
    assert (unread.flush(), stored(keys[0]), stored(keys[1])) == (Result(2), 0, 3)
    assert unread.flush() == Result()
    assert_exact(*keys)


def test_a_slow_flusher_stores_nothing_over_what_others_have_stored(healed, alice, monkeypatch):
    fetch = Buffer.fetch

    def overtaken(self: Buffer, *args: Any) -> Any:
        monkeypatch.undo()
        found = fetch(self, *args)
        with OtherConnection() as other:
            other.run(unread.flush)
            create(alice)
            other.run(unread.flush)
        return found

    create(alice, MAX_COMPARED_TOTAL + 1)
    unread.count(alice)  # cached, and too many to be compared
    monkeypatch.setattr(Buffer, "fetch", overtaken)
    unread.flush()
    assert stored(alice) == MAX_COMPARED_TOTAL + 2
    assert_exact(alice)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="Its lock is that of the whole file.")
def test_a_flush_that_waits_too_long(healed, alice):
    """It stores nothing, and does not take it for stored."""
    create(alice)
    unread.flush()
    create(alice)
    with OtherConnection() as other:
        other.run(wait_no_longer)
        with transaction.atomic():
            UserNotificationsCount.objects.select_for_update().get(pk=alice.pk)
            with pytest.raises(OperationalError):
                other.run(unread.flush)
    assert (unread.flush(), stored(alice)) == (Result(1), 2)
    assert_exact(alice)


def test_another_database_is_refused(monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    with pytest.raises(ConfigurationError, match="not a database of 'oracle'"):
        Target(unread, connections["default"]).store({1: 1})


def test_two_counters_store_in_the_same_rows(all_healed, house, garden):
    """Also at once. The database fills the other columns of a new row, as for a flusher that doesn't know them yet."""
    Issue.objects.bulk_create(Issue(project=each, urgent=True) for each in (house, garden, house))
    Issue.objects.create(project=house)
    urgent_issues.flush()
    row = ProjectIssueCount.objects.get(pk=house.pk)
    assert (row.open_count, row.urgent_count) == (0, 2)
    assert (row.note, row.level, row.campaign) == ("100% new", 3, None)
    assert row.since
    ProjectIssueCount.objects.filter(pk=house.pk).update(note="kept")
    read_all_owed()
    together(open_issues.flush, urgent_issues.flush)
    row = ProjectIssueCount.objects.get(pk=house.pk)
    assert (row.open_count, row.urgent_count, row.note) == (3, 2, "kept")
    for counter in (open_issues, urgent_issues):
        assert_exact(house, garden, counter=counter)


TWO_WAIT_FOR_LOCKS = {
    "postgresql": "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    " HAVING COUNT(*) = 2",
    "mysql": "SHOW GLOBAL STATUS WHERE variable_name = 'Innodb_row_lock_current_waits' AND value > 1",
}


@pytest.mark.skipif(connection.vendor == "sqlite", reason="It has one lock for all writers.")
def test_two_counters_lock_the_same_rows_in_the_same_order(all_healed):
    """Whatever the order in which owners were cut. Otherwise, each flusher could wait for the other."""
    projects = sorted((Project.objects.create() for _ in range(3)), key=lambda project: project.pk)
    for project in projects:
        ProjectIssueCount.objects.create(project=project)
    for i, project in enumerate(projects):  # of open issues the last has most, of urgent ones the first
        Issue.objects.bulk_create(Issue(project=project, urgent=number < 3 - i) for number in range(3 + i))
    read_all_owed()
    with OtherConnection() as one, OtherConnection() as two, OtherConnection() as observer:
        with transaction.atomic():
            ProjectIssueCount.objects.select_for_update().get(pk=projects[1].pk)
            flushing = [one.start(open_issues.flush), two.start(urgent_issues.flush)]
            wait_until(lambda: observer.run(execute, TWO_WAIT_FOR_LOCKS[connection.vendor]))
        assert [flushed.result(PATIENCE) for flushed in flushing] == [Result(3), Result(3)]
    for counter in (open_issues, urgent_issues):
        assert_exact(*projects, counter=counter)


def test_a_negative_total_is_not_stored(healed, alice, redis_client):
    """It lacks a delta that is not sent yet."""
    notify(alice)
    unread.count(alice)
    create(alice)
    redis_client.set(total_key(alice), -5)
    assert (unread.flush(), stored(alice)) == (Result(1), 4)


# --------------------------------------------------------------------------------------------------- what is compared
def test_a_flush_finds_what_has_escaped_the_app(healed, make_user, caplog):
    """It compares who has changed with the rows, if the cached total is small, unless a change may be on its way."""
    wrong, large, announced, requested = users = [make_user() for _ in range(4)]
    for user in users:
        create(user, 100 if user is large else 3)
    unread.counts(users)
    announce(buffer(), "other", [str(announced.pk)])
    DoubtRequest.objects.create(counter="unread", owner_key=str(requested.pk))
    for user in users:
        unheard(create, user)
        create(user)
    done = unread.flush()
    assert (done, done.differences) == (Result(4, wrong=1), [Difference(wrong.pk, 4, 5)])
    assert [stored(user) for user in users] == [5, 101, 5, 5]
    assert (read_counter(unread).wrong, doubted()) == (1, [str(wrong.pk)])
    assert f"{wrong.pk}: 4 instead of 5" in caplog.text
    assert [warning.kind for warning in status_of(unread).warnings] == ["wrong"]
    assert unread.recount([large, requested]) == Result(2, wrong=1)  # of whom the site has asked
    confirm(buffer(), "other", {str(announced.pk): 1})
    DoubtRequest.objects.all().delete()
    assert_exact(*users, in_doubt=3, wrong=1)


def late(*_: Any) -> Any:
    """The first page has taken too long."""
    flush.COMPARE_SECONDS = 0
    return mock.DEFAULT


@pytest.mark.parametrize(("limit", "pages"), [(None, [3, 1, 3, 1, 1]), (OperationalError, [3, 3, 1]), (late, [3])])
def test_a_flush_compares_page_by_page(healed, monkeypatch, limit, pages):
    """For some seconds, and in each chunk only until the database refuses to count. The others are trusted."""
    for name, size in {"OWNERS_PER_CHUNK": 4, "OWNERS_PER_CALL": 3, "COMPARE_SECONDS": 60}.items():
        monkeypatch.setattr(flush, name, size)
    counted = mock.Mock(wraps=count_rows, side_effect=limit)
    monkeypatch.setattr(flush, "count_rows", counted)
    users = make_keys(9)
    for _ in range(2):
        Notification.objects.bulk_create(Notification(user_id=user, title="x") for user in users)
        unread.counts(users)
    assert unread.flush() == Result(9)
    assert [len(call.args[1]) for call in counted.call_args_list] == pages
    assert_exact(*users)


# ------------------------------------------------------------------------------------------------ what cannot be stored
@contextmanager
def refused(key: Any) -> Iterator[None]:
    """A trigger refuses to store a total for this owner."""
    table, owner = UserNotificationsCount._meta.db_table, str(key).replace("'", "''")
    text = "CHAR" if connection.vendor == "mysql" else "TEXT"
    is_hers = f"REPLACE(CAST(NEW.user_id AS {text}), '-', '') = REPLACE('{owner}', '-', '')"  # also of a UUID
    body, on_table = {
        "mysql": (f"IF {is_hers} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF", ""),
        "sqlite": (f"BEGIN SELECT RAISE(ABORT, 'refused') WHERE {is_hers}; END", ""),
        "postgresql": ("EXECUTE FUNCTION refuse()", f" ON {table}"),
    }[connection.vendor]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            raising = f"IF {is_hers} THEN RAISE EXCEPTION 'refused'; END IF; RETURN NEW;"
            cursor.execute(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {raising} END$$")
        for event in ("INSERT", "UPDATE"):
            cursor.execute(f"CREATE TRIGGER refuse_{event} BEFORE {event} ON {table} FOR EACH ROW {body}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            for event in ("INSERT", "UPDATE"):
                cursor.execute(f"DROP TRIGGER refuse_{event}{on_table}")
            if connection.vendor == "postgresql":
                cursor.execute("DROP FUNCTION refuse")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="It cannot drop a default.")
def test_a_default_that_is_not_migrated_yet(healed, alice):
    """Nobody is skipped for it: the next run stores the count."""
    change = f"ALTER TABLE {UserNotificationsCount._meta.db_table} ALTER COLUMN unseen_count "
    create(alice)
    execute(f"{change} DROP DEFAULT")
    try:
        with pytest.raises(CommandError, match="unseen_count.* `manage.py migrate`"):
            call_command("flush_counters", database="default")
    finally:
        execute(f"{change} SET DEFAULT 0")
    assert unread.flush() == Result(1)
    assert stored(alice) == 1


def test_a_count_that_the_database_refuses_is_skipped_and_tried_again(healed, caplog):
    keys = make_keys(9)
    for key in keys:
        create(key, 2)
    with refused(keys[4]), mock.patch.object(flush, "OWNERS_PER_CHUNK", 5):
        assert unread.flush() == Result(8, skipped=1)
        assert unread.flush() == Result()
    assert [stored(key) for key in keys] == [2, 2, 2, 2, 0, 2, 2, 2, 2]
    ((number, examples),) = skipped(caplog)
    assert (number, read_counter(unread).skipped, len(history.latest(type="skipped"))) == (1, 1, 1)
    assert examples.startswith(f"{str(keys[4])!r}: ")
    assert "unread_count cannot hold its count" in examples
    assert [warning.kind for warning in status_of(unread).warnings] == ["skipped"]
    unread.recount()
    assert doubted() == [str(keys[4])]
    unread.flush()
    assert stored(keys[4]) == 2
    assert_exact(*keys, wrong=1)


def test_members_that_something_else_wrote(healed, redis_client, caplog):
    sound, *others = keys = make_keys(6)
    for key in keys:
        create(key)
    nobody = NOBODY[get_user_model().__name__]
    deltas = dict(zip(map(str, others), [10**12, -(10**12), 1.5, 2.0**70, "inf"], strict=True))
    for _ in range(2):
        redis_client.zadd(buffer().key("pending"), {**dict.fromkeys(nobody, 2), **deltas})
        assert unread.flush().skipped == len(nobody)
    assert [number for number, _ in skipped(caplog)] == [len(nobody)] * 2
    assert [stored(key) for key in keys] == [1] * 6
    assert_exact(*keys)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Only PostgreSQL stores no row twice in one statement.")
def test_owners_that_are_equal_to_the_database():
    """Three owners in Redis are one in the database. A flush stores one of them, and does not fail forever."""
    table = connection.ops.quote_name(TopicPostCount._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT 1 FROM pg_collation WHERE collname = 'und-x-icu')")
        if not cursor.fetchone()[0]:
            pytest.skip("missing: a PostgreSQL with ICU")
        cursor.execute("CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        cursor.execute("SELECT indexname FROM pg_indexes WHERE tablename = %s", [TopicPostCount._meta.db_table])
        for name in [name for (name,) in cursor.fetchall() if name.endswith("_like")]:
            cursor.execute(f"DROP INDEX {name}")
        cursor.execute(f"ALTER TABLE {table} ALTER topic_id TYPE varchar(100) COLLATE any_case")
    try:
        visible_posts.heal()
        topics = [Topic.objects.create(pk=name) for name in ("News", "news", "NEWS", "other")]
        Post.objects.bulk_create(Post(topic=topic) for topic in topics)
        visible_posts.flush()
        assert TopicPostCount.objects.filter(visible_count=1).count() == 2
        assert_reads(*topics, counter=visible_posts)
    finally:
        TopicPostCount.objects.all().delete()
        with connection.cursor() as cursor:
            cursor.execute(f'ALTER TABLE {table} ALTER topic_id TYPE varchar(100) COLLATE "default"')
            cursor.execute("DROP COLLATION any_case")


@contextmanager
def uncountable(user: Any) -> Iterator[None]:
    """Counting this user's rows, alone or with others, exceeds a time limit of the database."""

    def limited(counter: Any, keys: Any) -> Any:
        if user.pk in keys:
            raise OperationalError("canceling statement due to statement timeout")
        return count_rows(counter, keys)

    with mock.patch.object(flush, "count_rows", limited), mock.patch.object(comparison, "count_rows", limited):
        yield


def test_an_owner_who_cannot_be_counted_keeps_nobody_waiting(healed, alice, bob, make_user, caplog):
    users = [alice, bob, *(make_user() for _ in range(40))]
    for user in users:
        create(user)
    with uncountable(alice):
        unread.recount(dry_run=True)
        assert skipped(caplog) == []
        unread.invalidate()
        create(bob)
        assert unread.heal().skipped == 1  # the walk at full speed meets her, too
        assert unread.recount(dry_run=True).skipped == 1
        unread.flush()
        assert [stored(user) for user in users] == [0, 2, *[1] * 40]
        for _, examples in skipped(caplog):
            assert examples.startswith(f"{str(alice.pk)!r}: ")
            assert examples.endswith("statement timeout")
        create(alice)
        create(bob)
        unread.flush()
        assert (stored(alice), stored(bob)) == (0, 3)
        unread.count(alice)
        create(alice)
        assert (unread.flush(), stored(alice)) == (Result(1), 3)  # what is cached is trusted
    with entries(WALK_SECONDS=0.001):
        unread.heal()
    assert_heals(*users)


@pytest.mark.once
def test_charts_show_how_counts_rise_and_fall(alice, bob):
    with isolated_counters():
        unread.heal()
        one, *_ = [Notification.objects.create(user=alice, title="x") for _ in range(3)]
        create(bob, 5)
        Notification.objects.for_user(bob).mark_as_read()
        unread.flush()
        one.mark_as_read()
        create(bob, 2)
        unread.flush()
        buffer().doubt([str(bob.pk)])  # by how much it has changed is unknown
        unread.flush()
        total = {what: sum(n for _, n in get_counter(f"unread:{what}", 86400)) for what in ("added", "removed")}
        assert total == {"added": 5, "removed": 1}


# ----------------------------------------------------------------------------------------------------------- conditions
def test_a_flush_inside_a_transaction_is_refused(healed, alice):
    """Its batch would be dropped from Redis before the database has committed it."""
    create(alice)
    with transaction.atomic(), pytest.raises(NotInTransaction):
        unread.flush()
    transaction.set_autocommit(False)
    try:
        for work in (unread.flush, unread.heal, unread.recount, unread.invalidate):
            with pytest.raises(NotInTransaction):
                work()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    if TELLS_TRANSACTIONS:
        execute("BEGIN")
        with pytest.raises(NotInTransaction):
            unread.flush()
        execute("ROLLBACK")
    assert unread.buffer.status().pending == 1
    unread.flush()
    assert_exact(alice)
