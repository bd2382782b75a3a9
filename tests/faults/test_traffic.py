"""Everything at once."""

import random
import subprocess
import sys

import pytest

from notifications_counter.counters import unread
from notifications_counter.models import RecountRequest
from tests.support import entries

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
    assert len(history.writes) > 50
    assert len(history.reads) > 50
    assert history.impossible() == []
    with entries(HEAL_AFTER=0, MAX_TRANSACTION_AGE=0):
        for _ in range(2):
            unread.heal()
            unread.flush()
    assert_exact()
    for shard in unread.status():
        status = shard.status
        assert (status.pending, status.flushing, status.dirty, status.open, status.rejected) == (0, 0, 0, 0, 0)
    assert not RecountRequest.objects.exists()
