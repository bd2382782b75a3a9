"""Counts as they change, over Server-Sent Events.

In each process with open streams, one thread with one connection to Redis listens for owners whose count changes. It
reads the counts of badges that have a stream here, many at once, and hands them to the streams. All counts of open
streams are also read every few seconds, and after each reconnect, so that a missed message only makes a stream late.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import closing, suppress
from hashlib import sha256
from threading import Lock, Thread

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections, connections, transaction
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET
from redis.exceptions import ConnectionError

from ..badges import Badge, Shown, badges_of, count_all, counts_of, user_of
from ..buffer.client import client_of
from ..buffer.connections import FAILURES
from ..buffer.types import decode
from ..conf import options
from ..counters import Counter
from ..exceptions import BufferUnavailable
from ..internals import end_request_thread, mark_as_logged
from ..maintenance.places import here, outside

logger = logging.getLogger("notifications_counter")

# Seconds.
GAP = 0.25  # between two reads of the count of one user
REREAD = 20.0  # between two reads of all
HEARTBEAT = 20.0  # of silence, before the counts are sent again: proxies close a silent stream after a minute
MAX_AGE = 300.0  # of a stream; then the browser reconnects, and its session is checked again
IDLE = 1.0  # after which the thread looks whether any stream is left
PAUSE = 0.002  # between two messages, after which the counts are read …
BATCH = 0.05  # … or this long after the first, so that a busy site does not hold them up

RETRY = (1000, 5000)  # milliseconds until a browser reconnects, at random so that not all reconnect at once


class Stream:
    """One open stream. Only its own event loop touches it."""

    __slots__ = ("loop", "news", "badges", "counts")

    def __init__(self, badges: Iterable[Badge]) -> None:
        self.loop = asyncio.get_running_loop()
        self.news = asyncio.Event()
        self.badges = frozenset(badges)
        self.counts: dict[Badge, Shown] = {}

    def tell(self, badge: Badge, count: Shown) -> None:
        if count != self.counts.get(badge):
            self.counts[badge] = count
            self.news.set()


def _tell_all(news: list[tuple[Stream, Badge, Shown]]) -> None:
    for stream, badge, count in news:
        stream.tell(badge, count)


class Live:
    """The open streams of a process, and the thread that keeps them up to date as long as there are any."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._streams: dict[Badge, set[Stream]] = {}
        self._thread: Thread | None = None
        self._is_deaf = False

    def open(self, badges: Iterable[Badge]) -> Stream:
        """Open a stream of what badges show. The caller must close it."""
        stream = Stream(badges)
        with self._lock:
            for badge in stream.badges:
                self._streams.setdefault(badge, set()).add(stream)
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="live counts", daemon=True)
                self._thread.start()
        return stream

    def close(self, stream: Stream) -> None:
        with self._lock:
            for badge in stream.badges:
                streams = self._streams[badge]
                streams.remove(stream)
                if not streams:
                    del self._streams[badge]

    # ----------------------------------------------------------------- thread
    def _run(self) -> None:
        while True:
            try:
                self._read(set(self._streams))
                return self._listen()
            except Exception as error:
                if not self._is_deaf:
                    unforeseen = None if isinstance(error, FAILURES) else error
                    about = {"event": "live_late", "reason": str(error)}
                    text = "Live counts are late, because Redis cannot be heard: %s"
                    logger.warning(text, error, exc_info=unforeseen, extra=about)
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
            channels: dict[str, Counter] = {}
            woken: set[Badge] = set()
            read: dict[Badge, float] = {}  # when each was read that is not to be read again yet
            reread_at, heard = 0.0, True
            while self._is_needed():
                for counter in {badge.counter for badge in list(self._streams)} - set(channels.values()):
                    channels |= dict.fromkeys((buffer.keys.live for buffer in counter.buffers), counter)
                    pubsub.subscribe(*(channel for channel in channels if channels[channel] is counter))
                message = pubsub.get_message(timeout=GAP if woken else IDLE)
                until = time.monotonic() + BATCH
                while message is not None:
                    heard = True
                    if message["type"] == "message":
                        counter = channels[decode(message["channel"])]
                        named = (Badge(counter, member) for member in json.loads(message["data"]))
                        woken.update(b for badge in named for b in (badge, badge.whole) if b in self._streams)
                    elif message["type"] == "subscribe":  # also after redis-py has reconnected by itself
                        self._is_deaf, reread_at = False, 0.0
                    message = pubsub.get_message(timeout=PAUSE) if time.monotonic() < until else None
                now = time.monotonic()
                if now >= reread_at:
                    if not heard:
                        raise ConnectionError("no answer to a PING")
                    reread_at, heard = now + REREAD, False
                    pubsub.ping()
                    for counter in set(channels.values()):
                        for buffer in counter.buffers:
                            with suppress(BufferUnavailable):
                                buffer.listen(int(3 * REREAD))
                    woken.update(self._streams)
                read = {badge: when for badge, when in read.items() if now - when < GAP}
                if ready := woken - read.keys():
                    self._read(ready)
                    read.update(dict.fromkeys(ready, time.monotonic()))
                    woken -= ready

    def _read(self, badges: Iterable[Badge]) -> None:
        """Read counts and hand them to the streams."""
        counts = counts_of(badges)
        close_old_connections()
        news: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Badge, Shown]]] = defaultdict(list)
        with self._lock:
            for badge, count in counts.items():
                for stream in self._streams.get(badge, ()):
                    news[stream.loop].append((stream, badge, count))
        for loop, theirs in news.items():
            with suppress(RuntimeError):  # it is closed, and its streams with it
                loop.call_soon_threadsafe(_tell_all, theirs)


live = Live()


# ---------------------------------------------------------------------- view
@login_not_required
@require_GET
async def stream(request: HttpRequest) -> HttpResponseBase:
    """Send events ``counts`` with ``{"unread": 3}``, at once and whenever a count changes: those of the built-in
    counters, and of each ``badge`` that the query string names. The id of an event is its counts, so a browser that
    reconnects gets only news.

    401 for an anonymous user; 501 for tenants, and under WSGI, where a stream would block a worker.
    """
    if not isinstance(request, ASGIRequest):
        return _not_implemented(_("Streams need ASGI."))
    badges = await sync_to_async(_badges_of)(request)
    if not badges:
        detail = {"detail": _("Authentication required.")}
        return JsonResponse(detail, status=401, headers={"WWW-Authenticate": "Session"})
    if await sync_to_async(_are_of_tenant)(badges):
        return _not_implemented(_("Streams are not for tenants."))
    return StreamingHttpResponse(
        _events(badges, request.headers.get("Last-Event-ID")),
        content_type="text/event-stream",
        headers={
            "Cache-Control": "private, no-cache, no-transform",
            "Content-Encoding": "identity",  # GZipMiddleware, like a proxy that compresses, would hold events back
            "X-Accel-Buffering": "no",
        },
    )


for alias in connections:  # Django has no ATOMIC_REQUESTS for async views, and refuses to call them
    transaction.non_atomic_requests(alias)(stream)


def _not_implemented(detail: str) -> HttpResponseBase:
    response = JsonResponse({"detail": detail}, status=501)
    mark_as_logged(response)  # no mail to the admins: the script will poll
    return response


def _badges_of(request: HttpRequest) -> dict[str, Badge]:
    """Return the badges that the stream sends; none if nobody is logged in."""
    user = user_of(request)
    return {} if user is None else badges_of(user, request.GET.getlist("badge"))


def _are_of_tenant(badges: Mapping[str, Badge]) -> bool:
    """Return whether a new thread, such as the one that reads for all streams, works on another database or schema."""
    sources = {badge.counter.source for badge in badges.values()}
    return any(here(source) != outside(source) for source in sources)


def _count_and_close(badges: Mapping[str, Badge]) -> dict[str, Shown]:
    """Return the counts, and close this thread's connections, which the stream would otherwise keep."""
    try:
        return count_all(badges)
    finally:
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()


def _id_of(counts: Mapping[str, Shown]) -> str:
    """Return an id that contains the counts, or for counts by kind, which may be many, a digest."""
    texts = (str(n) if isinstance(n, int) else sha256(json.dumps(n).encode()).hexdigest()[:16] for n in counts.values())
    return "-".join(texts)


async def _events(badges: Mapping[str, Badge], known: str | None) -> AsyncIterator[str]:
    stream = live.open(badges.values())
    try:
        counts = await sync_to_async(_count_and_close)(badges)
        end_request_thread()
        stream.counts = {badge: counts[name] for name, badge in badges.items()} | stream.counts
        yield f"retry: {random.randint(*RETRY)}\n\n"
        ends = time.monotonic() + MAX_AGE * random.uniform(0.9, 1.1)
        while time.monotonic() < ends:
            stream.news.clear()
            counts = {name: stream.counts[badge] for name, badge in badges.items()}
            if (id := _id_of(counts)) != known:
                known = id
                yield f"event: counts\nid: {id}\ndata: {json.dumps(counts)}\n\n"
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await stream.news.wait()
            except TimeoutError:
                known = None  # the page may have heard of another count meanwhile, by asking
    finally:
        live.close(stream)
