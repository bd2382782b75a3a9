"""A circuit breaker: for RETRY_AFTER seconds after a failure, only urgent calls such as confirmations are sent."""

from __future__ import annotations

import math
import time

from ..caches import reason_of
from ..conf import options
from ..exceptions import BufferUnavailable
from ..reports import report

LOG_SECONDS = 60
"""Seconds between two messages about the same refusal."""


class Breaker:
    """Whether the Redis of a cache is down. Logs the beginning and the end of each outage, once. The end is a warning
    as well, so that a log of warnings shows that it is over.

    ``oldest``  when the oldest connection that may be used was opened: the address may lead to another server since
    """

    retry_at = 0.0

    def __init__(self, alias: str):
        self.alias = alias
        self.down_since: float | None = None
        self.oldest = -math.inf
        self.reason = ""  # of the last one
        self._logged: dict[tuple[str, str], float] = {}

    def check(self) -> None:
        """Raise BufferUnavailable until it is time to try again. Then one caller may try, and the others get the
        exception for RETRY_AFTER seconds more, so that not every thread waits for a server that does not answer."""
        now = time.monotonic()
        if self.retry_at > now:
            wait = f"is not asked again for {math.ceil(self.retry_at - now)} s"
            raise BufferUnavailable(f"Redis (cache {self.alias!r}) {wait}, since it failed: {self.reason}")
        self.oldest = now
        self.retry_at = now + options.RETRY_AFTER

    def trip(self, error: Exception) -> BufferUnavailable:
        """Note a failure, and return the exception to raise."""
        now = time.monotonic()
        self.reason = reason_of(error)
        self.retry_at = now + options.RETRY_AFTER
        if self.down_since is None:
            self.down_since = now
            report("redis_lost", cache=self.alias, reason=self.reason)
        return BufferUnavailable(f"Redis (cache {self.alias!r}) is unavailable: {self.reason}")

    def reset(self) -> None:
        """Note that Redis answers again."""
        if self.down_since is not None:
            seconds = time.monotonic() - self.down_since
            self.down_since = None
            report("redis_found", cache=self.alias, seconds=round(seconds, 3))

    def refused(self, name: str, error: Exception) -> BufferUnavailable:
        """Note that Redis, or the pool, has refused one call, and return the exception to raise. This is no outage."""
        now = time.monotonic()
        reason = reason_of(error)
        about = name, reason.partition(" ")[0]  # the rest of a message may differ each time
        if now - self._logged.get(about, -math.inf) > LOG_SECONDS:
            self._logged[about] = now
            report("redis_refuses", cache=self.alias, command=name, reason=reason)
        return BufferUnavailable(f"Redis (cache {self.alias!r}) has refused {name}: {reason}")
