"""Everything at once."""

import random
import subprocess
import sys
import time

import pytest

from notifications_counter.counters import unread
from notifications_counter.models import RecountRequest
from tests.support import entries, rows

from .conftest import ROOT
from .history import History

pytestmark = pytest.mark.django_db(transaction=True)

SECONDS = 12


def test_traffic(users, child_environment, tmp_path, assert_exact):
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)  # shown when it fails
    unread.heal()
    command = [sys.executable, "-m", "tests.faults.traffic", str(tmp_path), str(seed), str(SECONDS)]
    done = subprocess.run(command, cwd=ROOT, env=child_environment, capture_output=True, text=True, timeout=100)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    history = History()
    for path in tmp_path.iterdir():
        history.load(path)
    assert len(history.writes) > 10
    assert len(history.reads) > 10
    # The writers knew what they did: else reads would be compared with something else.
    assert history.sums() == {str(u): rows(u) for u in users}
    assert history.impossible() == []
    with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0):
        deadline = time.monotonic() + 30
        while not done_with_everything() and time.monotonic() < deadline:
            unread.heal()
            unread.flush()
    assert done_with_everything()
    assert_exact()


def done_with_everything() -> bool:
    """Transactions that were rolled back stay open until their age has doubled."""
    states = [shard.status for shard in unread.status()]
    return not (
        any(s.pending or s.flushing or s.dirty or s.open or s.rejected for s in states)
        or RecountRequest.objects.exists()
    )
