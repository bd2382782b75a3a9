"""A shard in Redis: the registration of its keys, and calls of its scripts."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

from ..exceptions import DatabaseChanged
from .client import Client
from .commands import OWNERS_PER_CALL, Argument, Call, call_of, chunked
from .keys import Keys
from .scripts import script
from .types import decode

logger = logging.getLogger("notifications_counter")

LEASE = 60
"""Seconds after which a lease is old, or HEAL_AFTER if that is less. Safety does not depend on it."""

HEARTBEAT_SECONDS = 1
"""Seconds after which a process that counts rows says again that it is alive."""

left_databases: set[str] = set()
"""Ids of databases whose keys were left for another database, as far as this process knows."""


class _Calls(dict[str, Call]):
    """Calls of the scripts by name, with keys of the shard, and without arguments."""

    def __init__(self, keys: Keys):
        self._keys = keys

    def __missing__(self, name: str) -> Call:
        self[name] = call_of(script(name), [getattr(self._keys, key) for key in script(name).keys])
        return self[name]


class Shard:
    """A shard of a counter in Redis, entered before its first use. Every method raises BufferUnavailable if Redis is
    unavailable.

    ``shard``        its number
    ``ttl``          seconds after which the lasting keys of a test database expire, '' for other databases
    ``fingerprint``  of the counter's declaration
    ``epoch``        the database's at first, or a later one that Redis has reached
    """

    def __init__(
        self, client: Client, keys: Keys, shard: int = 0, ttl: int | str = "", fingerprint: str = "", epoch: int = 0
    ):
        self.client = client
        self.keys = keys
        self.shard = shard
        self.ttl = ttl
        self.fingerprint = fingerprint
        self.epoch = epoch
        self._heartbeat_at = -math.inf
        self.calls = _Calls(keys)
        self.is_entered = False
        self._is_behind = False

    def run(self, name: str, *args: Argument) -> Any:
        """Call a script and return its reply."""
        if not self.is_entered:
            self.enter()
        return self.client.ask(Call(*self.calls[name][:-1], args))

    def enter(self) -> None:
        """Register these keys as those of the database, before their first use; again, while Redis is behind the
        database.

        This and every other method raises DatabaseChanged if these keys were left.
        """
        id_ = self.keys.base.rpartition(":")[2]
        try:
            is_behind = self.client.ask(Call(*self.calls["enter"][:-1], (id_, self.ttl, self.epoch)))
        except DatabaseChanged:
            left_databases.add(id_)
            raise
        if is_behind and not self._is_behind:
            about = {"event": "redis_behind", "cache": self.client.alias, "keys": self.keys.base}
            text = (
                "Redis (cache %r) has lost data, or the last run of flush_counters had other settings: another Redis, "
                "or other SHARDS. Reads count rows until flush_counters has run with the same settings as "
                "this process."
            )
            logger.warning(text, self.client.alias, extra=about)
        self._is_behind = bool(is_behind)
        self.is_entered = not is_behind

    def epoch_in(self, value: Any) -> str:
        """Return a value of ``ready`` without the fingerprint, as in ``7`` or ``7?``. Empty if it belongs to another
        declaration."""
        epoch, _, fingerprint = decode(value).partition(":")
        mark = "?" if fingerprint.endswith("?") else ""
        return epoch + mark if fingerprint == self.fingerprint + mark else ""

    def heartbeat(self) -> None:
        """Tell Redis that this process is alive, at most once in HEARTBEAT_SECONDS. If it has another declaration of
        the counter than the one in force, all readers count rows until the processes of one of the two are gone."""
        now = time.monotonic()
        if now - self._heartbeat_at > HEARTBEAT_SECONDS:
            self._heartbeat_at = now
            self.run("heartbeat", self.fingerprint)

    def mark_dirty(self, owners: Sequence[str]) -> None:
        """Send owners to a recount. Until then, readers count their rows."""
        for some in chunked(owners, OWNERS_PER_CALL):
            self.run("mark_dirty", *some)

    def ready_in(self, epoch: int) -> str:
        """Return the value of ``ready`` when the recovery of an epoch is complete."""
        return f"{epoch}:{self.fingerprint}"
