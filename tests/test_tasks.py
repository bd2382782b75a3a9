from contextlib import suppress

import pytest
from django.db import connection

from notifications_counter import tasks, timeseries
from notifications_counter.counters import all_counters, unread
from notifications_counter.databases.errors import OUTAGES
from notifications_counter.models import UserNotificationsCount
from tests.docs.test_docs import page, python_blocks, section
from tests.support import OtherConnection, create, execute, session, stored, unheard, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_each_returns_what_it_has_done(few_healed, alice):
    of_unread = {counter.name: int(counter is unread) for counter in all_counters()}
    create(alice)
    assert tasks.flush() == of_unread
    assert stored(alice) == 1
    unheard(UserNotificationsCount.objects.update, unread_count=7)
    assert tasks.recount() == of_unread
    assert unread.count(alice) == 1
    series = timeseries.TimeSeries()
    series.update_counter("visits", now=1)
    assert [tasks.clean(), tasks.clean()] == [len(series.precisions), 0]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no connections to a server.")
def test_the_next_run_has_a_connection(few_healed):
    """A scheduler calls them in threads that have no requests, at whose end Django would close a broken connection."""
    kill, look_up = {
        "postgresql": ("SELECT pg_terminate_backend({})", "SELECT 1 FROM pg_stat_activity WHERE pid = {}"),
        "mysql": ("KILL {}", "SELECT 1 FROM information_schema.processlist WHERE id = {}"),
    }[connection.vendor]
    victim = session()
    with OtherConnection() as other:
        other.run(execute, kill.format(victim))
        wait_until(lambda: not other.run(execute, look_up.format(victim)))  # or MariaDB may interrupt a later statement
    with suppress(*OUTAGES):
        tasks.flush()
    tasks.flush()
    assert connection.is_usable()


@pytest.mark.once
def test_the_task_that_celery_beat_names(few_healed, alice):
    site = pytest.importorskip("celery").Celery()
    names: dict = {}
    for block in python_blocks(section(page("howto/in-production.md"), "Celery")):
        exec(block, names)
    (entry,) = names["CELERY_BEAT_SCHEDULE"].values()
    create(alice)
    site.tasks[entry["task"]].apply(throw=True)
    assert stored(alice) == 1
