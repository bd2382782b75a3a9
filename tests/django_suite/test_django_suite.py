"""A run of Django's tests with counters finds wrong counts."""

import subprocess
import sys

import pytest

import servers
from tests.django_suite.__main__ import ROOT, of_django

pytestmark = [pytest.mark.once, pytest.mark.slow]


def test_two_planted_bugs() -> None:
    try:
        of_django([]).fetch()
    except servers.Missing as reason:
        pytest.skip(f"missing: {reason}")
    command = [sys.executable, "-m", "tests.django_suite", "--database", "sqlite", "--mutant", "delete", "update"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 1, done.stdout
    assert "WRONG: delete.tests.DeletionTests.test_bulk: SQLDeleteCompiler" in done.stdout
    assert "WRONG: update.tests.SimpleTest.test_nonempty_update: SQLUpdateCompiler" in done.stdout
