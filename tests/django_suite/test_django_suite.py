"""Whether a run of Django's tests with counters would find a wrong count."""

import subprocess
import sys

import pytest

import servers
from tests.django_suite.__main__ import ROOT, of_django

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.timeout(600)]


def run(*options: str) -> tuple[int, str]:
    try:
        of_django([]).fetch()
    except servers.Missing as reason:
        pytest.skip(f"missing: {reason}")
    command = [sys.executable, "-m", "tests.django_suite", "--database", "sqlite", *options, "delete", "update"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


def test_all_is_well():
    code, output = run()
    assert (code, "WRONG" in output) == (0, False), output


def test_two_planted_bugs():
    code, output = run("--mutant")
    assert code == 1, output
    assert "WRONG: delete.tests.DeletionTests.test_bulk: SQLDeleteCompiler" in output
    assert "WRONG: update.tests.SimpleTest.test_nonempty_update: SQLUpdateCompiler" in output
