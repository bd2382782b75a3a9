"""Trouble with Redis, which processes note there for monitoring."""

from __future__ import annotations

import math
import threading
import time
from contextlib import nullcontext
from typing import Any, NamedTuple

from ..conf import options
from . import keys
from .patience import Patience
from .scripts import script
from .types import decode, pairs

KINDS = ("lost", "slow", "full", "refused", "broken")
"""Kinds of trouble: see Trouble."""

REASON = 200
"""The most characters of a reason that are noted."""

NOTE_SECONDS = 10
"""Seconds between two notes of a process about the same trouble."""

RECENT_SECONDS = 60
"""Seconds after which trouble that no process has noted again is over."""


class Trouble(NamedTuple):
    """Trouble that processes have had with Redis: its ``kind``, the seconds since the last of it, for how many seconds
    it had lasted then, and the ``reason`` that Redis or redis-py gave.

    ``lost``     Redis could not be reached; noted at the end of the outage
    ``slow``     it answered too late
    ``full``     it is out of memory
    ``refused``  it does not run a command that the counters need
    ``broken``   a script met something that is not ours
    """

    kind: str
    age: int
    lasted: int
    reason: str

    @property
    def goes_on(self) -> bool:
        """Whether a process had it in the last minute. One late reply does not count, nor an outage that has ended."""
        return self.age <= RECENT_SECONDS and self.kind != "lost" and (self.kind != "slow" or self.lasted > 0)


class Outages(NamedTuple):
    """How often processes could not reach Redis, and for how many seconds, summed over all processes; and the last
    trouble of each kind."""

    number: int
    seconds: float
    troubles: tuple[Trouble, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return all of this as simple types."""
        return {**self._asdict(), "troubles": [trouble._asdict() for trouble in self.troubles]}


class TroubleLog:
    """The log of trouble in Redis: a client adds its own, and reads the trouble of all processes."""

    def __init__(self, client: Any):
        self._client = client
        self._noted: dict[str, float] = {}
        self._thread: threading.Thread | None = None

    def is_due(self, what: str) -> bool:
        """Return whether it is time to do ``what`` again: true for the first caller only."""
        now = time.monotonic()
        if now - self._noted.get(what, -math.inf) < NOTE_SECONDS:
            return False
        self._noted[what] = now
        return True

    def note(self, kind: str, reason: str) -> None:
        """Note trouble that may go on, once in a while."""
        if self.is_due(kind):
            self._client.run_aside("note_trouble", *self.arguments(kind, reason))

    def note_later(self, kind: str, reason: str) -> None:
        """Note trouble in a thread, because Redis is slow: the caller has waited long enough."""
        if (self._thread is None or not self._thread.is_alive()) and self.is_due(kind):
            self._thread = threading.Thread(target=self._note, args=self.arguments(kind, reason), daemon=True)
            self._thread.start()

    def _note(self, names: list[str], about: tuple[Any, ...]) -> None:
        # While redis-py looks for the nodes of a cluster, it holds a lock for which others wait.
        with Patience(options.READ_TIMEOUT) if self._client.is_in_cluster else nullcontext():
            self._client.run_aside("note_trouble", names, about)

    def note_outage(self, kind: str, reason: str, seconds: float) -> None:
        """Note an outage that has ended."""
        self._client.run_aside("note_trouble", *self.arguments(kind, reason, round(seconds * 1000)))

    def arguments(self, kind: str, reason: str, milliseconds: int | str = "") -> tuple[list[str], tuple[Any, ...]]:
        """Return the keys and arguments of the script that notes trouble."""
        return [keys.outages(options.KEY_PREFIX)], (kind, reason[:REASON], milliseconds, RECENT_SECONDS)

    def read(self) -> Outages:
        """Return the trouble that processes have noted. BufferUnavailable during an outage."""
        reply = self._client.run(script("read_troubles"), [keys.outages(options.KEY_PREFIX)], ())
        now, found = int(reply[0]), {decode(field): decode(value) for field, value in pairs(reply[1:])}
        troubles = {}
        for kind in KINDS:
            if last := int(found.get(f"{kind}_at", 0)):
                since, reason = int(found.get(f"{kind}_since", last)), found.get(f"{kind}_reason", "")
                troubles[kind] = Trouble(kind, now - last, last - since, reason)
        if reason := self._lack_of_memory():
            troubles["full"] = Trouble("full", 0, 0, reason)
        seconds = int(found.get("outage_ms", 0)) / 1000
        return Outages(int(found.get("outages", 0)), seconds, tuple(troubles.values()))

    def _lack_of_memory(self) -> str:
        """Return why Redis accepts nothing that needs memory, as far as INFO tells; empty if it does."""
        info = self._client.info(keys.outages(options.KEY_PREFIX), "memory")
        used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
        limit = int(info.get("maxmemory", 0))
        is_full = info.get("maxmemory_policy") == "noeviction" and 0 < limit < used
        return f"used_memory {used}, maxmemory {limit}" if is_full else ""
