"""Recounts of everyone: pages of owners, whose rows and totals are compared by one statement."""

import random
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from notifications_counter.buffer import buffer as buffer_module
from notifications_counter.counters import unread
from notifications_counter.maintenance import recount
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.sql import everyone
from tests.support import PATIENCE, OtherConnection, assert_exact, assert_heals, buffer, entries, notify, unheard
from tests.tasks.counters import visible_posts
from tests.tasks.models import Post, Topic

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def small(monkeypatch):
    """Pages and calls of a few users."""
    for module, name, size in [
        (recount, "PAGE", 3),
        (recount, "LARGE_PAGE", 12),
        (everyone, "MOST_NAMED", 2),
        (buffer_module, "CORRECTIONS_PER_CALL", 2),
    ]:
        monkeypatch.setattr(module, name, size)


def statements(do: Any) -> int:
    """How many statements counted the rows of a page."""
    with CaptureQueriesContext(connection) as queries:
        do()
    return sum("counted_rows" in query["sql"] for query in queries)


@pytest.mark.keys
@pytest.mark.parametrize("seed", range(5))
def test_any_damage_is_corrected(healed, small, make_user, redis_client, seed):
    """Rows that nobody counted, totals that somebody wrote, and what waits in Redis, of some owners only."""
    chance = random.Random(seed)
    users = [make_user() for _ in range(40)]
    for user in users:
        if chance.random() < 0.5:
            Notification.objects.bulk_create(Notification(user=user, title="x") for _ in range(chance.randrange(3)))
            unread.count(user)
    if chance.random() < 0.5:
        unread.flush()
    for user in users:
        if chance.random() < 0.2:
            unheard(Notification.objects.bulk_create, [Notification(user=user, title="y")])
        if chance.random() < 0.2:
            unheard(UserNotificationsCount.objects.filter(pk=user.pk).update, unread_count=chance.randrange(-3, 4))
        if chance.random() < 0.2:
            redis_client.zincrby(buffer().keys.pending, chance.randrange(1, 4), str(user.pk))
        if chance.random() < 0.2:
            redis_client.set(buffer().keys.total("1", str(user.pk)), 9)
            UserNotificationsCount.objects.get_or_create(pk=user.pk)
    expected = unread.recount(dry_run=True)
    wrong = expected.wrong + expected.postponed
    found = unread.recount()
    assert (found.checked, found.wrong, found.corrected) == (expected.checked, wrong, wrong)
    assert_exact(*users)
    assert unread.recount().wrong == 0


@pytest.mark.keys
def test_recounts_of_everyone_while_others_write(healed, small, make_user):
    users = [make_user() for _ in range(15)]

    def write(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(120):
            user = chance.choice(users)
            if chance.random() < 0.6:
                Notification.objects.bulk_create(Notification(user_id=user.pk, title="x") for _ in range(2))
            else:
                Notification.objects.filter(user=user.pk).mark_as_read()

    with OtherConnection() as other:
        writing = other.start(write, 1)
        while not writing.done():
            unread.recount()
            unread.flush()
        writing.result(PATIENCE)
    assert_heals(*users)


@pytest.mark.parametrize("shards", [1, 4])
def test_one_walk_for_all_shards(make_user, shards):
    users = [make_user() for _ in range(12)]
    with entries(SHARDS=shards):
        for user in users:
            notify(user)
        unread.heal()
        for one in unread.buffers:
            one.client.call(one.keys.state, "DEL", one.keys.state, one.keys.ready)
        assert statements(unread.heal) == 1
        assert statements(unread.recount) == 1
        assert_exact(*users)


def test_only_the_shard_that_was_lost_is_recounted(make_user):
    users = [make_user() for _ in range(24)]
    with entries(SHARDS=4):
        for user in users:
            notify(user)
        unread.heal()
        lost = unread.buffers[2]
        lost.client.call(lost.keys.state, "DEL", lost.keys.state, lost.keys.ready)
        mine = [user for user in users if unread.buffer_of(str(user.pk)).shard == lost.shard]
        assert unread.heal().checked == len(mine) < len(users)
        assert_exact(*users)


def test_shards_that_were_interrupted_at_different_places(small, make_user):
    users = [make_user() for _ in range(24)]
    with entries(SHARDS=4):
        unheard(Notification.objects.bulk_create, [Notification(user=user, title="x") for user in users])
        unread.heal(stopped=lambda: True)
        pages: list[int] = []
        unread.heal(progress=pages.append, stopped=lambda: bool(pages))
        assert pages == [3]
        lost = unread.buffers[2]
        lost.client.call(lost.keys.state, "DEL", lost.keys.state)
        assert_heals(*users)


def test_texts_with_any_characters():
    names = ["", "a,b", 'a"b', "a\\b", "[1]", "%s", "é", "\N{GRINNING FACE}", " x", "owner:1"]
    topics = [Topic.objects.create(id=name) for name in names]
    visible_posts.heal()
    unheard(Post.objects.bulk_create, [Post(topic=topic) for topic in topics])
    result = visible_posts.recount()
    assert (result.checked, result.corrected) == (len(names), len(names))
    assert_exact(*topics, counter=visible_posts)
