"""Feeds the open streams of this process with counts as they change.

In each process with open streams, one thread with one connection to Redis listens for owners whose count changes. It
reads the counts of their badges, many at once, and hands them to the feeds of the streams: at first immediately, then
at most every GAP. It also reads all of them every 20 seconds and after each reconnect, so that a missed message only
makes a stream late. The thread works for all tenants, so each badge comes with its place.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from threading import Lock, Thread
from typing import Any, NamedTuple

import redis
from django.db import ProgrammingError, close_old_connections, connections

from ..buffer import Buffer
from ..buffer.client import client_of
from ..buffer.connection import FAILURES
from ..buffer.types import as_text
from ..caches import reason_of
from ..conf import options
from ..counters import Counter
from ..exceptions import BufferUnavailable
from ..places import LocalCounter, Place, at
from .badges import Badge, BadgeCount, counts_of

logger = logging.getLogger("notifications_counter")

# Seconds.
GAP = 0.25  # between two reads
REREAD = 20.0  # between two reads of all badges
LISTEN = int(3 * REREAD)  # Redis publishes changes for this long after it was last asked to
IDLE = 1.0  # between two looks whether any feed is open

MAX_STREAMS = 20
"""Streams that one user can have in this process. A browser needs one, and each takes an open file of the server."""


class Channel(NamedTuple):
    """The counter behind a channel."""

    local: LocalCounter[Counter]
    buffer: Buffer


class LocalBadge(NamedTuple):
    """A badge, and the place where it is counted."""

    place: Place
    badge: Badge

    @property
    def local_counter(self) -> LocalCounter[Counter]:
        return LocalCounter(self.badge.counter.name, self.badge.counter, self.place)


class Feed:
    """The counts for one open stream. Only the event loop of the stream touches it."""

    __slots__ = ("loop", "news", "user", "badges", "counts", "is_open")

    def __init__(self, user: str, badges: Iterable[LocalBadge]) -> None:
        self.loop = asyncio.get_running_loop()
        self.news = asyncio.Event()
        self.user = user
        self.badges = frozenset(badges)
        self.counts: dict[LocalBadge, BadgeCount] = {}
        self.is_open = True

    def update(self, counts: Mapping[LocalBadge, BadgeCount]) -> None:
        if not counts.items() <= self.counts.items():
            self.counts.update(counts)
            self.news.set()


class Feeds:
    """The feeds of a process, and the thread that updates them while any is open."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_badge: dict[LocalBadge, set[Feed]] = {}
        self._numbers: Tally[str] = Tally()  # of feeds, by user
        self._thread: Thread | None = None
        self._is_deaf = False
        self._has_changed = True  # has a feed been opened or closed since the channels were chosen?

    def has_room(self, user: str) -> bool:
        """Return whether a user may open one more feed."""
        return self._numbers[user] < MAX_STREAMS

    def open(self, user: str, badges: Iterable[LocalBadge]) -> Feed | None:
        """Open a feed of these badges, which the caller must close. Return None if the user has too many."""
        feed = Feed(user, badges)
        with self._lock:
            if not self.has_room(user):
                return None
            self._numbers[user] += 1
            for badge in feed.badges:
                self._by_badge.setdefault(badge, set()).add(feed)
            self._has_changed = True
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="live counts", daemon=True)
                self._thread.start()
        return feed

    def close(self, feed: Feed) -> None:
        """Close a feed, if it is open."""
        with self._lock:
            if not feed.is_open:
                return
            feed.is_open = False
            for badge in feed.badges:
                feeds = self._by_badge[badge]
                feeds.remove(feed)
                if not feeds:
                    del self._by_badge[badge]
            self._numbers[feed.user] -= 1
            if not self._numbers[feed.user]:
                del self._numbers[feed.user]
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
                    reason = reason_of(error)
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
            if not self._by_badge:
                self._thread = None
            return bool(self._by_badge)

    def _listen(self) -> None:
        """Listen until no feed is open, or the connection is lost."""
        with closing(client_of(options.CACHE_ALIAS).redis.pubsub()) as pubsub:
            channels: dict[str, Channel] = {}
            woken: set[LocalBadge] = set()
            read_at, reread_at, heard = 0.0, 0.0, True
            self._has_changed = True
            while self._is_needed():
                if self._has_changed:
                    self._subscribe(pubsub, channels)
                patience = max(0.0, read_at - time.monotonic()) if woken else IDLE
                if message := pubsub.get_message(timeout=patience):
                    heard = True
                    woken |= self._woken_by(message, channels)
                now = time.monotonic()
                if now >= reread_at:
                    if not heard:
                        raise redis.ConnectionError("no answer to a PING")
                    reread_at, heard = now + REREAD, False
                    pubsub.ping()
                    self._ask_again(channels)
                    woken.update(self._by_badge)
                if woken and now >= read_at:
                    self._read(woken)
                    woken, read_at = set(), time.monotonic() + GAP

    def _woken_by(self, message: dict[str, Any], channels: dict[str, Channel]) -> set[LocalBadge]:
        """Return the badges to read because of a message."""
        channel = channels.get(as_text(message["channel"] or ""))
        if channel and message["type"] == "subscribe":  # also after redis-py has reconnected by itself
            self._is_deaf = False
            with suppress(BufferUnavailable):
                channel.buffer.listen(LISTEN)
            return {badge for badge in list(self._by_badge) if badge.local_counter == channel.local}
        if channel and message["type"] == "message":
            _, counter, place = channel.local
            named = [Badge(counter, owner_key) for owner_key in json.loads(message["data"])]
            local = (LocalBadge(place, b) for badge in named for b in (badge, badge.whole))
            return {badge for badge in local if badge in self._by_badge}
        return set()

    def _ask_again(self, channels: dict[str, Channel]) -> None:
        """Ask Redis to go on publishing changes."""
        for channel in list(channels.values()):
            with suppress(BufferUnavailable):
                channel.buffer.listen(LISTEN)

    def _subscribe(self, pubsub: Any, channels: dict[str, Channel]) -> None:
        """Subscribe to the channels of all badges with an open feed, and to no others."""
        self._has_changed = False
        needed = {badge.local_counter for badge in list(self._by_badge)}
        for local in needed - {channel.local for channel in channels.values()}:
            try:
                with at(local.place):
                    buffer = local.counter.buffer
            except BufferUnavailable:  # its database has no id yet
                self._has_changed = True
                continue
            pubsub.subscribe(channel := buffer.key("live"))
            channels[channel] = Channel(local, buffer)
        for name in [name for name, channel in channels.items() if channel.local not in needed]:
            pubsub.unsubscribe(name)
            del channels[name]

    def _read(self, badges: Iterable[LocalBadge]) -> None:
        """Read the counts of badges, and update their feeds."""
        counts = counts_now(badges, ProgrammingError)  # if its tables are gone, the tenant was dropped
        close_old_connections()
        news: dict[Feed, dict[LocalBadge, BadgeCount]] = defaultdict(dict)
        with self._lock:
            for local, count in counts.items():
                for feed in self._by_badge.get(local, ()):
                    news[feed][local] = count
        for feed, some in news.items():
            with suppress(RuntimeError):  # the loop is closed, and its streams with it
                feed.loop.call_soon_threadsafe(feed.update, some)


def counts_now(badges: Iterable[LocalBadge], *without: type[Exception]) -> dict[LocalBadge, BadgeCount]:
    """Read the counts of badges. Leave out the badges of places where this raises one of these errors."""
    places: dict[Place, list[Badge]] = defaultdict(list)
    for place, badge in badges:
        places[place].append(badge)
    found: dict[LocalBadge, BadgeCount] = {}
    for place, some in places.items():
        with suppress(*without), at(place):
            found |= {LocalBadge(place, badge): count for badge, count in counts_of(some).items()}
    return found


feeds = Feeds()
