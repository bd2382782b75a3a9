"""The unread count of whoever makes a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest

from .counters import unread as counter

KEPT = "_notifications_counter_unread"


def unread(request: HttpRequest) -> dict[str, Callable[[], int]]:
    """``unread_count`` for every template. A function, which the template calls: who does not use it does not pay."""
    return {"unread_count": lambda: unread_of(request) or 0}


def unread_of(request: Any) -> int | None:
    """The count of the user of a request, asked for once in a request; None for nobody."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return None
    whose, count = getattr(request, KEPT, (None, 0))
    if whose != user.pk:
        count = counter.count(user)
        setattr(request, KEPT, (user.pk, count))
    return count
