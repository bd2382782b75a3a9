"""Workers of gevent: many greenlets in a process, and time limits that strike while they wait."""

import json
import subprocess
import sys

import pytest
from django.db import connection

from tests.support import PATIENCE, assert_heals

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("healed")]

PROGRAM = """
from gevent import monkey

monkey.patch_all()

import gc
import json
import sys

import django
import gevent

django.setup()

from django.db import connection

from notifications_counter.buffer.client import client_of
from notifications_counter.counters import unread
from notifications_counter.models import Notification

users = json.loads(sys.argv[1])


def write(user):
    for _ in range(5):
        Notification.objects.create(user_id=user, title="x")
        unread.counts(users)
    connection.close()


def write_within(seconds, user):
    connection.ensure_connection()
    with gevent.Timeout(seconds, False):
        for _ in range(5):
            Notification.objects.create(user_id=user, title="x")
            unread.count(user)
        in_time.append(seconds)
    connection.close()


in_time = []
gevent.joinall([gevent.spawn(write, users[i % 2]) for i in range(20)], raise_error=True)
limits = [2 ** (i / 4) / 10_000 for i in range(70)]  # up to 15 seconds
for i in range(0, len(limits), 10):
    gevent.joinall([gevent.spawn(write_within, limit, users[0]) for limit in limits[i : i + 10]], raise_error=True)

gc.collect()  # an interrupted connection attempt is garbage
pool = client_of("default").redis.connection_pool
taken = [pool.get_connection() for _ in range(min(pool.max_connections, 100))]  # nothing is lost
print(json.dumps({"in_time": len(in_time)}))
"""


def test_greenlets_and_time_limits(child_environment, alice, bob):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite waits for its lock without letting the other greenlets run.")
    command = [sys.executable, "-c", PROGRAM, json.dumps([str(alice.pk), str(bob.pk)])]
    run = subprocess.run(command, env=child_environment, capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout.splitlines()[-1])
    assert 0 < seen["in_time"] < 70
    assert_heals(alice, bob)
