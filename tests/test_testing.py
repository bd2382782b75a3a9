"""What the tests of a site get from this app."""

import asyncio
import unittest
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from django.db import transaction
from django.test import override_settings

from notifications_counter.conf import options
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.testing import isolated_counters
from tests.support import assert_exact, assert_heals, assert_reads, create, notify, redis_out_of_reach


@pytest.mark.django_db(transaction=True)
def test_keys_of_its_own(alice, redis_client):
    outside = options.KEY_PREFIX
    for entry in ({"HEAL": 10}, {"HEAL_AFTER": -1}):
        with pytest.raises(ValueError, match="HEAL"):
            isolated_counters(**entry)
    with pytest.raises(TypeError, match="with parentheses"):
        isolated_counters(test_keys_of_its_own)
    with isolated_counters(TOTAL_TTL=7) as prefix:
        assert prefix == options.KEY_PREFIX != outside
        assert options.TOTAL_TTL == 7
        unread.heal()
        notify(alice)
        assert_exact(alice)
        assert list(redis_client.scan_iter(match=f"{{{prefix}:*"))
    assert outside == options.KEY_PREFIX
    assert options.TOTAL_TTL != 7
    assert not list(redis_client.scan_iter(match=f"{{{prefix}:*"))


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_flush_without_it_says_that_it_stores_nothing(alice, settings, caplog):
    settings.NOTIFICATIONS_COUNTER = {"KEY_PREFIX": options.KEY_PREFIX}  # that of this test, but a site's other entries
    notify(alice)
    assert unread.flush().owners == 0
    assert "nothing is stored for 300 s, because the counter is new" in caplog.text


@pytest.mark.once
def test_as_a_decorator():
    """Each test of a class has counters of its own."""
    prefixes = [options.KEY_PREFIX]

    @isolated_counters()
    async def work() -> None:
        prefixes.append(options.KEY_PREFIX)

    @isolated_counters()
    class Tests(unittest.TestCase):
        def test_one(self) -> None:
            prefixes.append(options.KEY_PREFIX)

        test_two = test_one

    asyncio.run(work())
    unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(unittest.TestResult())
    assert len(prefixes) == len(set(prefixes)) == 4


@contextmanager
def other_cache() -> Iterator[None]:
    """A test has replaced all caches."""
    with override_settings(CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}):
        yield


@pytest.mark.django_db
@pytest.mark.parametrize("caches", [nullcontext, redis_out_of_reach, other_cache])
def test_in_a_test_that_never_commits(alice, bob, django_capture_on_commit_callbacks, caches):
    """Rows are counted, and the callbacks of a test are those of the site."""

    def mine() -> None:
        pass

    with caches(), isolated_counters():
        for number in (1, 2, 3):
            with django_capture_on_commit_callbacks(execute=True) as callbacks:
                Notification.objects.create(user=alice, title="x")
                transaction.on_commit(mine)
                assert unread.count(alice) == number
            assert callbacks == [mine]
            assert unread.counts([alice, bob]) == {alice.pk: number, bob.pk: 0}
        Notification.objects.for_user(alice).mark_as_read()
        assert unread.count(alice) == 0


@pytest.mark.django_db(transaction=True)
def test_with_commits_and_another_cache(healed, alice, caplog):
    """As if Redis were down."""
    notify(alice)
    assert unread.count(alice) == 3
    with other_cache():
        create(alice, 2)
        assert_reads(alice)
        with isolated_counters():
            create(alice)
            assert_reads(alice)
    assert caplog.text.count("'default', which is not a django-redis cache in CACHES. Set ") == 1
    assert_heals(alice)
