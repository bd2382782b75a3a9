"""Sums that Redis, or the column of the totals, cannot hold."""

import pytest
from django.db import connection, transaction
from django.db.models import F

from tests.support import doubted, unheard

from .counters import watched_weight
from .models import Agent, Watch, WatchCount
from .support import assert_counted, assert_stored, heal

EXACT = 2**53


def watch(agent: Agent, *weights: int) -> None:
    for weight in weights:
        Watch.objects.create(agent=agent, weight=weight)


@pytest.fixture
def stored(ann: Agent, request: pytest.FixtureRequest) -> int:
    """A row, and a total that is right without Redis."""
    unheard(watch, ann, request.param)
    WatchCount.objects.create(agent=ann, weight=request.param)
    heal(watched_weight)
    return request.param


@pytest.mark.parametrize("weight", [EXACT + 1, -EXACT - 1])
def test_changes_that_redis_would_round(ann, ben, weight):
    """Their owners are in doubt, alone and together."""
    watch(ben, 1)
    watch(ann, weight, 3, weight)
    assert_counted([ann.pk, ben.pk], watched_weight, doubt=True)
    assert doubted(watched_weight) == [str(ann.pk), *([str(ben.pk)] if connection.vendor == "mysql" else ())]
    with transaction.atomic():
        watch(ann, EXACT - 5, -7)
    Watch.objects.update(weight=F("weight") - 9)
    assert_stored([ann.pk, ben.pk], watched_weight)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="Its SUM() raises an error.")
@pytest.mark.parametrize("stored", [2**63 - 1, 1 - 2**63], indirect=True)
def test_a_sum_that_the_column_cannot_hold(ann, stored, caplog):
    sign = 1 if stored > 0 else -1
    watch(ann, sign * 5)
    for _ in range(2):
        assert_counted([ann.pk], watched_weight, doubt=True)
        watched_weight.flush()
        heal(watched_weight)
    (record,) = (each for each in caplog.records if each.event == "skipped")
    assert (record.counter, record.owners) == ("watched_weight", 1)
    assert "WatchCount.weight cannot hold" in record.getMessage()
    Watch.objects.filter(weight=sign * 5).update(weight=-sign)
    assert_stored([ann.pk], watched_weight)
