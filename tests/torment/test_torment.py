"""A round of each kind, on one server or another; `make torment` is for all of them on all servers."""

import subprocess
import sys

import pytest
from django.db import connection

from tests.faults.conftest import ROOT

from .rounds import MIXED, SINGLE

pytestmark = pytest.mark.django_db(transaction=True)

HERE = {
    "postgresql": [*SINGLE[::2], *MIXED[::2]],
    "mysql": [*SINGLE[1::2], *MIXED[1::2]],
    "sqlite": MIXED[:2],
}[connection.vendor]


@pytest.mark.parametrize("name", HERE)
def test_round(name, child_environment):
    command = [sys.executable, "-m", "tests.torment", "--database", "given", "--seconds", "0", "--round", name]
    done = subprocess.run(command, cwd=ROOT, env=child_environment, capture_output=True, text=True, timeout=100)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
