"""Packages that many sites have, as they come."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def run(cachalot: str = "") -> None:
    pytest_ = [sys.executable, "-m", "pytest", "-q", "--ds", "tests.other_packages.settings", HERE / "site.py"]
    pytest_ += ["-W", "ignore::DeprecationWarning"]
    environment = {**os.environ, "TEST_CACHALOT": cachalot}
    run = subprocess.run(pytest_, cwd=HERE.parents[1], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_site_with_other_packages() -> None:
    run()


@pytest.mark.once
@pytest.mark.parametrize("cachalot", ["first", "last"])
def test_a_site_whose_queries_are_cached(cachalot: str) -> None:
    """django-cachalot patches the same methods, before us or after us."""
    run(cachalot)
