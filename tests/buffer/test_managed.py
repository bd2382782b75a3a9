"""A part of the tests, on a Redis that does and refuses what managed services do and refuse."""

import os
import subprocess
import sys

import pytest

import servers
from tests.__main__ import ROOT

pytestmark = [pytest.mark.once, pytest.mark.slow]

PARTS = ["test_reader.py", "test_events.py", "upkeep/test_flush.py", "timeseries/test_counting.py"]


def test_on_a_managed_redis(tmp_path):
    with servers.redis(is_managed=True) as server:
        database = {"TEST_DATABASE": "sqlite", "TEST_DATABASE_NAME": str(tmp_path / "database")}
        environment = {**os.environ, **database, "TEST_REDIS_URL": server.url}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [f"tests/{part}" for part in PARTS]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
