"""redis-py is imported when it is first needed, by any thread."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.once

PROGRAM = """
import importlib.abc, sys, threading, time


class SlowFinder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name.startswith("redis"):
            time.sleep(0.01)


import django
from django.core.cache import caches

django.setup()
import notifications_counter.inbox.urls

assert "redis" not in sys.modules  # one thread of runserver imports the URLs, and another one runs the checks
sys.meta_path.insert(0, SlowFinder())

from notifications_counter.buffer import errors, location
from notifications_counter.buffer.client import client_of

NEEDS = {
    "cache": lambda: caches["default"].client,
    "client": lambda: client_of("default").redis,
    "errors": lambda: errors.FAILURES,
    "URL": lambda: location.parse("redis://127.0.0.1"),
}
barrier, done = threading.Barrier(2), []


def run(need):
    barrier.wait()
    NEEDS[need]()
    done.append(need)


threads = [threading.Thread(target=run, args=(need,)) for need in sys.argv[1:]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(len(done) != 2)
"""


@pytest.mark.parametrize(
    "needs", [("URL", "errors"), ("client", "errors"), ("cache", "errors"), ("cache", "URL")], ids="-".join
)
def test_two_threads_need_it_at_once(needs, child_environment):
    """Python breaks circles of locks by an error."""
    subprocess.run([sys.executable, "-c", PROGRAM, *needs], env=child_environment, check=True)
