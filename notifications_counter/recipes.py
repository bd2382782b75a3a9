"""What time-sliced counters and event logs share: where they are in Redis, and what a time is."""

from __future__ import annotations

import sys
from datetime import datetime

from .conf import is_name, options
from .databases.identity import current
from .redis.client import Client, client_of

Time = float | int | datetime
When = Time | None


class Recipe:
    """One for each database, and for each tenant's schema.

    ``name``    second part of the keys
    ``alias``   the cache whose Redis holds them; by default CACHE_ALIAS
    ``shared``  one for all databases and schemas instead, which needs no database
    """

    def __init__(self, name: str, alias: str | None = None, shared: bool = False):
        if not is_name(name):
            raise ValueError(f"{name!r:.200} is not a name; pass a string without braces or control characters.")
        self.name = name
        self.alias = alias
        self.shared = shared

    @property
    def base(self) -> str:
        """The beginning of every key. The hash tag keeps all on one node of a cluster."""
        tag = f"{{{options.KEY_PREFIX}:{self.name}}}"
        return tag if self.shared else f"{tag}:{current().id}"

    @property
    def client(self) -> Client:
        return client_of(self.alias or options.CACHE_ALIAS)


def seconds(time: Time) -> float | int:
    """Return a time as seconds since the epoch."""
    if isinstance(time, datetime):
        if time.utcoffset() is None:
            raise ValueError(f"{time!r} is a naive datetime; pass an aware one, such as datetime.now(tz=UTC).")
        return time.timestamp()
    is_number = isinstance(time, float | int) and not isinstance(time, bool)
    if not is_number or not abs(time) <= sys.float_info.max:  # nor is NaN
        raise ValueError(f"{time!r:.200} is not a time; pass seconds since the epoch, or an aware datetime.")
    return time
