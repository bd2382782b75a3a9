"""Each kind of fault, among others, on one server or another; `make torment` is for all rounds on all servers."""

import importlib.util
import re
import subprocess
import sys

import pytest
from django.db import connection

from tests.__main__ import ROOT
from tests.support import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

HERE = {
    "postgresql": [
        "disturbed",
        "sums_disturbed",
        "deployed",
        "database_connections_broken",
        "database_failed_over",
        "redis_restarted_empty",
        "redis_failed_over",
        "sentinel_failed_over",
    ],
    "mysql": [
        "interrupted",
        "database_restored",
        "redis_restarted_empty_and_all_killed",
        "sums_redis_failed_over",
    ],
    "sqlite": ["disturbed", "redis_restarted_with_old_rdb"],
}[connection.vendor]


@pytest.mark.parametrize("name", HERE)
def test_round(name, child_environment):
    torment(child_environment, "--database", "given", "--round", name)


def test_tenants(child_environment):
    if connection.vendor != "postgresql":
        pytest.skip("One database is enough.")
    if not importlib.util.find_spec("django_tenants"):
        pytest.skip("missing: django-tenants")
    torment(child_environment, "--database", "postgresql", "--tenants", "schemas", "--round", "redis_failed_over")


def torment(child_environment: dict[str, str], *arguments: str) -> None:
    command = [sys.executable, "-m", "tests.torment", "--seconds", "0", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=child_environment, capture_output=True, text=True, timeout=PATIENCE)
    print(done.stdout, done.stderr)
    if missing := re.search("missing: .*", done.stdout):
        pytest.skip(missing[0])
    assert done.returncode == 0
