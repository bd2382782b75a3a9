"""A part of the tests, on a Redis that does and refuses what managed services do and refuse."""

import os
import subprocess
import sys

import pytest
import redis
from redis.exceptions import NoPermissionError

import servers
from tests.__main__ import ROOT

pytestmark = [pytest.mark.once, pytest.mark.slow]

PARTS = [
    "tests/test_reader.py",
    "tests/test_events.py",
    "tests/upkeep/test_flush.py",
    "tests/upkeep/test_heal.py",
    "tests/timeseries/test_counting.py",
]


def test_on_a_managed_redis(tmp_path):
    with servers.redis(is_managed=True) as server:
        database = {"TEST_DATABASE": "sqlite", "TEST_DATABASE_NAME": str(tmp_path / "database")}
        environment = {**os.environ, **database, "TEST_REDIS_URL": server.url}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PARTS]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_a_managed_redis_refuses():
    with (
        servers.redis(is_managed=True) as server,
        redis.Redis.from_url(server.url) as client,
        pytest.raises(NoPermissionError),
    ):
        client.config_get()


def test_no_script_calls_info():
    """Managed services allow it outside scripts only."""
    assert not [file for file in (ROOT / "notifications_counter").rglob("*.lua") if "INFO" in file.read_text()]
