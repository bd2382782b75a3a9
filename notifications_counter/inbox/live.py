"""Counts as they change, over Server-Sent Events.

A process with open streams has one thread, and one connection to Redis, that listens for users whose count changes,
reads the counts of those with a stream here, many at once, and hands them to the streams. All counts of open streams
are also read every few seconds, and after each reconnect, so a missed message only makes a stream late.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Lock, Thread
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections, connections, transaction
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET
from redis.exceptions import ConnectionError

from ..buffer.client import FAILURES
from ..conf import options
from ..counters import Counter, unread
from ..databases import schema_of
from ..exceptions import BufferUnavailable
from ..internals import end_request_thread, mark_as_logged

logger = logging.getLogger("notifications_counter")

# Seconds.
GAP = 0.25  # between two reads of the count of one user
REREAD = 20.0  # between two reads of all
HEARTBEAT = 20.0  # of silence, before a comment shows that the stream is alive: proxies close it after a minute
MAX_AGE = 300.0  # of a stream; the browser comes again, and is asked again who it is
IDLE = 1.0  # after which the thread looks whether any stream is left
PAUSE = 0.002  # between two messages, after which the counts are read …
BATCH = 0.05  # … or this long after the first, so that a busy site does not hold them up

RETRY = (1000, 5000)  # milliseconds until the browser comes again, drawn by lot so that not all come at once


class Stream:
    """One open stream. Only its own event loop touches it."""

    __slots__ = ("loop", "news", "count")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.news = asyncio.Event()
        self.count: int | None = None

    def tell(self, count: int) -> None:
        if count != self.count:
            self.count = count
            self.news.set()


def _tell_all(news: list[tuple[Stream, int]]) -> None:
    for stream, count in news:
        stream.tell(count)


class Live:
    """The open streams of a process, and the thread that keeps them current, as long as there are any."""

    def __init__(self, counter: Counter):
        self.counter = counter
        self._lock = Lock()
        self._streams: dict[str, set[Stream]] = {}
        self._thread: Thread | None = None
        self._is_deaf = False

    def open(self, member: str) -> Stream:
        """Open a stream of a user's counts. The caller has to close it."""
        stream = Stream()
        with self._lock:
            self._streams.setdefault(member, set()).add(stream)
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name=f"live {self.counter.name}", daemon=True)
                self._thread.start()
        return stream

    def close(self, member: str, stream: Stream) -> None:
        with self._lock:
            streams = self._streams[member]
            streams.remove(stream)
            if not streams:
                del self._streams[member]

    # ----------------------------------------------------------------- thread
    def _run(self) -> None:
        while True:
            try:
                self._read(set(self._streams))
                return self._listen()
            except Exception as error:
                if not self._is_deaf:
                    unforeseen = None if isinstance(error, FAILURES) else error
                    about = {"event": "live_late", "counter": self.counter.name, "reason": str(error)}
                    text = "%s: live counts are late: Redis cannot be heard: %s"
                    logger.warning(text, self.counter.name, error, exc_info=unforeseen, extra=about)
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
        buffers = self.counter.buffers
        with closing(buffers[0].client.redis.pubsub()) as pubsub:
            pubsub.subscribe(*[buffer.keys.live for buffer in buffers])
            woken: set[str] = set()
            read: dict[str, float] = {}  # when each was read who is not to be read again yet
            reread_at, heard = 0.0, True
            while self._is_needed():
                message = pubsub.get_message(timeout=GAP if woken else IDLE)
                until = time.monotonic() + BATCH
                while message is not None:
                    heard = True
                    if message["type"] == "message":
                        woken.update(member for member in json.loads(message["data"]) if member in self._streams)
                    elif message["type"] == "subscribe":  # also after redis-py has reconnected by itself
                        self._is_deaf, reread_at = False, 0.0
                    message = pubsub.get_message(timeout=PAUSE) if time.monotonic() < until else None
                now = time.monotonic()
                if now >= reread_at:
                    if not heard:
                        raise ConnectionError("no answer to a PING")
                    reread_at, heard = now + REREAD, False
                    pubsub.ping()
                    for buffer in buffers:
                        with suppress(BufferUnavailable):
                            buffer.listen(int(3 * REREAD))
                    woken.update(self._streams)
                read = {member: when for member, when in read.items() if now - when < GAP}
                if ready := woken - read.keys():
                    self._read(ready)
                    read.update(dict.fromkeys(ready, time.monotonic()))
                    woken -= ready

    def _read(self, members: Iterable[str]) -> None:
        """Read counts and hand them to the streams."""
        counts = self.counter.counts(members)
        close_old_connections()
        news: dict[asyncio.AbstractEventLoop, list[tuple[Stream, int]]] = defaultdict(list)
        with self._lock:
            for key, count in counts.items():
                for stream in self._streams.get(str(key), ()):
                    news[stream.loop].append((stream, count))
        for loop, theirs in news.items():
            with suppress(RuntimeError):  # it is closed, and its streams with it
                loop.call_soon_threadsafe(_tell_all, theirs)


live = Live(unread)


# ---------------------------------------------------------------------- view
@login_not_required
@require_GET
async def stream(request: HttpRequest) -> HttpResponseBase:
    """Events ``unread`` with ``{"unread": 3}``: the count at once and whenever it changes. 401 for an anonymous
    user; 501 under WSGI, where a stream would hold a worker, and for tenants. The id of an event is its count, so a
    browser that reconnects gets only what is new."""
    if not isinstance(request, ASGIRequest):
        return _not_implemented(_("Streams need ASGI."))
    if await sync_to_async(_is_of_tenant)():
        return _not_implemented(_("Streams are not for tenants."))
    member = await sync_to_async(_member_of)(request)
    if member is None:
        detail = {"detail": _("Authentication required.")}
        return JsonResponse(detail, status=401, headers={"WWW-Authenticate": "Session"})
    return StreamingHttpResponse(
        _events(member, request.headers.get("Last-Event-ID")),
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


def _is_of_tenant() -> bool:
    """Return whether a new thread, such as the one that reads for all streams, works on another database or schema."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_place).result() != _place()


def _place() -> tuple[str, str | None]:
    return unread.db, schema_of(connections[unread.db])


def _member_of(request: Any) -> str | None:
    user = getattr(request, "user", None)
    return unread.encode(user.pk) if user is not None and user.is_authenticated else None


def _count_and_close(member: str) -> int:
    """The count. The connections of this thread are closed, or the stream would keep them until it ends."""
    try:
        return unread.count(member)
    finally:
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()


async def _events(member: str, known: str | None) -> AsyncIterator[str]:
    stream = live.open(member)
    try:
        count = await sync_to_async(_count_and_close)(member)
        end_request_thread()
        if stream.count is None:
            stream.count = count
        yield f"retry: {random.randint(*RETRY)}\n\n"
        ends = time.monotonic() + MAX_AGE * random.uniform(0.9, 1.1)
        while time.monotonic() < ends:
            stream.news.clear()
            if str(stream.count) != known:
                known = str(stream.count)
                yield f'event: unread\nid: {known}\ndata: {{"unread": {known}}}\n\n'
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await stream.news.wait()
            except TimeoutError:
                yield ":\n\n"
    finally:
        live.close(member, stream)
