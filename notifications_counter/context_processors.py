"""The unread count of the user who makes a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

from .counters import unread as counter

KEPT = "_notifications_counter_unread"


def unread(request: HttpRequest) -> dict[str, Callable[[], int]]:
    """``unread_count`` for every template. It is a function, so a page without it costs nothing."""
    return {"unread_count": lambda: unread_of(request) or 0}


def unread_of(request: Any) -> int | None:
    """Return the unread count of the request's user, read once per request. None for an anonymous user."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return None
    whose, count = getattr(request, KEPT, (None, 0))
    if whose != user.pk:
        count = counter.count(user)
        setattr(request, KEPT, (user.pk, count))
    return count
