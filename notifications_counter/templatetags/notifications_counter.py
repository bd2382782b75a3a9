"""``{% load notifications_counter %}``: the unread count of the user who makes the request."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from typing import Any

from django import template
from django.template import Context
from django.utils.translation import get_language, ngettext

from ..context_processors import unread_of
from ..internals import salted_hmac

register = template.Library()


def request_of(context: Context) -> Any:
    """The request that a template is rendered for, with or without the context processor ``request``; or None."""
    return getattr(context, "request", None) or context.get("request")


@register.simple_tag(takes_context=True)
def unread_count(context: Context) -> int:
    """The unread count, 0 for an anonymous user."""
    return unread_of(request_of(context)) or 0


@register.inclusion_tag("notifications_counter/badge.html", takes_context=True)
def unread_badge(context: Context, max: int = 99) -> dict[str, Any]:
    """The badge, with a text for screen readers. Hidden at zero, ``99+`` above ``max``, empty for an anonymous user."""
    unread = unread_of(request_of(context))
    shown = f"{max}+" if unread is not None and unread > max else str(unread)
    return {"unread": unread, "shown": shown, "max": str(max)}


@register.inclusion_tag("notifications_counter/badge_script.html", takes_context=True)
def unread_badge_script(context: Context) -> dict[str, Any]:
    """The script that updates a page's badges, empty for an anonymous user. Needs ``notifications_counter.urls``."""
    user = getattr(request_of(context), "user", None)
    if user is None or not user.is_authenticated:
        return {}
    texts, forms = _phrases(get_language())
    # By this, tabs of one user find each other.
    who = salted_hmac("notifications_counter.badge", str(user.pk), algorithm="sha256").hexdigest()[:16]
    return {"who": who, "texts": texts, "forms": forms, "nonce": context.get("csp_nonce")}


@register.inclusion_tag("notifications_counter/toast.html", takes_context=True)
def unread_toast(context: Context) -> dict[str, Any]:
    """Where ``unread_badge_script`` shows a notification that has just come; empty for an anonymous user."""
    user = getattr(request_of(context), "user", None)
    return {"since": datetime.now(UTC).isoformat()} if user is not None and user.is_authenticated else {}


@cache
def _phrases(language: str | None) -> tuple[str, str]:
    """What a badge says in a language, as JSON, and which text is for 0 … 199: no plural looks at more digits."""
    texts = [ngettext("%(n)s unread notification", "%(n)s unread notifications", n) for n in range(200)]
    different = list(dict.fromkeys(texts))
    return json.dumps(different, ensure_ascii=False), "".join(str(different.index(text)) for text in texts)
