"""Owners of several columns: their keys, and what the flusher does for them."""

import math
import re
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from notifications_counter.upkeep import walk
from tests.support import make_keys, truth, unheard

from .counters import alerts, points, unread_by_app, unseen_by_app, votes
from .models import Alert, AlertCount, AppCount, CourseNotification, Vote, VoteCount
from .support import TEXTS, assert_stored

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("all_healed")]


def vote(shop: int, item: int = 1, stars: int = 1, number: int = 1) -> None:
    Vote.objects.bulk_create(Vote(shop=shop, item=item, stars=stars) for _ in range(number))


def test_an_owner_key_stands_for_one_owner_and_comes_back(alice):
    owner_keys = set()
    for text in TEXTS:
        key = unread_by_app.pk_of((alice, text))
        assert key == (alice.pk, text)
        assert unread_by_app.valid_pk(str(key)) == key
        assert unread_by_app.owner_keys([[alice.pk], [text]]) == [str(key)]
        owner_keys.add(str(key))
    assert len(owner_keys) == len(TEXTS)
    assert votes.owner_keys([(1, 1), (2, None), (3, 1)]) == ["[1,\t2,\t3]", None]
    assert votes.owner_keys([(1,), (2,), (3,)]) == ["[1,\t2,\t3]"]


def test_what_is_no_owner_key_is_rejected():
    for owner_key in (
        "", "1", "{}", "[1,\t1]", "[1,\t1,\t1,\t1]", "[[1],\t1,\t1]", "\udcff", "[" * 100_000, "[1,\t1,\t1",
        "[1,1,\t1]", "[1,\t1,\t1] ", "[1,\t1,\t1.0]", '[1,\t1,\t"1"]', "[1,\t1,\ttrue]", "[1,\t1,\tnull]",
        "[1,\t1,\tNaN]", "[1,\t1,\t007]", f"[1,\t1,\t{2**63}]", f"[1,\t1,\t{'9' * 5000}]",
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            votes.valid_pk(owner_key)


def test_what_is_no_owner_is_an_error():
    for owner in (None, 1, "ab", (1, 2), (1, 2, 3, 4), (1, None, 3), (1, "x", 3), (1, True, 3)):
        with pytest.raises(ValueError, match="takes a tuple|needs an owner|not a primary key"):
            votes.count(owner)


def test_a_generated_column_changes_with_what_it_is_computed_from():
    owner = (1, 1, 2)
    Vote.objects.bulk_create(Vote(shop=1, item=1, stars=2, points=each) for each in (3, 4))
    assert points.count(owner) == 14
    Vote.objects.filter(shop=1, item=1, stars=2).update(points=5)
    assert points.count(owner) == 20
    first = Vote.objects.earliest("pk")
    first.points = 1
    first.save(update_fields=["points"])
    assert points.count(owner) == 12
    assert_stored(points)


def test_one_of_its_columns_changes():
    """Nothing says what the others are, but the rows do."""
    vote(1, stars=1)
    vote(2, stars=1, number=2)
    vote(3, stars=1)
    owners = [(shop, 1, stars) for shop in (1, 2, 3) for stars in (1, 2)]
    assert [*votes.counts(owners).values()] == [1, 0, 2, 0, 1, 0]
    assert Vote.objects.filter(shop__lt=3).update(stars=2) == 3
    assert votes.buffer.status().ready  # not everyone is in doubt
    assert [*votes.counts(owners).values()] == [0, 1, 0, 2, 1, 0]


def test_a_row_without_one_of_its_owners_belongs_to_nobody(alice):
    Alert.objects.create(organization=None, recipient=alice)
    Alert.objects.bulk_create([Alert(organization=None, recipient=alice)])
    Alert.objects.filter(recipient=alice).delete()
    assert truth(alerts) == {}
    assert_stored(alerts)
    assert not AlertCount.objects.exists()


def test_counters_of_one_table_of_totals_are_flushed_apart(alice):
    CourseNotification.objects.bulk_create(CourseNotification(user=alice, app_name=text) for text in TEXTS)
    unread_by_app.flush()
    CourseNotification.objects.filter(user=alice, app_name="likes").update(last_seen="2026-01-01T00:00Z")
    unseen_by_app.flush()
    assert sorted(AppCount.objects.values_list("app_name", "unseen_count", "unread_count")) == sorted(
        (text, int(text != "likes"), 1) for text in TEXTS
    )
    assert_stored(unread_by_app, unseen_by_app)


def test_everyone_is_recounted_in_pages(monkeypatch):
    """Whatever is wrong: a total, a missing total, rows without one."""
    monkeypatch.setattr(walk, "OWNERS_PER_CALL", 3)
    for shop in range(4):
        for item in range(4):
            vote(shop, item, number=2)
    votes.flush()
    unheard(VoteCount.objects.filter(shop=1).update, vote_count=7)
    unheard(VoteCount.objects.filter(shop=2)._raw_delete, "default")
    unheard(Vote.objects.filter(shop=3, item__gt=1).delete)
    unheard(vote, 9)
    result = votes.recount()
    assert (result.owners, result.wrong) == (17, 11)
    assert {tuple(difference.owner) for difference in result.differences} == {
        *((shop, item, 1) for shop in (1, 2) for item in range(4)), (3, 2, 1), (3, 3, 1), (9, 1, 1)
    }  # fmt: skip
    assert_stored(votes)


def test_many_are_counted_at_once():
    """In statements with as many parameters as the database takes, also if a column cannot hold a key."""
    vote(1, number=2)
    absent = [(2**40, 1, 1), (1, 1, 2**20)]
    numbers = []

    def look(execute: Any, sql: Any, params: Any, *more: Any) -> Any:
        numbers.append(len(params or ()))
        return execute(sql, params, *more)

    with connection.execute_wrapper(look):
        counts = votes.counts([*absent, *((number, number, 1) for number in range(1000))])
    assert (counts[1, 1, 1], sum(counts.values()), len(counts)) == (2, 2, 1002)
    assert max(numbers) <= (connection.features.max_query_params or math.inf)


SLOW = {
    "postgresql": "Join|Nested Loop",  # with old statistics, it compares each row with each owner
    "mysql": "'ALL'|Table scan on composite",  # as MariaDB and MySQL say it
    "sqlite": "SCAN composite_owners_alertcount",
}


def test_many_are_found_by_an_index():
    """That of the totals has all columns, those of the rows have one each."""
    owners = [(uuid4(), key) for key in make_keys(500)]
    Alert.objects.bulk_create(Alert(organization_id=organization, recipient_id=key) for organization, key in owners)
    alerts.flush()
    with CaptureQueriesContext(connection) as queries:
        assert alerts.recount(owners[:2]).wrong == 0
    explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
    for table in (Alert, AlertCount):
        counted = re.compile(f"FROM .{table._meta.db_table}. WHERE.* IN ")
        [sql] = {query["sql"] for query in queries if counted.search(query["sql"])}
        with connection.cursor() as cursor:
            cursor.execute(f"{explain} {sql}")
            assert not re.search(SLOW[connection.vendor], str(cursor.fetchall()))
