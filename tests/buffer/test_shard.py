"""What scripts promise beside the histories of tests/protocol: what is sent twice, or too late."""

import pytest

from notifications_counter.buffer import Buffer
from tests.support import buffer, confirm

pytestmark = [pytest.mark.once, pytest.mark.django_db]


@pytest.fixture
def shard(redis_client) -> Buffer:
    """A shard with a generation, whose mark is ``a``."""
    shard = buffer()
    shard.begin_generation("a", shard.server())
    return shard


def test_a_batch_is_dropped_by_who_wrote_it(shard):
    confirm(shard, "intent", {"1": 1})
    assert shard.cut("a", "b") == ("b", 2, 0)
    assert shard.cut("a", "c") == ("b", 2, 0)
    assert not shard.drop("another", "another:2:x")
    assert shard.cut("b:2:x", "c") == ("b", 2, 0)
    assert shard.drop("b", "b:2:x")
    assert shard.cut("b:2:x", "c") == ("", 0, 0)
