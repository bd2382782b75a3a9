"""Trouble with Redis that other processes have: whoever watches sees it, and what to do."""

from unittest import mock

import pytest
import redis

from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.redis import client as client_module
from notifications_counter.redis.client import client_of
from tests.support import status_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def test_trouble_that_goes_on_is_a_problem_for_a_minute_and_its_reason_is_told(use, server, other, alice):
    use(server.url)
    unread.heal()
    key = f"{{{options.KEY_PREFIX}:trouble}}"
    other.config_set("maxmemory", 1)
    Notification.objects.create(user=alice, title="x")
    assert unread.count(alice) == 1
    other.config_set("maxmemory", 0)
    assert status_of(unread).problems == ()  # once is no problem
    other.hincrby(key, "since", -5)
    [problem] = status_of(unread).problems
    assert problem.kind == "redis"
    assert "maxmemory" in problem.reason
    assert "maxmemory" not in problem.text  # which is what the health check shows
    note_elsewhere("other trouble")
    [problem] = status_of(unread).problems
    assert problem.reason == "other trouble"
    for name in ("until", "since"):
        other.hincrby(key, name, -61)
    assert status_of(unread).problems == ()
    note_elsewhere("trouble again")
    assert status_of(unread).problems == ()


def test_an_outage_is_told_when_it_is_over(use, server, other, alice):
    """As trouble that goes on, if there was another one before."""
    client = use(server.url)
    unread.heal()
    client.breaker.trip(redis.ConnectionError("an outage"))
    client.breaker.retry_at = 0.0  # as if the time had passed
    assert unread.count(alice) == 0
    other.hincrby(f"{{{options.KEY_PREFIX}:trouble}}", "since", -5)
    [problem] = status_of(unread).problems
    assert "an outage" in problem.reason


def note_elsewhere(reason: str) -> None:
    """Another process has trouble. Each one notes it only once in a while."""
    with mock.patch.object(client_module, "_clients", {}):
        client_of("default").note_trouble(reason)
