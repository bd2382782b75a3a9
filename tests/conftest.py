import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection
from django_redis import get_redis_connection

from notifications_counter.counters import unread
from notifications_counter.testing import isolated_counters


@pytest.fixture(autouse=True)
def _own_keys() -> Iterator[None]:
    with isolated_counters():
        yield


@pytest.fixture
def healed() -> None:
    """The counter of unread notifications after its recovery: from here on reads trust Redis."""
    unread.heal()


@pytest.fixture
def redis_client() -> redis.Redis:
    return get_redis_connection("default")


@pytest.fixture
def make_user() -> Callable[..., Any]:
    """A function that creates one more user of the kind under test."""
    numbers = itertools.count(1)
    return lambda **fields: get_user_model().objects.create_user(**{"username": f"user{next(numbers)}", **fields})


@pytest.fixture
def alice(make_user: Callable[..., Any]) -> Any:
    return make_user(username="alice")


@pytest.fixture
def bob(make_user: Callable[..., Any]) -> Any:
    return make_user(username="bob")


@pytest.fixture
def child_environment() -> dict[str, str]:
    """The environment of a process that is to work on this test's database and under its keys."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]),
        "TEST_KEY_PREFIX": settings.NOTIFICATIONS_COUNTER["KEY_PREFIX"],
    }
