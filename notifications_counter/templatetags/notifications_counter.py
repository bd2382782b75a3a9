"""``{% load notifications_counter %}``: the unread count of whoever makes the request."""

from __future__ import annotations

from typing import Any

from django import template
from django.template import Context

from ..context_processors import unread_of

register = template.Library()


def request_of(context: Context) -> Any:
    """The request that a template is rendered for, with or without the context processor ``request``; or None."""
    return getattr(context, "request", None) or context.get("request")


@register.simple_tag(takes_context=True)
def unread_count(context: Context) -> int:
    """The number; 0 for nobody."""
    return unread_of(request_of(context)) or 0


@register.inclusion_tag("notifications_counter/badge.html", takes_context=True)
def unread_badge(context: Context, max: int = 99) -> dict[str, Any]:
    """The number for the eye and for the ear. Hidden at zero; ``99+`` above ``max``; nothing at all for nobody."""
    unread = unread_of(request_of(context))
    shown = f"{max}+" if unread is not None and unread > max else str(unread)
    return {"unread": unread, "shown": shown, "max": str(max)}
