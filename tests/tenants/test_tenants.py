"""Each tenant has counts of its own, with a schema or a database for each."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

HERE = Path(__file__).parent


def run(settings: str, site: str) -> None:
    pytest_ = [sys.executable, "-m", "pytest", "-q", "--ds", f"tests.tenants.{settings}", HERE / f"{site}.py"]
    run = subprocess.run(pytest_, cwd=HERE.parents[1], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("site", ["site", "any_site"])
def test_a_schema_for_each_tenant(site: str) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("Schemas of tenants are PostgreSQL's.")
    if not importlib.util.find_spec("django_tenants"):
        pytest.skip("missing: django-tenants")
    run("settings", site)


@pytest.mark.once
def test_a_database_for_each_tenant() -> None:
    run("database_settings", "any_site")
