"""One statement for very many owners, while Redis is slow: whoever is not announced is named in the database."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from threading import Timer
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from notifications_counter.buffer.client import read_all_owed
from notifications_counter.counters import unread
from notifications_counter.models import Notification, RecountRequest, UserNotificationsCount
from servers import Server
from servers.relay import Relay
from tests.support import PATIENCE, buffer, entries, make_keys, unheard

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

OWNERS = 10_000


class Stalling(Relay):
    """Pauses Redis for a second after so many replies."""

    left = 0

    def pass_on(self, data: bytes, is_reply: bool, to: Any) -> bool:
        if is_reply and self.left:
            self.left -= 1
            if not self.left:
                self.server.pause()
                Timer(1, self.server.resume).start()
        return super().pass_on(data, is_reply, to)


@pytest.fixture
def relay(server: Server) -> Iterator[Stalling]:
    relay = Stalling(server)
    yield relay
    relay.socket.close()


@pytest.fixture
def users(relay: Stalling, use: Callable[..., Any]) -> list[Any]:
    """Users with two notifications each, whose counts are cached and stored."""
    use(relay.url, SOCKET_TIMEOUT=PATIENCE)
    users = make_keys(OWNERS)
    for title in ("read", "unread"):
        unheard(Notification.objects.bulk_create, [Notification(user_id=user, title=title) for user in users])
    unread.heal()
    unread.flush()
    assert set(unread.counts(users).values()) == {2}
    return users


def read_one_of_each() -> None:
    assert Notification.objects.filter(title="read").update(read_at=timezone.now()) == OWNERS


def assert_all_is_well(users: list[Any]) -> None:
    with entries(HEAL_AFTER=0):
        unread.heal(PATIENCE)
    for _ in range(2):
        assert set(unread.counts(users).values()) == {1}
    unread.flush()
    assert set(UserNotificationsCount.objects.values_list("unread_count", flat=True)) == {1}
    assert not RecountRequest.objects.exists()


def test_a_timeout_is_for_one_reply_and_not_for_all_those_of_a_statement(relay, use, users):
    """Each reply takes a third of it, and there are ten announcements."""
    use(relay.url, SOCKET_TIMEOUT=1.5)
    with relay.slow(0.5):
        read_one_of_each()
        read_all_owed()
    assert not RecountRequest.objects.exists()
    assert_all_is_well(users)


@pytest.mark.parametrize("block", [nullcontext, transaction.atomic], ids=["autocommit", "transaction"])
def test_a_redis_that_stalls_in_the_middle(block, relay, use, users):
    """Some are refused, and all who come after them."""
    use(relay.url, SOCKET_TIMEOUT=0.3)
    relay.left = 4
    with entries(RETRY_AFTER=60):
        with block():
            read_one_of_each()
        assert not relay.left
        assert set(unread.counts(users).values()) == {1}
        read_all_owed()
    use(relay.url, SOCKET_TIMEOUT=PATIENCE)  # as another process
    assert 1000 <= RecountRequest.objects.count() <= OWNERS
    read_all_owed()
    peeks = buffer().peek(list(map(str, users)))
    wrong = {owner for owner, peek in peeks.items() if peek.total not in (None, 1) and not peek.is_in_flight}
    assert wrong <= set(RecountRequest.objects.values_list("owner", flat=True))
    assert_all_is_well(users)
