"""Trouble with Redis that other processes have: whoever watches sees it, and what to do."""

from collections.abc import Iterator
from unittest import mock

import pytest
import redis

from notifications_counter.buffer import client as client_module
from notifications_counter.buffer import keys
from notifications_counter.buffer.client import client_of
from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import assert_heals, assert_reads, notify, status_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def client(server, use) -> Iterator[redis.Redis]:
    """A connection to a Redis of the test's own, in which the counters are."""
    use(server.url)
    unread.heal()
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


def test_trouble_that_goes_on_is_a_problem_for_a_minute_and_its_reason_is_told(client, alice):
    key = keys.trouble(options.KEY_PREFIX)
    client.config_set("maxmemory", 1)
    Notification.objects.create(user=alice, title="x")
    assert unread.count(alice) == 1
    client.config_set("maxmemory", 0)
    assert status_of(unread).problems == ()  # once is no problem
    client.hincrby(key, "since", -5)
    [problem] = status_of(unread).problems
    assert problem.kind == "redis"
    assert "maxmemory" in problem.reason
    assert "maxmemory" not in problem.text  # which is what the health check shows
    note_elsewhere("other trouble")
    [problem] = status_of(unread).problems
    assert problem.reason == "other trouble"
    for name in ("at", "since"):
        client.hincrby(key, name, -61)
    assert status_of(unread).problems == ()
    note_elsewhere("trouble again")
    assert status_of(unread).problems == ()


def note_elsewhere(reason: str) -> None:
    """Another process has trouble. Each one notes it only once in a while."""
    with mock.patch.object(client_module, "_clients", {}):
        client_of("default").note_trouble(reason)


# ------------------------------------------------------------------------------------------- what is not ours
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "x") for name in ("pending", "flushing", "state", "ready", "intents", "in_flight", "aside")),
        ("listeners", "x"),
        ("state", {"batch": "x"}),
        ("state", {"finished": "x"}),
    ],
    ids=str,
)
def test_what_something_else_has_written_is_mended(client, alice, bob, name, value):
    """Counts are right all the time."""
    notify(alice, 3)
    notify(bob, 2)
    assert_reads(alice, bob)
    key = getattr(unread.buffer.keys, name)
    if isinstance(value, dict):
        client.hset(key, mapping=value)
    else:
        client.delete(key)
        client.set(key, value) if name != "ready" else client.lpush(key, value)
    for _ in range(3):
        Notification.objects.create(user=alice, title="x")
        assert_reads(alice, bob)
    unread.heal()
    assert_heals(alice, bob)
