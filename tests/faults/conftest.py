import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connections

from notifications_counter.counters import unread
from tests.support import wait_until

from .actors import Reader, Writer
from .history import History


@pytest.fixture
def users() -> list[Any]:
    model = get_user_model()
    return [u.pk for u in model.objects.bulk_create(model(username=str(uuid.uuid4())) for _ in range(9))]


class Traffic:
    """A writer and two readers in threads, until the end of the block."""

    def __init__(self, users: list[Any]):
        self.history = History()
        self.users = users
        self.ended = threading.Event()
        self.failed: list[BaseException] = []
        chance = [random.Random(random.random()) for _ in range(3)]
        writer, *readers = Writer("writer", users, chance[0]), Reader(users, chance[1]), Reader(users, chance[2])
        self.threads = [threading.Thread(target=self._repeat, args=(partial(self.history.write, writer),))]
        self.threads += [
            threading.Thread(target=self._repeat, args=(partial(self.history.read, reader),)) for reader in readers
        ]

    def _repeat(self, act: Callable[[], Any]) -> None:
        try:
            while not self.ended.is_set():
                act()
                time.sleep(0.004)  # so that nobody starves the others, on few cores
        except BaseException as error:
            self.failed.append(error)
        finally:
            connections.close_all()

    def reads(self, more: int = 20) -> None:
        """Wait for so many more reads: they go on whatever stands still."""
        self._wait(self.history.reads, more)

    def writes(self, more: int = 5) -> None:
        """Wait for so many more changes."""
        self._wait(self.history.writes, more)

    def _wait(self, calls: list[Any], more: int) -> None:
        until = len(calls) + more
        wait_until(lambda: len(calls) >= until or self.failed)


@pytest.fixture
def traffic(users: list[Any]) -> Callable[..., Any]:
    """A context manager: traffic of all users, or some, every read of which must have been a moment."""

    @contextmanager
    def run(of: list[Any] | None = None) -> Iterator[Traffic]:
        unread.heal()
        here = Traffic(of or users)
        for thread in here.threads:
            thread.start()
        try:
            here.writes(10)  # so that a first batch is of many
            yield here
        finally:
            here.ended.set()
            for thread in here.threads:
                thread.join()
        assert not here.failed
        assert here.history.impossible() == []

    return run
