"""What a heal notices and mends: a Redis that is not the one that was left, requests, and intents that nobody
confirms."""

import json
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
import redis
from django.db import transaction

import servers
from notifications_counter.buffer import Buffer
from notifications_counter.buffer.buffer import NAMELESS
from notifications_counter.counters import unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import Notification, RecountRequest
from notifications_counter.writes.transaction import doubt, request_recounts
from tests.support import (
    announce,
    assert_heals,
    assert_reads,
    begin_now,
    buffer,
    doubted,
    entries,
    generation,
    notify,
    redis_out_of_reach,
    status_of,
    stored,
    unheard,
)

pytestmark = pytest.mark.django_db(transaction=True)


def create(user: Any) -> None:
    Notification.objects.create(user=user, title="x")


# ------------------------------------------------------------------------------------------------------ lost or foreign
KEYS = ["ready", "state", "pending", "flushing", "intents", "in_flight", "aside", "total"]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_something_else_wrote(healed, alice, bob, redis_client, key):
    """The flusher deletes what has another type. What a lost key means: tests/protocol."""
    notify(alice)
    assert_reads(alice, bob)
    create(alice)
    keys = buffer().keys
    if key == "flushing":
        buffer().cut(unread.status()[0].row.mark, "ba7c4")
    if key == "in_flight":
        announce(buffer(), "killed", [str(alice.pk)])
        unheard(create, alice)
    at = keys.total(generation(buffer()), str(alice.pk)) if key == "total" else getattr(keys, key)
    redis_client.delete(at)
    redis_client.rpush(at, "foreign")
    for user in (alice, bob):
        create(user)
    with suppress(BufferUnavailable), entries(HEAL_AFTER=0):
        for _ in range(3):
            unread.heal()
    assert_heals(alice, bob)
    assert stored(alice) == 5 + (key == "in_flight")


def test_everything_is_lost(healed, alice, bob, redis_client, caplog):
    notify(alice)
    assert_reads(alice, bob)
    before = generation(buffer())
    redis_client.delete(*redis_client.scan_iter(f"{buffer().keys.base}:*"))
    assert_reads(alice, bob)
    assert {"recovering", "unreachable"} & {problem.kind for problem in status_of(unread).problems}
    unread.heal()
    assert "begins a generation" in caplog.text
    assert generation(buffer()) != before
    assert_heals(alice, bob)


# -------------------------------------------------------------------------------------------------------- other servers
@pytest.mark.once
def test_a_server_that_forbids_info(use, alice):
    """Everything is exact, and the mark of a batch shows that it went back."""
    with servers.redis() as server, redis.Redis.from_url(server.url) as client:
        rights = {"keys": ["*"], "channels": ["*"], "commands": ["+@all", "-info"]}
        client.acl_setuser("app", enabled=True, passwords=["+secret"], **rights)
        use(server.url.replace("://", "://app:secret@"))
        unread.heal()
        assert buffer().server() == buffer().status().server == NAMELESS
        notify(alice)
        create(alice)
        copies = [(key, client.dump(key)) for key in client.scan_iter(match=f"{buffer().keys.base}*")]
        notify(alice, 2)
        for key, copy in copies:
            if copy is not None:  # an intent that was confirmed just then
                client.restore(key, 0, copy, replace=True)
        assert_heals(alice)
        assert stored(alice) == 6


def test_everyone_is_doubted_in_the_shards_that_can_be_reached(healed, make_user):
    users = [make_user() for _ in range(20)]
    with entries(SHARDS=2):
        for user in users:
            notify(user, 1)
        unread.heal()
        for user in users * 2:
            assert unread.count(user) == 1
        unheard(Notification.objects.bulk_create, [Notification(user=user, title="x") for user in users])
        forget = Buffer.forget

        def only_one(self: Buffer) -> None:
            if self.shard == 0:
                raise BufferUnavailable("It is down.")
            forget(self)

        with mock.patch.object(Buffer, "forget", only_one):
            assert doubt([(unread, None)])
        counts = {unread.by_shard([str(user.pk)])[0][0].shard: unread.count(user) for user in users}
    assert counts == {0: 1, 1: 2}


# ------------------------------------------------------------------------------------------------------------- requests
def test_requests(healed, alice, bob, make_user):
    """They are answered once. Those of another counter, or written meanwhile, stay."""
    users = [alice, bob, *(make_user() for _ in range(5))]
    for user in users:
        notify(user)
        unheard(create, user)
    request_recounts("default", [(unread, str(user.pk)) for user in users[:3]] * 2)
    RecountRequest.objects.create(counter="another", owner=str(bob.pk))
    with redis_out_of_reach(), pytest.raises(BufferUnavailable):
        unread.heal()
    assert RecountRequest.objects.count() == 7
    unread.heal()
    assert sorted(doubted()) == sorted(str(user.pk) for user in users[:3])
    assert [request.counter for request in RecountRequest.objects.all()] == ["another"]
    unread.flush()
    assert [stored(user) for user in users] == [4, 4, 4, 3, 3, 3, 3]
    assert_heals(alice, bob)


def test_deploy_seconds_that_are_longer_now_are_for_the_next_declaration(healed, alice):
    request_recounts("default", [(unread, str(alice.pk))])
    with entries(DEPLOY_SECONDS=3600):
        unread.heal()
    assert not RecountRequest.objects.exists()


# -------------------------------------------------------------------------------------------------------------- intents
def test_an_intent_that_began_before_the_clock_was_set_back(healed, alice, redis_client):
    """Its process was killed, and by the clock it begins tomorrow."""
    announce(buffer(), "part", [str(alice.pk)])
    unheard(create, alice)
    part = json.loads(redis_client.hget(buffer().keys.intents, "part"))
    began = part["began"] + 86400
    redis_client.hset(buffer().keys.intents, "part", json.dumps({**part, "began": began, "checked": began}))
    unread.heal()
    assert doubted() == [str(alice.pk)]
    assert_reads(alice)
    [intent] = buffer().intents()
    assert intent.began < began
    unread.flush()
    unread.heal()
    assert doubted() == []  # from here on its age is that of any other
    with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0):
        unread.heal()
    assert_heals(alice)


@pytest.mark.parametrize("entry", ["x", "[]", '{"owners": "1"}', b"\xff", '{"owners": [{}]}'])
def test_an_intent_that_something_else_wrote(healed, alice, redis_client, entry):
    """Nobody knows whose it was."""
    notify(alice)
    with transaction.atomic():
        create(alice)
        begin_now()
        for intent in redis_client.hkeys(buffer().keys.intents):
            redis_client.hset(buffer().keys.intents, intent, entry)
    assert_reads(alice)
    redis_client.hset(buffer().keys.intents, "foreign", entry)
    unread.heal()
    unread.heal()
    assert unread.status()[0].status.intents == 0
    assert_heals(alice)
