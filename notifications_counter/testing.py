"""Helpers for the tests of sites that use this app."""

from __future__ import annotations

from contextlib import suppress
from uuid import uuid4

from django.conf import settings
from django.test.utils import override_settings

from .conf import SETTING, mistakes, options
from .internals.testing import TestContextDecorator
from .redis.calls import chunked
from .redis.client import client_of, used_clients
from .redis.connection import FAILURES


class isolated_counters(TestContextDecorator):
    """Give a test its own counters: Redis keys with a new prefix, which is returned, and which are deleted at the end.

    ``entries`` override NOTIFICATIONS_COUNTER meanwhile; ValueError if one is unknown or has an invalid value. This is
    a context manager, and a decorator of functions, also async ones, and of subclasses of ``unittest.TestCase``. A
    TestCase never commits, so its reads count the rows of its transaction, and need no Redis.
    """

    def __init__(self, *bare: object, **entries: object) -> None:
        super().__init__()
        if bare:
            raise TypeError("Write isolated_counters(), with parentheses; entries are keyword arguments.")
        for mistake in mistakes(entries):
            raise ValueError(" ".join(mistake))
        if "COUNTERS" in entries:
            raise ValueError("COUNTERS is read once, when the site starts. Set it in the settings of your tests.")
        self.entries = entries

    def enable(self) -> str:
        """Begin, and return the prefix."""
        self.prefix = f"test-{uuid4().hex}"
        own = {"DEPLOY_SECONDS": 0, **self.entries, "KEY_PREFIX": self.prefix}
        self.override = override_settings(**{SETTING: {**getattr(settings, SETTING, {}), **own}})
        self.override.enable()
        return self.prefix

    def disable(self) -> None:
        """End, and delete the keys."""
        try:
            delete_keys(self.prefix)
        finally:
            self.override.disable()


def delete_keys(prefix: str) -> None:
    """Delete every key with a prefix, on each node of each cache that was used, unless it is unreachable. Only for
    tests and demos, because it scans all keys of the servers."""
    for client in {client_of(options.CACHE_ALIAS), *used_clients()}:
        with suppress(*FAILURES):
            keys = list(client.redis.scan_iter(match=f"{{{prefix}:*", count=1000))
            for some in chunked(keys, 1000):
                client.redis.unlink(*some)
