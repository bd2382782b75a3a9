"""One round of each kind."""

import subprocess
import sys

import pytest
from django.db import connection

from tests.faults.conftest import ROOT

from .rounds import ROUNDS

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="needs triggers that know their connection"),
]


@pytest.mark.parametrize("name", ROUNDS)
def test_round(name, child_environment):
    command = [sys.executable, "-m", "tests.torment", "--seconds", "0", "--round", name]
    done = subprocess.run(command, cwd=ROOT, env=child_environment, capture_output=True, text=True, timeout=100)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
