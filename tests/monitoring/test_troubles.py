"""Trouble with Redis that other processes have: whoever watches sees it, and what to do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import redis

from notifications_counter.buffer import client as client_module
from notifications_counter.buffer import keys
from notifications_counter.buffer.client import Client, client_of
from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.databases.identity import forget_buffers
from notifications_counter.models import Notification
from tests.support import assert_heals, assert_reads, notify, status_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def client(server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def use(use, server) -> Callable[..., Client]:
    use(server.url)
    unread.heal()
    return use


@contextmanager
def another_process() -> Iterator[None]:
    """Inside, what a process would know of Redis that has just started: nothing."""
    with mock.patch.object(client_module, "_clients", {}):
        forget_buffers()
        yield
    forget_buffers()


def seen() -> list[str]:
    """The kinds of problems that another process reports."""
    with another_process():
        return [problem.kind for problem in status_of(unread).problems]


def shift(client: redis.Redis, seconds: int, *names: str) -> None:
    """Move a time of the last trouble into the past."""
    for name in names:
        client.hincrby(keys.trouble(options.KEY_PREFIX), name, -seconds)


def test_trouble_that_goes_on_is_a_problem_for_a_minute_and_its_reason_is_told(use, client, alice):
    client.config_set("maxmemory", 1)
    Notification.objects.create(user=alice, title="x")
    assert unread.count(alice) == 1
    client.config_set("maxmemory", 0)
    shift(client, 5, "since")
    assert seen() == ["redis"]
    status = status_of(unread)
    [problem] = status.problems
    assert "maxmemory" in problem.reason
    assert "maxmemory" not in problem.text  # which is what the health check shows
    shift(client, 61, "at", "since")
    assert seen() == []
    with another_process():
        client_of("default").note_trouble("other trouble")
    assert seen() == []
    assert status_of(unread).trouble[1:] == (0, "other trouble")


# ------------------------------------------------------------------------------------------- what is not ours
def spoil(client: redis.Redis, name: str, value: Any) -> None:
    key = getattr(unread.buffer.keys, name)
    if isinstance(value, dict):
        client.hset(key, mapping=value)
    else:
        client.delete(key)
        client.set(key, value) if name != "ready" else client.lpush(key, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "x") for name in ("pending", "flushing", "state", "ready", "intents", "in_flight", "aside")),
        *((name, "x") for name in ("listeners", "walked")),
        ("state", {"batch": "x"}),
        ("state", {"finished": "x"}),
    ],
    ids=str,
)
def test_what_something_else_has_written_is_mended(use, client, alice, bob, name, value):
    """Counts are right all the time."""
    notify(alice, 3)
    notify(bob, 2)
    assert_reads(alice, bob)
    spoil(client, name, value)
    for _ in range(3):
        Notification.objects.create(user=alice, title="x")
        assert_reads(alice, bob)
    unread.heal()
    assert_heals(alice, bob)
