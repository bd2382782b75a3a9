"""Counts as they change, for the streams of this process.

In each process with open streams, one thread with one connection to Redis listens for owners whose count changes. It
reads the counts of badges that have a stream here, many at once, and hands them to the streams. All counts of open
streams are also read every few seconds, and after each reconnect, so that a missed message only makes a stream late.
The thread works for all tenants, so each badge comes with its place.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter as Numbers
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from threading import Lock, Thread
from typing import Any, NamedTuple

from django.db import ProgrammingError, close_old_connections, connections
from redis import ConnectionError

from ..buffer import Buffer, errors
from ..buffer.client import client_of
from ..buffer.location import reason_of
from ..buffer.types import UNREADABLE, decode
from ..conf import options
from ..counters import Counter
from ..exceptions import BufferUnavailable, DatabaseChanged
from ..maintenance.places import Place, at
from .badges import Badge, Shown, counts_of

logger = logging.getLogger("notifications_counter")

# Seconds.
GAP = 0.25  # between two reads of the count of one user
REREAD = 20.0  # between two reads of all
LISTEN = int(3 * REREAD)  # for which Redis tells of changes, after it was last asked to
IDLE = 1.0  # after which the thread looks whether any stream is left
PAUSE = 0.002  # between two messages, after which the counts are read …
BATCH = 0.05  # … or this long after the first, so that a busy site does not hold them up

MOST = 20
"""Streams that one user can have in this process. A browser needs one, and each takes an open file of the server."""


class Source(NamedTuple):
    """A counter at a place, which Redis tells about on one channel for each shard."""

    place: Place
    counter: Counter


class Channel(NamedTuple):
    """Who is told of on a channel, and the shard that tells."""

    source: Source
    buffer: Buffer


class LocalBadge(NamedTuple):
    """A badge, and the place where it is counted."""

    place: Place
    badge: Badge

    @property
    def source(self) -> Source:
        return Source(self.place, self.badge.counter)


class Stream:
    """One open stream. Only its own event loop touches it."""

    __slots__ = ("loop", "news", "user", "badges", "counts", "is_open")

    def __init__(self, user: str, badges: Iterable[LocalBadge]) -> None:
        self.loop = asyncio.get_running_loop()
        self.news = asyncio.Event()
        self.user = user
        self.badges = frozenset(badges)
        self.counts: dict[LocalBadge, Shown] = {}
        self.is_open = True

    def tell(self, badge: LocalBadge, count: Shown) -> None:
        if count != self.counts.get(badge):
            self.counts[badge] = count
            self.news.set()


def _tell_all(news: list[tuple[Stream, LocalBadge, Shown]]) -> None:
    for stream, badge, count in news:
        stream.tell(badge, count)


class Live:
    """The open streams of a process, and the thread that keeps them up to date as long as there are any."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._streams: dict[LocalBadge, set[Stream]] = {}
        self._numbers: Numbers[str] = Numbers()  # of streams, by user
        self._thread: Thread | None = None
        self._is_deaf = False
        self._has_changed = True  # are there other streams than when channels were last chosen?

    def has_room(self, user: str) -> bool:
        """Return whether a user can have one more stream."""
        return self._numbers[user] < MOST

    def open(self, user: str, badges: Iterable[LocalBadge]) -> Stream | None:
        """Open a stream of what badges show, or return None if the user has too many. The caller must close it."""
        stream = Stream(user, badges)
        with self._lock:
            if not self.has_room(user):
                return None
            self._numbers[user] += 1
            for badge in stream.badges:
                self._streams.setdefault(badge, set()).add(stream)
            self._has_changed = True
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="live counts", daemon=True)
                self._thread.start()
        return stream

    def close(self, stream: Stream) -> None:
        """Close a stream, if it is not closed yet."""
        with self._lock:
            if not stream.is_open:
                return
            stream.is_open = False
            for badge in stream.badges:
                streams = self._streams[badge]
                streams.remove(stream)
                if not streams:
                    del self._streams[badge]
            self._numbers[stream.user] -= 1
            if not self._numbers[stream.user]:
                del self._numbers[stream.user]
            self._has_changed = True

    # ----------------------------------------------------------------- thread
    def _run(self) -> None:
        while True:
            try:
                self._read(set(self._streams))
                return self._listen()
            except Exception as error:
                if not self._is_deaf:
                    unforeseen = None if isinstance(error, errors.FAILURES) else error
                    reason = reason_of(error, options.CACHE_ALIAS)
                    about = {"event": "live_late", "reason": reason}
                    text = "Live counts are late, because Redis cannot be heard: %s"
                    logger.warning(text, reason, exc_info=unforeseen, extra=about)
                self._is_deaf = True
            finally:
                connections.close_all()
            time.sleep(max(IDLE, options.RETRY_AFTER))
            if not self._is_needed():
                return

    def _is_needed(self) -> bool:
        with self._lock:
            if not self._streams:
                self._thread = None
            return bool(self._streams)

    def _listen(self) -> None:
        """Listen until no stream is left, or the connection is lost."""
        with closing(client_of(options.CACHE_ALIAS).redis.pubsub()) as pubsub:
            channels: dict[str, Channel] = {}
            woken: set[LocalBadge] = set()
            read: dict[LocalBadge, float] = {}  # when each was read that is not to be read again yet
            reread_at, heard = 0.0, True
            self._has_changed = True
            while self._is_needed():
                if self._has_changed:
                    self._subscribe(pubsub, channels)
                for message in _messages(pubsub, GAP if woken else IDLE):
                    heard = True
                    woken |= self._woken_by(message, channels)
                now = time.monotonic()
                if now >= reread_at:
                    if not heard:
                        raise ConnectionError("no answer to a PING")
                    reread_at, heard = now + REREAD, False
                    pubsub.ping()
                    self._ask_again(pubsub, channels)
                    woken.update(self._streams)
                read = {badge: when for badge, when in read.items() if now - when < GAP}
                if ready := woken - read.keys():
                    self._read(ready)
                    read.update(dict.fromkeys(ready, time.monotonic()))
                    woken -= ready

    def _woken_by(self, message: dict[str, Any], channels: dict[str, Channel]) -> set[LocalBadge]:
        """Return the badges that a message gives reason to read."""
        channel = channels.get(decode(message["channel"] or ""))
        if channel and message["type"] == "subscribe":  # also after redis-py has reconnected by itself
            self._is_deaf = False
            with suppress(BufferUnavailable):
                channel.buffer.listen(LISTEN)
            return {badge for badge in list(self._streams) if badge.source == channel.source}
        if channel and message["type"] == "message":
            place, counter = channel.source
            with suppress(*UNREADABLE):  # something else may publish, too
                named = [Badge(counter, str(owner_key)) for owner_key in json.loads(message["data"])]
                local = (LocalBadge(place, b) for badge in named for b in (badge, badge.whole))
                return {badge for badge in local if badge in self._streams}
        return set()

    def _ask_again(self, pubsub: Any, channels: dict[str, Channel]) -> None:
        """Ask Redis to go on telling of changes, and leave the channels of databases that others have replaced."""
        for name, channel in list(channels.items()):
            try:
                channel.buffer.listen(LISTEN)
            except DatabaseChanged:
                pubsub.unsubscribe(name)
                del channels[name]
                self._has_changed = True
            except BufferUnavailable:
                pass

    def _subscribe(self, pubsub: Any, channels: dict[str, Channel]) -> None:
        """Subscribe to the channels of what has streams now, and to no others."""
        self._has_changed = False
        needed = {badge.source for badge in list(self._streams)}
        for source in needed - {channel.source for channel in channels.values()}:
            try:
                with at(source.place):
                    new = {buffer.keys.live: Channel(source, buffer) for buffer in source.counter.buffers}
            except BufferUnavailable:  # its database has no id yet
                self._has_changed = True
                continue
            pubsub.subscribe(*new)
            channels.update(new)
        for name in [name for name, channel in channels.items() if channel.source not in needed]:
            pubsub.unsubscribe(name)
            del channels[name]

    def _read(self, badges: Iterable[LocalBadge]) -> None:
        """Read counts and hand them to the streams."""
        counts = counts_now(badges, ProgrammingError)  # if its tables are gone, the tenant was dropped
        close_old_connections()
        news: dict[asyncio.AbstractEventLoop, list[tuple[Stream, LocalBadge, Shown]]] = defaultdict(list)
        with self._lock:
            for local, count in counts.items():
                for stream in self._streams.get(local, ()):
                    news[stream.loop].append((stream, local, count))
        for loop, some in news.items():
            with suppress(RuntimeError):  # it is closed, and its streams with it
                loop.call_soon_threadsafe(_tell_all, some)


def _messages(pubsub: Any, timeout: float) -> Iterator[dict[str, Any]]:
    """Yield a message that comes within a timeout, and those that follow at once."""
    message = pubsub.get_message(timeout=timeout)
    until = time.monotonic() + BATCH
    while message is not None:
        yield message
        message = pubsub.get_message(timeout=PAUSE) if time.monotonic() < until else None


def counts_now(badges: Iterable[LocalBadge], *without: type[Exception]) -> dict[LocalBadge, Shown]:
    """Return what badges show now, without those of places where this raises one of these errors."""
    places: dict[Place, list[Badge]] = defaultdict(list)
    for place, badge in badges:
        places[place].append(badge)
    found: dict[LocalBadge, Shown] = {}
    for place, theirs in places.items():
        with suppress(*without), at(place):
            found |= {LocalBadge(place, badge): count for badge, count in counts_of(theirs).items()}
    return found


live = Live()
