"""Trouble with Redis, which processes note there for monitoring."""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

from ..conf import options
from . import keys
from .calls import Call, script
from .types import decode

REASON = 300
"""The most characters of a reason that are noted."""

NOTE_SECONDS = 10
"""Seconds between two notes of a process."""

RECENT_SECONDS = 60
"""Seconds after which trouble that no process has noted again is over."""


class Trouble(NamedTuple):
    """The last trouble that processes have had with Redis: the seconds since then, for how many seconds it had
    ``lasted``, and the ``reason`` that Redis or redis-py gave."""

    age: int
    lasted: int
    reason: str

    @property
    def goes_on(self) -> bool:
        """Whether processes had it in the last minute, and more than once: one late reply does not count."""
        return self.age <= RECENT_SECONDS and self.lasted > 0


class TroubleLog:
    """The log of trouble in Redis: a client adds its own, and reads the trouble of all processes."""

    def __init__(self, client: Any):
        self._client = client
        self._noted: dict[str, float] = {}

    def is_due(self, what: str) -> bool:
        """Return whether it is time to do ``what`` again: true for the first caller only."""
        now = time.monotonic()
        if now - self._noted.get(what, -math.inf) < NOTE_SECONDS:
            return False
        self._noted[what] = now
        return True

    def note(self, reason: str) -> None:
        """Note trouble, at its end if that is an outage, once in a while."""
        if self.is_due("note"):
            self._client.attempt(_call(reason[:REASON]))

    def read(self) -> Trouble | None:
        """Return the last trouble of all processes, if any. BufferUnavailable during an outage."""
        now, at, since, reason = self._client.ask(_call())
        return Trouble(int(now) - int(at), int(at) - int(since), decode(reason)) if at else None


def _call(reason: str = "") -> Call:
    return Call.of(script("trouble"), [keys.trouble(options.KEY_PREFIX)], (reason, RECENT_SECONDS))
