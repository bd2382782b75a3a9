"""The unread count of the user who makes a request."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest

from ..counters import unread as counter
from .badges import badge_of, count_once, user_of


def unread(request: HttpRequest) -> dict[str, Callable[[], int]]:
    """Add ``unread_count`` to the context. It is a function, so a page that does not show it costs nothing."""

    def unread_count() -> int:
        user = user_of(request)
        return 0 if user is None else count_once(request, badge_of(counter, user))

    return {"unread_count": unread_count}
