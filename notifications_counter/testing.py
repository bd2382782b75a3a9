"""For the tests of sites that use this app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from django.conf import settings
from django.test.utils import override_settings
from redis.exceptions import RedisError

from .buffer.client import client_of
from .conf import SETTING, options


@contextmanager
def isolated_counters(**entries: object) -> Iterator[str]:
    """Counters of their own for a test: Redis keys under a new prefix, which is returned, all gone at the end.

    ``entries`` are put into NOTIFICATIONS_COUNTER for the duration. Also a decorator. In a TestCase, which never
    commits, reads count the rows of its transaction, so they are right even without Redis.
    """
    prefix = f"test-{uuid4().hex}"
    with override_settings(
        **{SETTING: {**getattr(settings, SETTING, {}), "DEPLOY_SECONDS": 0, **entries, "KEY_PREFIX": prefix}}
    ):
        try:
            yield prefix
        finally:
            with suppress(RedisError):  # then there are no keys either
                delete_keys(prefix)


def delete_keys(prefix: str) -> None:
    """Delete every key of a prefix, on each node. For tests and demos: it looks at all keys of the server."""
    redis = client_of(options.CACHE_ALIAS).redis
    keys = list(redis.scan_iter(match=f"{{{prefix}:*", count=1000))
    for i in range(0, len(keys), 1000):
        redis.unlink(*keys[i : i + 1000])
