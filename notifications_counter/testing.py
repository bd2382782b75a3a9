"""Helpers for the tests of sites that use this app."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

from django.conf import settings
from django.test.utils import override_settings

from .buffer.client import client_of
from .buffer.connections import FAILURES
from .conf import SETTING, options


@contextmanager
def isolated_counters(**entries: object) -> Iterator[str]:
    """Give a test its own counters: Redis keys with a new prefix, which is returned, and which are deleted at the end.

    ``entries`` override NOTIFICATIONS_COUNTER meanwhile. This is a context manager and a decorator. A TestCase never
    commits, so its reads count the rows of its transaction, and need no Redis.
    """
    prefix = f"test-{uuid4().hex}"
    with override_settings(
        **{SETTING: {**getattr(settings, SETTING, {}), "DEPLOY_SECONDS": 0, **entries, "KEY_PREFIX": prefix}}
    ):
        try:
            yield prefix
        finally:
            with suppress(*FAILURES):  # then there are no keys either
                delete_keys(prefix)


def delete_keys(prefix: str) -> None:
    """Delete every key with a prefix, on each node. Only for tests and demos, because it scans all keys of the
    server."""
    redis = client_of(options.CACHE_ALIAS).redis
    keys = list(redis.scan_iter(match=f"{{{prefix}:*", count=1000))
    for i in range(0, len(keys), 1000):
        redis.unlink(*keys[i : i + 1000])
