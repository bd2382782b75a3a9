"""A circuit breaker: after a failure, Redis is left alone for RETRY_AFTER seconds."""

from __future__ import annotations

import logging
import time

from ..conf import options
from ..exceptions import BufferUnavailable

logger = logging.getLogger("notifications_counter")


class Breaker:
    """Knows whether the Redis of a cache is down, or out of memory. It logs the beginning and the end, once each."""

    def __init__(self, alias: str):
        self.alias = alias
        self.down_since: float | None = None
        self.retry_at = 0.0
        self.refuses = False
        self.no_room_for: set[str] = set()

    # ---------------------------------------------------------------- outages
    def check(self) -> None:
        """Raise BufferUnavailable until it is time to try again."""
        seconds = self.retry_at - time.monotonic()
        if seconds > 0:
            raise BufferUnavailable(
                f"Redis (cache {self.alias!r}) is unavailable; trying again in {seconds:.0f} s. Counts are read from "
                "the database meanwhile."
            )

    def trip(self, error: Exception) -> BufferUnavailable:
        """Note a failure, and return what to raise."""
        now = time.monotonic()
        self.retry_at = now + options.RETRY_AFTER
        if self.down_since is None:
            self.down_since = now
            about = {"event": "redis_lost", "cache": self.alias, "reason": str(error)}
            text = "Redis (cache %r) is out of reach; counts are read from the database meanwhile: %s"
            logger.warning(text, self.alias, error, extra=about)
        return BufferUnavailable(f"Redis (cache {self.alias!r}) is out of reach: {error}")

    def reset(self) -> float | None:
        """Note that Redis answers again. Returns the seconds of the outage, None if none has ended."""
        since, self.down_since, self.refuses = self.down_since, None, False
        if since is None:
            return None
        seconds = time.monotonic() - since
        about = {"event": "redis_found", "cache": self.alias, "seconds": round(seconds, 3)}
        logger.info("Redis (cache %r) answers again after %.1f s.", self.alias, seconds, extra=about)
        return seconds

    # ----------------------------------------------------------------- memory
    def trip_full(self, error: Exception, script: str) -> BufferUnavailable:
        """Note that there is no memory for a script. Others make room, or only read, so Redis is not left alone."""
        if not self.no_room_for:
            about = {"event": "redis_full", "cache": self.alias, "reason": str(error)}
            logger.warning("Redis (cache %r) is out of memory: %s", self.alias, error, extra=about)
        self.no_room_for.add(script)
        return BufferUnavailable(f"Redis (cache {self.alias!r}) refused: {error}")

    def reset_full(self, script: str) -> None:
        """Note that a script ran: there is memory again if it was refused before."""
        if script in self.no_room_for:
            about = {"event": "redis_has_room", "cache": self.alias}
            logger.info("Redis (cache %r) has memory again.", self.alias, extra=about)
            self.no_room_for.clear()
