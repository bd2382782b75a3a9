"""Sums that Redis, or the column of the totals, cannot hold."""

from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from notifications_counter.testing import isolated_counters
from tests.support import buffer, unheard

from .counters import watched_weight
from .models import Agent, Ticket, Watch, WatchCount
from .support import assert_counted, assert_stored, doubts, heal

EXACT = 2**53


def watch(agent: Agent, *weights: int) -> None:
    for weight in weights:
        Watch.objects.create(agent=agent, ticket=Ticket.objects.create(), weight=weight)


def store(agent: Agent, weight: int) -> None:
    """A row, and a total that is right without Redis."""
    unheard(watch, agent, weight)
    WatchCount.objects.create(agent=agent, weight=weight)
    heal(watched_weight)


def rejected(redis_client: Any) -> dict[bytes, bytes]:
    return redis_client.hgetall(buffer(watched_weight).keys.rejected)


@pytest.mark.parametrize("weight", [EXACT + 1, -EXACT - 1, 5 * EXACT])
def test_a_change_that_redis_would_round(ann, ben, weight, caplog):
    """It is logged once, and added in parts. Reads are right all the time."""
    watch(ben, 1)
    watch(ann, weight, 3, weight)
    watched_weight.count(ben)  # the reply to the last confirmation is read
    (record,) = caplog.records
    assert (record.event, record.counter, record.owner) == ("too_large", "watched_weight", str(ann.pk))
    assert "sum up a coarser unit" in record.getMessage()
    parts = 0
    while doubts(watched_weight):
        parts += 1
        assert_counted([ann.pk, ben.pk], watched_weight, doubt=True)
        heal(watched_weight)
        watched_weight.flush()
    assert 1 <= parts <= 2 * abs(weight) // EXACT + 2
    assert_stored([ann.pk, ben.pk], watched_weight)


def test_changes_that_redis_would_round_together(ann, redis_client):
    """A flush makes room for a correction."""
    watch(ann, EXACT - 1, 2)
    assert_counted([ann.pk], watched_weight, doubt=True)
    with transaction.atomic():
        watch(ann, EXACT - 5, -7)
    assert_counted([ann.pk], watched_weight, doubt=True)
    heal(watched_weight)
    watched_weight.flush()
    assert_stored([ann.pk], watched_weight)
    Watch.objects.update(weight=F("weight") - 9)
    assert_stored([ann.pk], watched_weight)
    assert not rejected(redis_client)


@pytest.mark.parametrize("weight", [EXACT - 1, 2**60 + 1, -(2**60) - 1])
def test_totals_that_redis_would_round(ann, weight):
    """It has them as texts, and adds nothing to them."""
    store(ann, weight)
    for _ in range(2):
        assert_counted([ann.pk], watched_weight)
        assert watched_weight.count(ann) == weight
    watch(ann, 2)
    assert_counted([ann.pk], watched_weight)
    watched_weight.invalidate()
    for _ in range(2):  # the first read repairs the count
        assert_counted([ann.pk], watched_weight, doubt=True)
    assert_stored([ann.pk], watched_weight)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="Its SUM() raises an error.")
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_that_the_column_cannot_hold(ann, redis_client, sign, caplog):
    """It is logged once, although each flush tries again."""
    weight = sign * (2**63 - 1)
    store(ann, weight)
    watch(ann, sign * 5)
    for _ in range(2):
        assert_counted([ann.pk], watched_weight, doubt=True)
        watched_weight.flush()
        heal(watched_weight)
    assert rejected(redis_client) == {str(ann.pk).encode(): str(sign * 5).encode()}
    (record,) = (each for each in caplog.records if each.event == "rejected")
    assert (record.counter, record.member, record.delta) == ("watched_weight", str(ann.pk), str(sign * 5))
    assert "WatchCount.weight cannot hold it" in record.getMessage()
    Watch.objects.filter(weight=sign * 5).update(weight=-sign)
    assert_stored([ann.pk], watched_weight)


def test_activity_that_time_slices_cannot_hold(ann):
    with isolated_counters(RECORD_ACTIVITY=True):
        heal(watched_weight)
        watch(ann, EXACT)
        assert_counted([ann.pk], watched_weight, doubt=True)
