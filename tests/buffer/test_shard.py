"""What scripts promise beside the histories of tests/protocol: what is sent twice, too late, or to keys out of use."""

from collections.abc import Callable

import pytest

from notifications_counter.buffer import Buffer
from notifications_counter.exceptions import BufferUnavailable
from tests.support import announce, buffer, confirm

pytestmark = [pytest.mark.once, pytest.mark.django_db]


@pytest.fixture
def shard(redis_client) -> Buffer:
    """A shard with a generation, whose mark is ``a``."""
    shard = buffer()
    shard.begin_generation("a", shard.server())
    return shard


@pytest.mark.parametrize(
    "call",
    [
        lambda shard: announce(shard, "late", ["1"]),
        lambda shard: confirm(shard, "intent", {"1": 1}),
        lambda shard: shard.doubt(["1"]),
        lambda shard: shard.forget(),
    ],
    ids=["announce", "confirm", "doubt", "doubt everyone"],
)
def test_keys_that_were_retired_stay_so(shard, redis_client, call: Callable[[Buffer], None]):
    announce(shard, "intent", ["1"])
    shard.retire()
    with pytest.raises(BufferUnavailable):
        call(shard)
    assert redis_client.keys(f"{shard.keys.base}:*") == [shard.keys.ready.encode()]


def test_a_batch_is_dropped_by_who_wrote_it(shard):
    confirm(shard, "intent", {"1": 1})
    assert shard.cut("a", "b") == ("b", 2, 0)
    assert shard.cut("a", "c") == ("b", 2, 0)
    assert not shard.drop("another", "another:2:x")
    assert shard.cut("b:2:x", "c") == ("b", 2, 0)
    assert shard.drop("b", "b:2:x")
    assert shard.cut("b:2:x", "c") == ("", 0, 0)
