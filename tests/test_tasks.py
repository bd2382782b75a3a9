import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec

import pytest
from django.conf import settings
from django.db import connection

from notifications_counter import tasks, timeseries
from notifications_counter.counters import all_counters, unread
from notifications_counter.exceptions import OUTAGES
from notifications_counter.models import UserNotificationsCount
from tests.docs.test_docs import page, python_blocks, section
from tests.support import PATIENCE, OtherConnection, assert_exact, create, execute, session, stored, unheard, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


# ---------------------------------------------------------------------------------------------------- the functions
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


# ---------------------------------------------------------------------------------------------------------- workers
@pytest.fixture
def worker(child_environment):
    """Starts a worker in a process of its own."""
    processes = []

    def start(*arguments: str, **environment: str) -> None:
        environment = {**child_environment, **environment}
        processes.append(subprocess.Popen([sys.executable, "-m", *arguments], env=environment))

    yield start
    for process in processes:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.once
@pytest.mark.slow
def test_celery_beat_and_a_worker(few_healed, alice, tmp_path, worker):
    pytest.importorskip("celery")
    create(alice)
    worker(
        *("celery", "-A", "tests.contrib.celery_site", "worker", "--beat", "--concurrency", "1"),
        *("--schedule", str(tmp_path / "schedule"), "--without-mingle", "--without-gossip"),
        TEST_REDIS_URL=settings.CACHES["default"]["LOCATION"],
    )
    wait_until(lambda: stored(alice) == 1)
    create(alice)
    wait_until(lambda: stored(alice) == 2)
    assert_exact(alice)


@pytest.mark.once
def test_a_worker_of_django_tasks(few_healed, alice, child_environment, worker, tmp_path):
    """The worker does the task of the page."""
    pytest.importorskip("django_tasks_db", reason="missing: django-tasks-db")
    task = python_blocks(section(page("howto/in-production.md"), "Django's tasks"))[0]
    if not find_spec("django.tasks"):  # the backport
        task = task.replace("django.tasks", "django_tasks")
    (tmp_path / "site_tasks.py").write_text(task)
    path = os.pathsep.join(filter(None, [str(tmp_path), child_environment.get("PYTHONPATH")]))
    environment = {"DJANGO_SETTINGS_MODULE": "tests.contrib.django_tasks_settings", "PYTHONPATH": path}
    code = "import django\ndjango.setup()\n"
    code += "from django.core.management import call_command\n"
    code += "call_command('migrate', 'django_tasks_database', verbosity=0)\n"
    code += "import site_tasks\nsite_tasks.flush.enqueue()\n"
    create(alice)
    subprocess.run([sys.executable, "-c", code], env={**child_environment, **environment}, check=True)
    assert stored(alice) == 0
    worker("django", "db_worker", "--interval", "0.1", **environment)
    wait_until(lambda: stored(alice) == 1)
    assert_exact(alice)
