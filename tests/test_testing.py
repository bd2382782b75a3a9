"""What the tests of a site get from this app."""

import asyncio
import unittest
from uuid import uuid4

import pytest
from django.db import transaction
from django.test import override_settings
from django_redis import get_redis_connection

from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.events import EventLog
from notifications_counter.models import Notification
from notifications_counter.testing import isolated_counters
from notifications_counter.timeseries import TimeSeries
from tests.support import assert_exact, notify


@pytest.mark.django_db(transaction=True)
def test_keys_of_its_own(alice, redis_client):
    outside = options.KEY_PREFIX
    with isolated_counters(TOTAL_TTL=7) as prefix:
        assert prefix == options.KEY_PREFIX != outside
        assert options.TOTAL_TTL == 7
        unread.heal()
        notify(alice)
        assert_exact(alice)
        assert list(redis_client.scan_iter(match=f"{{{prefix}:*"))
        with isolated_counters() as inner:
            assert inner != prefix
            assert unread.count(alice) == 3
        assert prefix == options.KEY_PREFIX
    assert outside == options.KEY_PREFIX
    assert options.TOTAL_TTL != 7
    assert not list(redis_client.scan_iter(match=f"{{{prefix}:*"))


@pytest.mark.once
@pytest.mark.parametrize("entry", [{"SHARD": 10}, {"SHARDS": 0}])
def test_bad_entries(entry):
    (name,) = entry
    with pytest.raises(ValueError, match=name):
        isolated_counters(**entry)


@pytest.mark.once
def test_shared_logs_and_families_have_keys_of_their_own(redis_client):
    log, family = f"log{uuid4().hex}", f"family{uuid4().hex}"
    with isolated_counters() as prefix:
        EventLog(log, shared=True).record_event({"type": "login"})
        TimeSeries(name=family, shared=True).update_counter("requests")
        for name in (log, family):
            keys = list(redis_client.scan_iter(match=f"*{name}*"))
            assert keys
            assert all(key.decode().startswith(f"{{{prefix}:") for key in keys)


@pytest.mark.once
def test_keys_in_another_cache(settings, redis_client):
    server = settings.CACHES["default"]["LOCATION"].rpartition("/")[0]
    own = {**settings.CACHES["default"], "LOCATION": f"{server}/15"}  # no worker has that
    with override_settings(CACHES={**settings.CACHES, "logs": own}):
        with isolated_counters() as prefix:
            EventLog("audit", alias="logs", shared=True).record_event({"type": "login"})
            logs = get_redis_connection("logs")
            assert list(logs.scan_iter(match=f"{{{prefix}:*"))
            assert not list(redis_client.scan_iter(match=f"{{{prefix}:*"))
        assert not list(logs.scan_iter(match=f"{{{prefix}:*"))


@pytest.mark.once
def test_as_a_decorator_of_an_async_function():
    @isolated_counters()
    async def work() -> str:
        await asyncio.sleep(0)
        return options.KEY_PREFIX

    assert asyncio.run(work()) != options.KEY_PREFIX


@pytest.mark.once
def test_as_a_decorator_of_a_class():
    """Each of its tests has counters of its own."""
    prefixes = [options.KEY_PREFIX]

    @isolated_counters(TOTAL_TTL=7)
    class Tests(unittest.TestCase):
        def test_one(self) -> None:
            prefixes.append(options.KEY_PREFIX)
            assert options.TOTAL_TTL == 7

        test_two = test_one

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
    assert (result.testsRun, result.wasSuccessful()) == (2, True)
    assert len(set(prefixes)) == 3
    assert prefixes[0] == options.KEY_PREFIX


@pytest.mark.django_db
def test_without_redis(alice, unreachable_redis):
    """In a test that never commits, rows are counted."""
    with isolated_counters():
        Notification.objects.create(user=alice, title="x")
        assert unread.count(alice) == 1
        Notification.objects.for_user(alice).mark_as_read()
        assert unread.counts([alice]) == {alice.pk: 0}


@pytest.mark.django_db
def test_in_a_test_that_never_commits(alice, bob, django_capture_on_commit_callbacks):
    with isolated_counters():
        for number in (1, 2, 3):
            with django_capture_on_commit_callbacks(execute=True):
                Notification.objects.create(user=alice, title="x")
                assert unread.count(alice) == number
            assert unread.counts([alice, bob]) == {alice.pk: number, bob.pk: 0}
        Notification.objects.for_user(alice).mark_as_read()
        assert unread.count(alice) == 0


@pytest.mark.django_db
def test_the_callbacks_of_a_test_are_those_of_the_site(alice, django_capture_on_commit_callbacks):
    def mine() -> None:
        pass

    with isolated_counters():
        for _ in range(2):
            with django_capture_on_commit_callbacks() as callbacks:
                Notification.objects.create(user=alice, title="x")
                transaction.on_commit(mine)
            assert callbacks == [mine]
