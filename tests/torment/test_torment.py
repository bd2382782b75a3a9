"""Some rounds on the databases of the tests, and the judge of them; `make torment` is for all rounds on all servers."""

import re
import subprocess
import sys

import pytest
from django.db import connection

from tests.__main__ import ROOT
from tests.support import PATIENCE

from .history import Change, possible

ROUNDS = {
    "postgresql": ["disturbed", "sums_deployed", "database_connections_broken", "sentinel_failed_over"],
    "mysql": ["killed", "redis_restarted_with_old_rdb"],
}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ROUNDS.get(connection.vendor, []))
def test_round(name, child_environment):
    command = [sys.executable, "-m", "tests.torment", "--seconds", "0", "--database", "given", "--round", name]
    done = subprocess.run(command, cwd=ROOT, env=child_environment, capture_output=True, text=True, timeout=PATIENCE)
    print(done.stdout, done.stderr)
    if missing := re.search("missing: .*", done.stdout):
        pytest.skip(missing[0])
    assert done.returncode == 0


@pytest.mark.once
@pytest.mark.parametrize(
    ("deltas", "right", "wrong"),
    [
        ([5, -3], [10, 15, 7, 12], [9, 14, 16]),
        ([2**i for i in range(50)], [10, 10 + 2**50 - 1], [9, 10 + 2**50]),  # too many to look at each combination
    ],
)
def test_what_a_read_may_return(deltas, right, wrong):
    """Of changes under way, each may count or not; what has returned counts, and what has not begun does not."""
    under_way = [Change(1, 9, delta) for delta in deltas]
    changes = [Change(0, 1, 10), *under_way, Change(6, 9, 1)]
    sums = possible(changes, 0, 2, 5)
    assert [number for number in right + wrong if any(number in some for some in sums)] == right
    assert possible(changes, 0, 9, 9) == [{10 + sum(deltas) + 1}]
