"""A site tests itself beside its own Redis, which is in use, and has set nothing for that.

Its numbers are right, nothing of the site's is touched, and what the tests leave in Redis goes by itself.
"""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import servers
from notifications_counter import events, timeseries
from notifications_counter.counters import unread
from notifications_counter.models import Notification
from tests.support import assert_exact, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

HERE = Path(__file__).parent
DJANGO = ["django", "test", "tests.site_suites.suite", "--parallel", "2"]
PYTEST = ["pytest", "--noconftest", "-q", "-n", "2", "--ds", "tests.site_suites.settings", str(HERE / "suite.py")]


@pytest.fixture
def own_redis(use, server) -> Iterator[redis.Redis]:
    """A server that nobody else uses: what is not the site's is that of its tests."""
    use(server.url)
    with redis.Redis.from_url(server.url) as client:
        yield client


def run(runner: list[str], url: str, environment: dict[str, str], tmp_path: Path) -> None:
    """Run the suite. No two processes may have worked on one database."""
    noted = tmp_path / "databases"
    noted.touch()
    environment = {
        **environment,
        "DJANGO_SETTINGS_MODULE": "tests.site_suites.settings",
        "TEST_REDIS_URL": url,
        "SUITE_DATABASES": str(noted),
        "PYTHONPATH": str(HERE.parents[1]),
    }
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    # On Python 3.14, Django leaves copies of a SQLite database in the working directory.
    command = [sys.executable, "-m", *runner]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    processes = defaultdict(set)
    for line in noted.read_text().splitlines():
        process, database = line.split()
        processes[database].add(process)
    assert processes
    assert all(len(some) == 1 for some in processes.values())


def contents(client: redis.Redis) -> dict[bytes, bytes]:
    """What does not end while the suite runs."""
    return {key: client.dump(key) for key in client.scan_iter(count=1000) if not 0 <= client.ttl(key) < 3600}


@pytest.mark.parametrize(
    "runner", [DJANGO, pytest.param(PYTEST, marks=pytest.mark.once)], ids=["manage.py test", "pytest"]
)
def test_beside_a_redis_in_use(own_redis, server, alice, bob, child_environment, tmp_path, runner):
    unread.heal()
    notify(alice, 3)
    Notification.objects.create(user=bob, title="waits")
    assert unread.counts([alice, bob]) == {alice.pk: 3, bob.pk: 1}
    events.record_event({"type": "login"})
    timeseries.TimeSeries(precisions=[86400]).update_counter("hits")
    before = contents(own_redis)
    run(runner, server.url, {**child_environment, "SUITE_HAS_REDIS": "1"}, tmp_path)
    after = contents(own_redis)
    assert {key: after.get(key) for key in before} == before
    assert [key for key in sorted(after.keys() - before.keys()) if own_redis.ttl(key) == -1] == []
    assert events.count_events() == 1
    assert_exact(alice, bob)


@pytest.mark.once
def test_without_redis(child_environment, tmp_path):
    run(DJANGO, f"redis://{servers.HOST}:{servers.free_port()}/0", child_environment, tmp_path)
