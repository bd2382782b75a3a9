"""The counters are usable without our notifications."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.once, pytest.mark.slow]

HERE = Path(__file__).parent


def test_a_site_with_notifications_of_its_own() -> None:
    pytest_ = [sys.executable, "-m", "pytest", "-q", "--ds", "tests.minimal_site.settings", HERE / "site.py"]
    run = subprocess.run(pytest_, cwd=HERE.parents[1], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_site_without_users(tmp_path) -> None:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.minimal_site.settings_without_users",
        "TEST_DATABASE": "sqlite",
        "TEST_DATABASE_NAME": str(tmp_path / "database"),
    }
    for command in (["check"], ["migrate"], ["makemigrations", "--check"], ["flush_counters", "--check"]):
        django = [sys.executable, "-m", "django", *command]
        run = subprocess.run(django, cwd=HERE.parents[1], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
