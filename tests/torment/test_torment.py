"""Each kind of fault, among others, on one server or another; `make torment` is for all rounds on all servers."""

import importlib.util
import re
import subprocess
import sys

import pytest
from django.db import connection

from tests.faults.child import ROOT
from tests.support import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

HERE = {
    "postgresql": [
        "all_but_a_loss",
        "sums_all_but_a_loss",
        "deployed_and_more",
        "database_connections_broken",
        "database_failed_over_and_more",
        "redis_restarted_empty_and_more",
        "redis_failed_over_and_back_and_more",
        "sentinel_failed_over_and_more",
    ],
    "mysql": [
        "interruptions_and_all_killed",
        "database_restored_and_more",
        "redis_failed_over_and_all_killed",
        "redis_keys_deleted_and_more",
        "sums_redis_failed_over_and_more",
    ],
    "sqlite": ["all_but_a_loss", "sums_all_but_a_loss", "redis_restarted_with_old_rdb_and_more"],
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
