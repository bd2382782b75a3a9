"""A circuit breaker: for RETRY_AFTER seconds after a failure, only urgent calls such as confirmations are sent."""

from __future__ import annotations

import logging
import math
import re
import time

from ..conf import options
from ..exceptions import BufferUnavailable, CommandRefused, ScriptFailed
from . import errors
from .location import reason_of

LOG_SECONDS = 60
"""Seconds between two messages that all connections are in use, or that a script has failed."""

NEVER = re.compile(
    r"unknown (redis )?command|unknown subcommand|no ?perm|can't (run|access)|not allowed from|undeclared key|"
    r"(not |un)supported|(?<!data set are )disabled|too many arguments|compiling script",
    re.IGNORECASE,
)
"""Matches errors of commands that a server refuses until its configuration changes. Not the MISCONF of a full disk
("the data set cannot be modified"), which ends by itself."""

BROKEN = re.compile(
    r"WRONGTYPE|not an integer|not a (valid )?float|overflow|user_script:\d+: (attempt to|bad argument|Expected)"
)
"""Matches errors of a script that meets a foreign key or value."""

WHERE = re.compile(r"^.*@user_script:\s*\d+: | script: (\w+, )?on @user_script.*$")
"""Matches the parts of a script's error that Redis adds."""

logger = logging.getLogger("notifications_counter")


class Breaker:
    """The state of a cache's Redis: whether it is down, out of memory, or refuses commands. Logs the beginning and the
    end of each, once. The end is a warning as well, so that a log of warnings shows that it is over. What has no end,
    such as a failed script, is logged every LOG_SECONDS."""

    def __init__(self, alias: str):
        self.alias = alias
        self.down_since: float | None = None
        self.reason = ""  # of the outage
        self.is_late = False  # whether Redis answered too late
        self.retry_at = 0.0
        self.refuses_writes = False
        self.busy_at: float | None = None
        self.broken_at: float | None = None
        self.no_room_for: set[str] = set()
        self.refused_commands: dict[str, str] = {}  # commands and scripts that Redis will not run, and why
        self.has_run: set[str] = set()  # commands and scripts, since the last trouble

    @property
    def has_trouble(self) -> bool:
        """Whether Redis is down, out of memory, or refuses something, as far as is known."""
        return self.down_since is not None or bool(self.no_room_for) or bool(self.refused_commands)

    # ---------------------------------------------------------------- outages
    def check(self) -> None:
        """Raise BufferUnavailable until it is time to try again. Then one caller may try, and the others get the
        exception for RETRY_AFTER seconds more, so that not every thread waits for a server that does not answer."""
        now = time.monotonic()
        seconds = self.retry_at - now
        if seconds > 0:
            wait = f"is not asked again for {math.ceil(seconds)} s"
            raise BufferUnavailable(f"Redis (cache {self.alias!r}) {wait}, since it failed: {self.reason}")
        self.retry_at = now + options.RETRY_AFTER

    def trip(self, error: Exception) -> BufferUnavailable:
        """Note a failure, and return the exception to raise."""
        now, reason = time.monotonic(), reason_of(error, self.alias)
        self.is_late, self.reason = isinstance(error, errors.TimeoutError | TimeoutError), reason
        what = "does not answer in time" if self.is_late else "is unreachable"
        self.retry_at = now + options.RETRY_AFTER
        if self.down_since is None:
            self.down_since = now
            about = {"event": "redis_lost", "cache": self.alias, "reason": reason}
            if self.is_late:
                about = {"event": "redis_slow", "cache": self.alias, "reason": reason}
            text = "Redis (cache %r) %s; reads count rows meanwhile: %s"
            logger.warning(text, self.alias, what, reason, extra=about)
        self.has_run.clear()
        return BufferUnavailable(f"Redis (cache {self.alias!r}) {what}: {reason}")

    def note_busy(self, error: Exception) -> BufferUnavailable:
        """Note that all connections are in use, and return the exception to raise. This is not an outage."""
        now = time.monotonic()
        if self.busy_at is None or now - self.busy_at > LOG_SECONDS:
            self.busy_at = now
            about = {"event": "redis_busy", "cache": self.alias, "reason": str(error)}
            text = "All connections to Redis (cache %r) are in use; raise max_connections. Rows are counted meanwhile."
            logger.warning(text, self.alias, extra=about)
        return BufferUnavailable(f"All connections to Redis (cache {self.alias!r}) are in use: {error}")

    def reset(self) -> str | None:
        """Note that Redis answers again. Returns the reason of the outage, None if there was none."""
        since, self.down_since, self.refuses_writes = self.down_since, None, False
        if since is None:
            return None
        seconds = time.monotonic() - since
        about = {"event": "redis_found", "cache": self.alias, "seconds": round(seconds, 3)}
        logger.warning("Redis (cache %r) answers again after %.1f s.", self.alias, seconds, extra=about)
        return self.reason

    # ------------------------------------------------------------ single commands
    def note_refusal(self, error: Exception, name: str) -> CommandRefused:
        """Note that Redis will never run a command or script, and return the exception to raise. Others still run."""
        reason = reason_of(error, self.alias).rstrip(".")
        if reason not in self.refused_commands.values():
            about = {"event": "redis_refuses", "cache": self.alias, "command": name, "reason": reason}
            text = (
                "Redis (cache %r) does not run %s, which the counters need: %s. Reads count rows. "
                "Use a server with all commands of Redis 6.2, in scripts too, and let its user run them: ACL SETUSER."
            )
            logger.error(text, self.alias, name, reason, extra=about)
        self.refused_commands[name] = reason
        self.has_run.clear()
        return CommandRefused(f"Redis (cache {self.alias!r}) does not run {name}: {reason}")

    def note_broken(self, error: Exception, name: str) -> ScriptFailed:
        """Note that a script or a command met a foreign value, and return the exception to raise."""
        reason, now = WHERE.sub("", str(error)), time.monotonic()
        if self.broken_at is None or now - self.broken_at > LOG_SECONDS:
            self.broken_at = now
            about = {"event": "redis_broken", "cache": self.alias, "command": name, "reason": reason}
            text = (
                "%s failed, because a key of the counters in Redis (cache %r) holds something that they have not "
                "written: %s. It is deleted, and reads count rows until flush_counters runs. Find out what else "
                "writes there."
            )
            logger.error(text, name, self.alias, reason, extra=about)
        return ScriptFailed(f"{name} failed on what Redis (cache {self.alias!r}) holds: {reason}")

    def note_full(self, error: Exception, script: str) -> BufferUnavailable:
        """Note that there is no memory for a script, and return the exception to raise. Scripts that only read, or free
        memory, still run."""
        if not self.no_room_for:
            about = {"event": "redis_full", "cache": self.alias, "reason": str(error)}
            logger.warning("Redis (cache %r) is out of memory: %s", self.alias, error, extra=about)
        self.no_room_for.add(script)
        self.has_run.clear()
        return BufferUnavailable(f"Redis (cache {self.alias!r}) refused: {error}")

    def accept(self, script: str) -> None:
        """Note that a script ran. If it was refused before, Redis has memory again, or another configuration."""
        if reason := self.refused_commands.get(script):
            about = {"event": "redis_accepts", "cache": self.alias, "command": script}
            logger.warning("Redis (cache %r) runs %s again.", self.alias, script, extra=about)
            for name, other in list(self.refused_commands.items()):
                if other == reason:
                    self.refused_commands.pop(name, None)  # another thread may have noticed, too
        if script in self.no_room_for:
            about = {"event": "redis_has_room", "cache": self.alias}
            logger.warning("Redis (cache %r) has memory again.", self.alias, extra=about)
            self.no_room_for.clear()
        self.has_run.add(script)
        if self.has_trouble:  # another thread may have noticed some just now
            self.has_run.discard(script)
