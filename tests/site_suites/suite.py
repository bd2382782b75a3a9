"""The tests of a site, which isolates only what needs Redis. Run by ``test_site_suites.py``."""

import os
from unittest import skipUnless

from django.contrib.auth import get_user_model
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection
from django.test import TestCase, TransactionTestCase

from notifications_counter import events, timeseries
from notifications_counter.counters import unread
from notifications_counter.databases.identity import identify
from notifications_counter.models import Notification, UserNotificationsCount
from notifications_counter.testing import isolated_counters

HAS_REDIS = bool(os.environ.get("SUITE_HAS_REDIS"))


KEY = get_user_model()._meta.pk.to_python(f"{1_000_000:032}")
"""A number, a UUID or a text."""


class Rolled(TestCase):
    @skipUnless(HAS_REDIS, "Events are in Redis.")
    @isolated_counters()
    def test_events_and_time_series(self) -> None:
        events.record_event({"type": self.id()})
        timeseries.update_counter(self.id())
        assert events.count_type(self.id()) == 1
        assert [count for _, count in timeseries.get_counter(self.id(), 86400)] == [1]


class Committed(TransactionTestCase):
    def setUp(self) -> None:
        with open(os.environ["SUITE_DATABASES"], "a") as file:  # which process works on which database
            file.write(f"{os.getpid()} {identify(connection).id}\n")
        self.user = get_user_model().objects.create_user("anna")

    def test_the_count(self) -> None:
        Notification.objects.create(user=self.user, title="new")
        assert unread.count(self.user) == 1

    @skipUnless(HAS_REDIS, "A flush needs Redis.")
    @isolated_counters()
    def test_a_flush(self) -> None:
        unread.heal()
        Notification.objects.create(user=self.user, title="new")
        assert unread.count(self.user) == 1
        assert unread.flush().owners == 1
        assert UserNotificationsCount.objects.get(user=self.user).unread_count == 1
        assert unread.count(self.user) == 1


class Restored(Committed):
    """Before each test, Django restores the rows of the migrations, among them the id that the database had."""

    serialized_rollback = True
    test_another_flush = Committed.test_a_flush

    @skipUnless(HAS_REDIS, "Without Redis, rows are counted.")
    @isolated_counters()
    def test_owners_of_the_same_key(self) -> None:
        user = get_user_model().objects.create_user("ben", pk=KEY)
        assert unread.count(user) == 0
        unread.heal()
        Notification.objects.create(user=user, title="new")
        assert unread.count(user) == 1

    test_another_owner_of_the_same_key = test_owners_of_the_same_key

    @classmethod
    def tearDownClass(cls) -> None:
        """Django has not said that it emptied the database after the last of these tests."""
        super().tearDownClass()
        emit_post_migrate_signal(verbosity=0, interactive=False, db="default")


class CommittedToo(Committed):
    """There is something to do for each of the processes."""
