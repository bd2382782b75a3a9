"""The view of the streams: counts as they change, over Server-Sent Events."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from hashlib import sha256

from asgiref.sync import sync_to_async
from django.contrib.auth import SESSION_KEY, get_user
from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.db import DatabaseError, connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_GET
from django.views.decorators.vary import vary_on_cookie

from ..counters import unread
from ..databases.transactions import outside_transactions
from ..internals import end_request_thread
from ..maintenance.places import here
from .api import Refused, nobody
from .badges import Shown, badges_of, identity_of, user_of
from .live import LocalBadge, Stream, counts_now, live

# Seconds.
HEARTBEAT = 20.0  # after which the counts are sent again: proxies close a silent stream after a minute
MAX_AGE = 300.0  # of a stream; then the browser reconnects
GRACE = 5.0  # after which a stream that should have ended is cut off, because nobody reads it

RETRY = (1000, 5000)  # milliseconds until a browser reconnects, at random so that not all reconnect at once


@outside_transactions  # Django has no ATOMIC_REQUESTS for async views, and refuses to call them
@login_not_required
@vary_on_cookie
@cache_control(private=True, no_cache=True, no_transform=True)
@require_GET
async def stream(request: HttpRequest) -> HttpResponseBase:
    """Send events ``counts`` with ``{"unread": 3}``, at once and whenever a count changes: those of the built-in
    counters, and of each ``badge`` that the query string names. The id of an event is its counts, so a browser that
    reconnects gets only news.

    401 for an anonymous user; 429 for one who has too many; 204, which a browser takes for the end and not for an
    error, under WSGI, where a stream would block a worker.
    """
    if not isinstance(request, ASGIRequest):
        return HttpResponse(status=204)
    badges = await sync_to_async(_badges_of)(request)
    if not badges:
        return nobody().response
    if not live.has_room(_name_of_user(request)):
        detail = _("You have too many open streams. Close some, or ask for the counts now and then.")
        return Refused(429, detail).response
    return StreamingHttpResponse(
        _events(request, badges),
        content_type="text/event-stream",
        headers={
            "Content-Encoding": "identity",  # GZipMiddleware, like a proxy that compresses, would hold events back
            "X-Accel-Buffering": "no",
        },
    )


def _name_of_user(request: HttpRequest) -> str:
    """Return what tells the user from others, also from those of other tenants."""
    return identity_of(user_of(request), unread)


def _badges_of(request: HttpRequest) -> dict[str, LocalBadge]:
    """Return the badges that the stream sends; none if nobody is logged in."""
    user = user_of(request)
    badges = {} if user is None else badges_of(user, request.GET.getlist("badge"))
    return {name: LocalBadge(here(badge.counter.source), badge) for name, badge in badges.items()}


def _count_and_close(badges: Iterable[LocalBadge]) -> dict[LocalBadge, Shown]:
    """Return the counts, and close this thread's connections, which the stream would otherwise keep."""
    try:
        return counts_now(badges)
    finally:
        _close_connections()


def _close_connections() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _is_logged_in(request: HttpRequest) -> bool:
    """Return whether the user would be logged in if the request came now. Closes this thread's connections."""
    try:
        user, session = user_of(request), getattr(request, "session", None)
        if session is not None and SESSION_KEY in session:
            again = HttpRequest()
            again.session = type(session)(session.session_key)
            found = get_user(again)
            if found == user or not found.is_authenticated:
                return found == user
        # Something else than the session says who it is, such as a token.
        found = user._meta.model._base_manager.using(user._state.db).filter(pk=user.pk).first()
        return found is not None and getattr(found, "is_active", True)
    except DatabaseError:  # this is not the moment to ask everybody to come again
        return True
    finally:
        _close_connections()


def _id_of(counts: Mapping[str, Shown]) -> str:
    """Return an id that contains the counts, or for counts by kind, which may be many, a digest."""
    texts = (str(n) if isinstance(n, int) else sha256(json.dumps(n).encode()).hexdigest()[:16] for n in counts.values())
    return "-".join(texts)


async def _events(request: HttpRequest, badges: Mapping[str, LocalBadge]) -> AsyncIterator[str]:
    known = request.headers.get("Last-Event-ID")
    stream = live.open(_name_of_user(request), badges.values())
    if stream is None:  # others were faster; the browser comes again, and is refused
        return
    loop = asyncio.get_running_loop()
    ends = loop.time() + MAX_AGE * random.uniform(0.9, 1.1)
    cut = _when_nobody_reads(stream, ends + GRACE)
    try:
        first = await sync_to_async(_count_and_close)(stream.badges)
        end_request_thread()
        stream.counts = first | stream.counts
        yield f"retry: {random.randint(*RETRY)}\n\n"
        beat = loop.time() + HEARTBEAT
        while loop.time() < ends:
            stream.news.clear()
            counts = {name: stream.counts[badge] for name, badge in badges.items()}
            if (id := _id_of(counts)) != known:
                known = id
                yield f"event: counts\nid: {id}\ndata: {json.dumps(counts)}\n\n"
            try:
                async with asyncio.timeout_at(min(beat, ends)):
                    await stream.news.wait()
            except TimeoutError:
                is_logged_in = await sync_to_async(_is_logged_in)(request)
                end_request_thread()
                if not is_logged_in:
                    return
                known = None  # the page may have heard of another count meanwhile, by asking
                beat = loop.time() + HEARTBEAT
    finally:
        cut.cancel()
        live.close(stream)


def _when_nobody_reads(stream: Stream, ends: float) -> asyncio.TimerHandle:
    """End a stream at this time of its loop, whatever happens. While nobody reads, the generator of its events does not
    run, because the task that it runs in has not sent the last one yet. If the task ends then, it leaves the generator
    as it is."""
    task = asyncio.current_task()
    assert task  # an async generator runs in one
    task.add_done_callback(lambda _: live.close(stream))
    return asyncio.get_running_loop().call_at(ends, task.cancel)
