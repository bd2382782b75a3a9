"""Feeds the open streams of this process with counts as they change.

In each process with open streams, one thread with one connection to Redis listens for owners whose count changes. It
reads the counts of their badges, many at once, and hands them to the feeds of the streams: at first immediately, then
at most every GAP. Every 20 seconds it connects again, perhaps to a new master, and reads all of them, so that a missed
message only makes a stream late. The thread works for all tenants.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from threading import RLock, Thread
from typing import Any, NamedTuple

from django.db import ProgrammingError, close_old_connections, connections

from ..buffer import Buffer
from ..caches import reason_of
from ..conf import options
from ..counters import Counter
from ..exceptions import BufferUnavailable
from ..places import Place, at
from ..redis.client import Refusing, client_of
from ..redis.connection import FAILURES
from ..redis.replies import as_text
from ..reports import report
from .badges import Badge, BadgeCount, counts_of

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

# Seconds.
GAP = 0.25  # between two reads
REREAD = 20.0  # between two reads of all badges, over a new connection
LISTEN = int(3 * REREAD)  # Redis publishes changes for this long after it was last asked to
IDLE = 1.0  # between two looks whether any feed is open

MAX_STREAMS = 20
"""Streams that one user can have in this process. A browser needs one, and each takes an open file of the server."""


def most_streams() -> float:
    """Return how many streams this process can have: as many as half of the files that it may open."""
    if resource is None or (files := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) == resource.RLIM_INFINITY:
        return math.inf
    return files // 2


class Full(Exception):
    """No stream can be opened, because of too many of this user, or ``of_all``."""

    def __init__(self, of_all: bool):
        super().__init__(of_all)
        self.of_all = of_all


class Channel(NamedTuple):
    """Where Redis publishes the changes of a counter."""

    place: Place
    counter: Counter
    buffer: Buffer

    def listen(self) -> None:
        """Ask Redis to go on publishing changes."""
        with suppress(BufferUnavailable):
            self.buffer.listen(LISTEN)


class Feed:
    """The counts for one open stream of a user, who is known by the badge of `unread`. Only the event loop of the
    stream touches it."""

    def __init__(self, user: Badge, badges: Iterable[Badge]) -> None:
        self.loop = asyncio.get_running_loop()
        self.news = asyncio.Event()
        self.user = user
        self.badges = frozenset(badges)
        self.counts: dict[Badge, BadgeCount] = {}

    def update(self, counts: Mapping[Badge, BadgeCount]) -> None:
        if not counts.items() <= self.counts.items():
            self.counts.update(counts)
            self.news.set()


class Feeds:
    """The feeds of a process, and the thread that updates them while any is open."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._open: set[Feed] = set()
        self._by_badge: dict[Badge, set[Feed]] = {}
        self._thread: Thread | None = None
        self._is_deaf = False
        self._has_changed = True  # has a feed been opened or closed since the channels were chosen?

    def open(self, user: Badge, badges: Iterable[Badge]) -> Feed:
        """Open a feed of these badges, among them the user's, which the caller must close. Raises Full."""
        feed = Feed(user, badges)
        with self._lock:
            if sum(other.user == user for other in self._by_badge.get(user, ())) >= MAX_STREAMS:
                raise Full(of_all=False)
            if len(self._open) >= most_streams():
                raise Full(of_all=True)
            self._open.add(feed)
            for badge in feed.badges:
                self._by_badge.setdefault(badge, set()).add(feed)
            self._has_changed = True
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="live counts", daemon=True)
                self._thread.start()
        return feed

    def is_open(self, feed: Feed) -> bool:
        return feed in self._open

    def close(self, feed: Feed) -> None:
        """Close a feed, if it is open."""
        with self._lock:
            self._open.discard(feed)
            for badge in feed.badges:
                feeds = self._by_badge.get(badge, set())
                feeds.discard(feed)
                if not feeds:
                    self._by_badge.pop(badge, None)
            self._has_changed = True

    # ----------------------------------------------------------------- thread
    def _run(self) -> None:
        while True:
            try:
                self._read(set(self._by_badge))
                return self._listen()
            except Exception as error:
                if not self._is_deaf:
                    unforeseen = None if isinstance(error, FAILURES) else error
                    report("live_late", exc_info=unforeseen, reason=reason_of(error))
                self._is_deaf = True
            finally:
                connections.close_all()
            time.sleep(max(IDLE, options.RETRY_AFTER))
            if not self._is_needed():
                return

    def _is_needed(self) -> bool:
        with self._lock:
            if not self._by_badge:
                self._thread = None
            return bool(self._by_badge)

    def _listen(self) -> None:
        """Listen until no feed is open, or the connection is lost."""
        with closing(client_of(options.CACHE_ALIAS).redis.pubsub()) as pubsub:
            channels: dict[str, Channel] = {}
            woken: set[Badge] = set()
            read_at = reread_at = 0.0
            self._has_changed = True
            while self._is_needed():
                if self._has_changed:
                    self._subscribe(pubsub, channels)
                patience = max(0.0, read_at - time.monotonic()) if woken else IDLE
                message = pubsub.get_message(timeout=patience)
                if message and (channel := channels.get(as_text(message["channel"] or ""))):
                    woken |= self._woken_by(message, channel)
                now = time.monotonic()
                if now >= reread_at:
                    reread_at = now + REREAD
                    if pubsub.connection:  # of unknown age, if this is its first one; redis-py connects again
                        pubsub.connection.disconnect()
                    for channel in channels.values():
                        channel.listen()
                    woken.update(self._by_badge)
                if woken and now >= read_at:
                    self._read(woken)
                    woken, read_at = set(), time.monotonic() + GAP

    def _woken_by(self, message: dict[str, Any], channel: Channel) -> set[Badge]:
        """Return the badges to read because of a message."""
        place, counter, _ = channel
        if message["type"] == "subscribe":  # also after redis-py has reconnected by itself
            self._is_deaf = False
            channel.listen()
            return {badge for badge in list(self._by_badge) if badge[:2] == (place, counter)}
        if message["type"] == "message":
            named = [Badge(place, counter, owner_key) for owner_key in json.loads(message["data"])]
            return {each for badge in named for each in (badge, badge.whole) if each in self._by_badge}
        return set()

    def _subscribe(self, pubsub: Any, channels: dict[str, Channel]) -> None:
        """Subscribe to the channels of all badges with an open feed, and to no others."""
        self._has_changed = False
        needed = {(badge.place, badge.counter) for badge in list(self._by_badge)}
        for place, counter in needed - {channel[:2] for channel in channels.values()}:
            with at(place):
                buffer = counter.buffer
            if isinstance(buffer.client, Refusing):  # its database has no id yet
                self._has_changed = True
                continue
            pubsub.subscribe(name := buffer.key("live"))
            channels[name] = Channel(place, counter, buffer)
        for name in [name for name, channel in channels.items() if channel[:2] not in needed]:
            pubsub.unsubscribe(name)
            del channels[name]

    def _read(self, badges: Iterable[Badge]) -> None:
        """Read the counts of badges, and update their feeds."""
        counts = counts_of(badges, ProgrammingError)  # if its tables are gone, the tenant was dropped
        close_old_connections()
        news: dict[Feed, dict[Badge, BadgeCount]] = defaultdict(dict)
        with self._lock:
            for badge, count in counts.items():
                for feed in self._by_badge.get(badge, ()):
                    news[feed][badge] = count
        for feed, some in news.items():
            try:
                feed.loop.call_soon_threadsafe(feed.update, some)
            except RuntimeError:  # the loop is closed, and its streams with it
                self.close(feed)


feeds = Feeds()
