"""The view of the streams: counts as they change, over Server-Sent Events."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from hashlib import sha256

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from ..badges import Shown, badges_of, user_of
from ..databases import outside_transactions
from ..internals import end_request_thread, mark_as_logged
from ..maintenance.places import here
from .live import LocalBadge, by_place, counts_at, live

HEARTBEAT = 20.0  # seconds of silence, before the counts are sent again: proxies close a silent stream after a minute
MAX_AGE = 300.0  # seconds of a stream; then the browser reconnects, and its session is checked again
RETRY = (1000, 5000)  # milliseconds until a browser reconnects, at random so that not all reconnect at once


@outside_transactions  # Django has no ATOMIC_REQUESTS for async views, and refuses to call them
@login_not_required
@require_GET
async def stream(request: HttpRequest) -> HttpResponseBase:
    """Send events ``counts`` with ``{"unread": 3}``, at once and whenever a count changes: those of the built-in
    counters, and of each ``badge`` that the query string names. The id of an event is its counts, so a browser that
    reconnects gets only news.

    401 for an anonymous user; 501 under WSGI, where a stream would block a worker.
    """
    if not isinstance(request, ASGIRequest):
        return _not_implemented(_("Streams need ASGI."))
    badges = await sync_to_async(_badges_of)(request)
    if not badges:
        detail = {"detail": _("Authentication required.")}
        return JsonResponse(detail, status=401, headers={"WWW-Authenticate": "Session"})
    return StreamingHttpResponse(
        _events(badges, request.headers.get("Last-Event-ID")),
        content_type="text/event-stream",
        headers={
            "Cache-Control": "private, no-cache, no-transform",
            "Content-Encoding": "identity",  # GZipMiddleware, like a proxy that compresses, would hold events back
            "X-Accel-Buffering": "no",
        },
    )


def _not_implemented(detail: str) -> HttpResponseBase:
    response = JsonResponse({"detail": detail}, status=501)
    mark_as_logged(response)  # no mail to the admins: the script will poll
    return response


def _badges_of(request: HttpRequest) -> dict[str, LocalBadge]:
    """Return the badges that the stream sends; none if nobody is logged in."""
    user = user_of(request)
    badges = {} if user is None else badges_of(user, request.GET.getlist("badge"))
    return {name: LocalBadge(here(badge.counter.source), badge) for name, badge in badges.items()}


def _count_and_close(badges: Iterable[LocalBadge]) -> dict[LocalBadge, Shown]:
    """Return the counts, and close this thread's connections, which the stream would otherwise keep."""
    try:
        counts: dict[LocalBadge, Shown] = {}
        for place, theirs in by_place(badges).items():
            counts |= counts_at(place, theirs)
        return counts
    finally:
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()


def _id_of(counts: Mapping[str, Shown]) -> str:
    """Return an id that contains the counts, or for counts by kind, which may be many, a digest."""
    texts = (str(n) if isinstance(n, int) else sha256(json.dumps(n).encode()).hexdigest()[:16] for n in counts.values())
    return "-".join(texts)


async def _events(badges: Mapping[str, LocalBadge], known: str | None) -> AsyncIterator[str]:
    stream = live.open(badges.values())
    try:
        first = await sync_to_async(_count_and_close)(stream.badges)
        end_request_thread()
        stream.counts = first | stream.counts
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
