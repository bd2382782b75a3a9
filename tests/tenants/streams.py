"""Streams of several tenants in one process, for the sites of this folder."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.test import AsyncRequestFactory

from notifications_counter.inbox import live as live_module
from notifications_counter.inbox.live import feeds
from notifications_counter.inbox.stream import stream
from notifications_counter.models import Notification
from tests.support import PATIENCE, wait_until

At = Callable[[str], AbstractContextManager[Any]]
"""A function that works for a tenant."""


class Listener:
    """The stream of a tenant's first user. It is opened where the request is served, and read outside."""

    def __init__(self, at: At, name: str):
        self.at, self.name = at, name
        with at(name):
            request = AsyncRequestFactory().get("/")
            request.user = first_user()
            response: Any = async_to_sync(stream)(request)
        self.events: AsyncIterator[bytes] = aiter(response)

    async def reach(self, unread: int) -> None:
        """Wait for this count. AssertionError if a higher one comes."""
        count = -1
        async with asyncio.timeout(PATIENCE):
            while count != unread:
                if found := re.search(rb"data: (.*)", await anext(self.events)):
                    count = json.loads(found[1])["unread"]
                    assert count <= unread

    async def add(self) -> None:
        """Add a notification."""
        await sync_to_async(self._add)()

    def _add(self) -> None:
        with self.at(self.name):
            Notification.objects.create(user=first_user(), title="new")


def first_user() -> Any:
    return Notification._meta.get_field("user").related_model.objects.order_by("pk")[0]


@contextmanager
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All counts are read again and again. In the end, no thread is left."""
    monkeypatch.setattr(live_module, "IDLE", 0.05)
    monkeypatch.setattr(live_module, "REREAD", 0.5)
    yield
    wait_until(lambda: not feeds._by_badge and feeds._thread is None)


def listen(at: At, names: list[str], work: Callable[..., Awaitable[None]]) -> None:
    """Open a stream for each tenant, and do the work with these."""

    async def run() -> None:
        listeners = [await sync_to_async(Listener)(at, name) for name in names]
        try:
            for listener in listeners:
                await listener.reach(0)
            await work(*listeners)
        finally:
            for listener in listeners:
                await listener.events.aclose()  # type: ignore[attr-defined]

    async_to_sync(run)()


async def each_hears_its_own(one: Listener, other: Listener) -> None:
    await one.add()
    await one.reach(1)
    await other.add()
    await other.add()
    await other.reach(2)
    await one.add()
    await one.reach(2)
