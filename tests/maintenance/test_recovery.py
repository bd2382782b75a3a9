"""A Redis that is not the one that was left is recovered: by one process, and by the next one if that is killed."""

import threading
from typing import Any

import pytest

from notifications_counter.buffer.shard import Buffer
from notifications_counter.counters import unread
from notifications_counter.models import CounterShard, Notification
from tests.support import OtherConnection, assert_exact, assert_heals, assert_reads, buffer, notify, unheard

pytestmark = pytest.mark.django_db(transaction=True)


def epochs() -> tuple[int, int]:
    """In the database and in Redis."""
    return CounterShard.objects.get(counter="unread").epoch, buffer().status().epoch


def lose_epoch(redis_client: Any) -> None:
    redis_client.delete(buffer().keys.ready, buffer().keys.state)


def test_a_ready_that_is_lost_alone_starts_an_epoch(healed, alice, bob, redis_client):
    """Under the same one, the totals from before would be trusted again."""
    for user in (alice, bob):
        notify(user)
    assert_reads(alice, bob)
    redis_client.delete(buffer().keys.ready)
    assert unread.status()[0].recovering
    Notification.objects.create(user=alice, title="x")
    unheard(Notification.objects.filter(user=bob)._raw_delete, "default")
    assert unread.flush().batches == 0
    assert_reads(alice, bob)
    unread.heal()
    assert epochs() == (2, 2)
    assert_exact(alice, bob)


def test_an_epoch_is_completed_once(healed, alice, redis_client):
    """Two processes may come to the end of one audit."""
    redis_client.delete(buffer().keys.ready)
    assert not buffer().complete(1, buffer().server())
    assert buffer().totals([str(alice.pk)]) is None
    assert_heals(alice)


def test_an_audit_whose_buffers_are_made_anew_meanwhile(healed, alice):
    notify(alice)
    unheard(Notification.objects.filter(user=alice)._raw_delete, "default")
    unread.invalidate()

    def another_thread_makes_them() -> bool:
        vars(unread).pop("buffers", None)
        return False

    unread.heal(stopped=another_thread_makes_them)
    assert not unread.status()[0].recovering
    assert_exact(alice)


def test_two_healers_start_one_epoch(healed, alice, redis_client, monkeypatch):
    notify(alice)
    lose_epoch(redis_client)
    inside, go_on = threading.Event(), threading.Event()
    status, recover = Buffer.status, Buffer.recover
    seen: list[str] = []

    def slow(self: Buffer, epoch: int, server: str) -> bool:
        inside.set()
        go_on.wait(30)
        return recover(self, epoch, server)

    def noted(self: Buffer) -> Any:
        seen.append(threading.current_thread().name)
        if inside.is_set() and seen.count(threading.current_thread().name) == 1:
            go_on.set()  # this one has seen the loss, too
        return status(self)

    monkeypatch.setattr(Buffer, "recover", slow)
    monkeypatch.setattr(Buffer, "status", noted)
    with OtherConnection() as one, OtherConnection() as two:
        first = one.start(unread.heal)
        assert inside.wait(30)
        two.run(unread.heal)
        first.result(30)
    monkeypatch.undo()
    assert epochs() == (2, 2)
    assert_heals(alice)  # of two that recount a user at once, one may leave it to the next


@pytest.mark.parametrize(
    ("step", "found", "left"),
    [
        ("before epoch", (1, 0), (2, 2)),
        ("after recover", (1, 2), (3, 3)),  # Redis knows of the epoch, the database does not
        ("after epoch", (2, 2), (2, 2)),
        ("before complete", (2, 2), (2, 2)),
    ],
)
def test_a_healer_that_is_killed_while_it_starts_an_epoch(healed, alice, redis_client, flusher, step, found, left):
    notify(alice)
    lose_epoch(redis_client)
    child = flusher(step)
    child.reached()
    child.kill()
    assert epochs() == found
    Notification.objects.create(user=alice, title="x")
    assert_reads(alice)
    unread.heal()
    assert epochs() == left
    assert_exact(alice)
