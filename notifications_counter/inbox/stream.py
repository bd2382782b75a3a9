"""The view that streams counts as they change, as Server-Sent Events."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.contrib.auth import get_user
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.translation import gettext as _
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_GET
from django.views.decorators.vary import vary_on_cookie

from ..counters import unread
from ..databases.isolation import outside_transactions
from ..internals import SESSION_KEY, ASGIRequest, end_request_thread, mark_as_logged
from .api import Refused, not_logged_in
from .badges import Badge, badges_of, counts_of, user_of
from .live import Feed, Full, feeds

T = TypeVar("T")
R = TypeVar("R")

# Seconds.
HEARTBEAT = 20.0  # after which the counts are sent again: proxies close a silent stream after a minute
RECHECK = 5.0  # after which nothing is sent before a look whether the user is still logged in
MAX_AGE = 300.0  # of a stream; then the browser reconnects
GRACE = 5.0  # for a stream to begin; and after MAX_AGE, before one that nobody reads is cut off

RETRY = (1000, 5000)  # milliseconds until a browser reconnects, at random so that not all reconnect at once


@outside_transactions  # Django has no ATOMIC_REQUESTS for async views, and refuses to call them
@login_not_required
@vary_on_cookie
@cache_control(private=True, no_cache=True, no_transform=True)
@require_GET
async def stream(request: HttpRequest) -> HttpResponseBase:
    """Send events ``counts`` such as ``{"unread": 3}``, at once and whenever a count changes, with the counts of the
    built-in counters and of each ``badge`` in the query string.

    401 if the user is anonymous, 429 if the user has too many streams, 503 if this process has. 204 under WSGI, where a
    stream would block a worker: a browser takes that for the end, not for an error.
    """
    if not isinstance(request, ASGIRequest):
        return HttpResponse(status=204)
    badges = await sync_to_async(_badges_in)(request)
    if not badges:
        return not_logged_in().response
    try:
        feed = feeds.open(badges[unread.name], badges.values())
    except Full as full:
        return _refuse(full)
    # A response that is dropped, by a middleware or because the browser has gone, never begins.
    unused = asyncio.get_running_loop().call_later(GRACE, feeds.close, feed)
    return StreamingHttpResponse(
        _events(request, badges, feed, unused),
        content_type="text/event-stream",
        headers={
            "Content-Encoding": "identity",  # GZipMiddleware, like a proxy that compresses, would hold events back
            "X-Accel-Buffering": "no",
        },
    )


def _refuse(full: Full) -> HttpResponse:
    if not full.of_all:
        return Refused(429, _("You have too many open streams. Close some, or poll instead.")).response
    retry = {"Retry-After": str(round(MAX_AGE))}
    response = Refused(503, _("This process has too many open streams. Poll instead."), **retry).response
    mark_as_logged(response)
    return response


def _badges_in(request: HttpRequest) -> dict[str, Badge]:
    """Return the badges to stream, by name; empty for an anonymous user."""
    user = user_of(request)
    return {} if user is None else badges_of(user, request.GET.getlist("badge"))


async def _in_thread(function: Callable[[T], R], argument: T) -> R:
    """Call a function in a thread. Leave neither the thread nor its connections open, as the stream would."""

    def call() -> R:
        try:
            return function(argument)
        finally:
            for connection in connections.all(initialized_only=True):
                if not connection.in_atomic_block:
                    connection.close()

    result = await sync_to_async(call)()
    end_request_thread()
    return result


def _is_logged_in(request: HttpRequest) -> bool:
    """Return whether the user is still logged in."""
    try:
        user = user_of(request)
        session: Any = getattr(request, "session", {})
        if SESSION_KEY in session:
            again = HttpRequest()
            again.session = type(session)(session.session_key)
            found = get_user(again)
            if found == user or not found.is_authenticated:
                return found == user
        # The user is authenticated by something other than the session, such as a token.
        found = user._meta.model._base_manager.using(user._state.db).filter(pk=user.pk).first()
        return found is not None and getattr(found, "is_active", True)
    except DatabaseError:  # do not make all browsers reconnect during an outage
        return True


async def _events(
    request: HttpRequest, badges: Mapping[str, Badge], feed: Feed, unused: asyncio.TimerHandle
) -> AsyncIterator[str]:
    unused.cancel()
    if not feeds.is_open(feed):  # it began too late; the browser tries again
        return
    feed.loop = loop = asyncio.get_running_loop()
    ends = loop.time() + MAX_AGE * random.uniform(0.9, 1.1)
    cut_off = _cut_off(feed, ends + GRACE)
    try:
        feed.counts = await _in_thread(counts_of, feed.badges) | feed.counts
        sent = None
        yield f"retry: {random.randint(*RETRY)}\n\n"
        beat, recheck = loop.time() + HEARTBEAT, loop.time() + RECHECK
        while loop.time() < ends:
            feed.news.clear()
            counts = {name: feed.counts[badge] for name, badge in badges.items()}
            if counts != sent:
                if loop.time() >= recheck:
                    if not await _in_thread(_is_logged_in, request):
                        return
                    recheck = loop.time() + RECHECK
                sent = counts
                yield f"event: counts\ndata: {json.dumps(counts)}\n\n"
            try:
                async with asyncio.timeout_at(min(beat, ends)):
                    await feed.news.wait()
            except TimeoutError:
                sent = None  # the page may have polled another count meanwhile
                beat = loop.time() + HEARTBEAT
    finally:
        cut_off.cancel()
        feeds.close(feed)


def _cut_off(feed: Feed, when: float) -> asyncio.TimerHandle:
    """End a stream at this time of its loop, even if nobody reads it. The generator of its events is then suspended,
    because its task has not sent the last event yet, and a task that ends does not close the generator."""
    task = asyncio.current_task()
    assert task  # an async generator runs in one
    task.add_done_callback(lambda _: feeds.close(feed))
    return asyncio.get_running_loop().call_at(when, task.cancel)
