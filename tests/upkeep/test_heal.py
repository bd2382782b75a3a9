"""What a heal notices and mends: a Redis that is not the one that was left, requests, and intents that nobody
confirms."""

import json
from collections.abc import Iterator

import pytest
from django.db import transaction

from notifications_counter.buffer import Buffer
from notifications_counter.buffer.types import IntentAge
from notifications_counter.counters import Counter, unread
from notifications_counter.exceptions import BufferUnavailable
from notifications_counter.models import CounterState, DoubtRequest
from notifications_counter.upkeep import heal
from notifications_counter.upkeep.phases import Situation, situation_of
from notifications_counter.writes.log import request_doubts
from tests.support import (
    announce,
    assert_heals,
    assert_reads,
    begin_now,
    buffer,
    create,
    doubted,
    entries,
    generation,
    notify,
    redis_out_of_reach,
    stored,
    total_key,
    unheard,
    wait_until,
)

pytestmark = pytest.mark.django_db(transaction=True)


NOTICED = ["ready", "state", "intents", "listeners", "total"]
BY_A_WALK = ["pending", "flushing"]


@pytest.mark.parametrize(
    ("key", "field"), [*((key, "") for key in NOTICED + BY_A_WALK), ("state", "batch"), ("state", "mark")], ids=str
)
def test_a_key_that_somebody_deletes(healed, alice, bob, redis_client, key, field):
    """Counts are right all the time, and stored totals at the latest after a walk. More: tests/protocol."""
    notify(alice)
    assert_reads(alice, bob)
    create(alice)
    if key == "flushing":
        buffer().cut(CounterState.objects.get(counter="unread").mark, "", "ba7c4")
    at = total_key(alice) if key == "total" else buffer().key(key)
    if field:
        redis_client.hset(at, field, "foreign")
    else:
        redis_client.delete(at)
    for user in (alice, bob):
        create(user)
        assert_reads(alice, bob)
    with entries(HEAL_AFTER=0):
        unread.heal()
    if key in BY_A_WALK:
        unread.flush()
        unread.recount()
    assert_heals(alice, bob)
    assert stored(alice) == 5


def test_a_generation_that_is_due_begins_once(healed, alice, redis_client, monkeypatch, caplog):
    """Two flushers see that it is due."""

    def see(counter: Counter) -> Situation:
        seen = situation_of(counter)
        monkeypatch.undo()
        unread.heal()  # the other one
        return seen

    redis_client.delete(buffer().key("ready"))
    monkeypatch.setattr(heal, "situation_of", see)
    unread.heal()
    assert [record.event for record in caplog.records].count("generation") == 1
    assert_heals(alice)


def test_requests(healed, alice, bob, make_user):
    """They are answered once. Those of another counter, or written meanwhile, stay."""
    users = [alice, bob, *(make_user() for _ in range(5))]
    for user in users:
        notify(user)
        unheard(create, user)
    request_doubts("default", {unread: [str(user.pk) for user in users[:3]] * 2})
    DoubtRequest.objects.create(counter="another", owner_key=str(bob.pk))
    with redis_out_of_reach(), pytest.raises(BufferUnavailable):
        unread.heal()
    assert DoubtRequest.objects.count() == 7
    unread.heal()
    assert sorted(doubted()) == sorted(str(user.pk) for user in users[:3])
    assert [request.counter for request in DoubtRequest.objects.all()] == ["another"]
    unread.flush()
    assert [stored(user) for user in users] == [4, 4, 4, 3, 3, 3, 3]
    assert_heals(alice, bob)


@pytest.mark.parametrize("entry", ["x", "[]", '{"owners": "1"}'])
def test_an_intent_that_something_else_wrote(healed, alice, redis_client, entry):
    """Nobody knows whose it was."""
    notify(alice)
    with transaction.atomic():
        create(alice)
        begin_now()
        for intent in redis_client.hkeys(buffer().key("intents")):
            redis_client.hset(buffer().key("intents"), intent, entry)
    assert_reads(alice)
    redis_client.hset(buffer().key("intents"), b"\xff", entry)
    before = generation(buffer())
    unread.heal()
    assert generation(buffer()) != before
    unread.heal()
    assert unread.buffer.status().intents == 0
    assert_heals(alice)


def test_an_announcement_that_is_sent_twice(healed, alice, redis_client):
    """As redis-py does if a node of a cluster has run it and does not answer."""
    for _ in range(2):
        announce(buffer(), "twice", [str(alice.pk)])
    assert redis_client.hvals(buffer().key("in_flight")) == [b"1"]
    for _ in range(2):  # the second flusher comes too late
        buffer().ground("twice", drop=True)
    assert buffer().status().ready


def test_an_intent_is_not_dropped_before_it_is_overdue(healed, alice):
    """Where HEAL_AFTER is longer than MAX_TRANSACTION_AGE."""
    announce(buffer(), "slow", [str(alice.pk)])
    with entries(HEAL_AFTER=3600, MAX_TRANSACTION_AGE=0):
        unread.heal()
    assert buffer().status().intents == 1
    with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0):
        unread.heal()
    assert buffer().status().intents == 0


def test_an_intent_that_is_announced_amid_a_heal_stays_in_flight(healed, alice, monkeypatch, redis_client):
    """The heal has looked at the clock of Redis, and then the next second has begun."""
    read = Buffer.intents

    def read_later(self: Buffer) -> Iterator[IntentAge]:
        second, _ = redis_client.time()
        wait_until(lambda: redis_client.time()[0] > second)
        announce(self, "writing", [str(alice.pk)])
        return read(self)

    monkeypatch.setattr(Buffer, "intents", read_later)
    unread.heal()
    assert buffer().status().intents == 1
    assert not doubted()


def test_a_clock_that_was_set_back_keeps_no_intent_for_ever(healed, alice, redis_client):
    announce(buffer(), "killed", [str(alice.pk)])
    entry = json.loads(redis_client.hget(buffer().key("intents"), "killed"))
    for name in ("began", "checked"):
        entry[name] += 10**6
    redis_client.hset(buffer().key("intents"), "killed", json.dumps(entry))
    with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0):
        unread.heal()
        unread.heal()
    assert buffer().status().intents == 0
