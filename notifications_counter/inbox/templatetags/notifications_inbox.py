"""``{% load notifications_inbox %}``: badges for the user who makes the request, or for any other owner."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from django import template
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signing import Signer
from django.template import Context
from django.template.defaultfilters import date as date_format
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext, gettext_lazy

from ...conf import is_integer, options
from ...counters import Counter, counter_named, unread, unseen
from ...exceptions import ConfigurationError
from ...models.notification import safe_link
from ..badges import badge_of, badge_of_kinds, count_once, identity_of, name_of, user_of

register = template.Library()

WEEK = 7  # days

THE_USER = object()
"""The default owner of a badge."""

LABELS = {
    "unread": gettext_lazy("Unread notifications"),
    "unseen": gettext_lazy("New notifications"),
    "unread_by_kind": gettext_lazy("Unread notifications"),
}
"""What screen readers call the built-in counters."""

IF_UNDEFINED = {
    "counter": "Write its name in quotes.",
    "owner": "Pass None for nobody.",
    "max": "Pass an integer.",
    "kind": "Write it in quotes.",
    "count": "Call attach() before, or leave it out.",
}
"""What to do if an argument of a badge is undefined."""


def request_of(context: Context) -> Any:
    """Return the request of a context, with or without the context processor ``request``, or None."""
    return getattr(context, "request", None) or context.get("request")


def user_in(context: Context) -> Any:
    """Return the user who makes the request; None if there is no user, or no request. With ``DEBUG``, a missing request
    raises ConfigurationError."""
    request = request_of(context)
    if request is None and settings.DEBUG:
        raise ConfigurationError(
            "This template has no request, so nobody is known whose count it could show. Pass the request to render()."
        )
    return user_of(request)


@register.simple_tag(takes_context=True)
def unread_count(context: Context) -> int:
    """Return the unread count; 0 for an anonymous user."""
    user = user_in(context)
    return 0 if user is None else count_once(request_of(context), badge_of(unread, user))


@register.simple_tag(takes_context=True)
def unread_by_kind(context: Context) -> dict[str, int]:
    """Return the unread counts by kind, without zeros; empty for an anonymous user."""
    user = user_in(context)
    return {} if user is None else count_once(request_of(context), badge_of_kinds(user))


@register.inclusion_tag("notifications_inbox/badge.html", name="badge", takes_context=True)
def show_badge(
    context: Context,
    counter: str | None = None,
    owner: Any = THE_USER,
    max: int = 99,
    label: str = "",
    kind: str | None = None,
    quiet: bool = False,
    count: Any = None,
) -> dict[str, Any]:
    """Show the badge of a counter, hidden at zero, ``99+`` above ``max``. Shows nothing if the owner, or one of its
    columns, is None.

    ``counter``  its name; by default ``unseen`` if that is in use, else ``unread``
    ``owner``    an instance or a primary key, or a tuple of these for an owner of several columns; by default the user
                 who makes the request
    ``label``    the label for screen readers, such as “Open tickets”
    ``kind``     a kind of notifications, whose badge of ``unread_by_kind`` is shown
    ``quiet``    if true, screen readers do not announce its changes
    ``count``    the count, if it is known, as after ``attach()``; otherwise it is read
    """
    request = request_of(context)
    user = user_in(context) if owner is THE_USER else user_of(request)
    owner = user if owner is THE_USER else owner
    arguments = {"counter": counter, "owner": owner, "max": max, "kind": kind, "count": count}
    for argument, value in arguments.items():
        if value == "":  # in Django's templates, an undefined variable
            if not settings.DEBUG:
                return {}
            raise ConfigurationError(f"The {argument} of a badge is undefined. {IF_UNDEFINED[argument]}")
    for argument, number in {"max": max, "count": count or 0}.items():
        if not is_integer(number):
            raise ConfigurationError(f"The {argument} of a badge must be an integer, not {number!r}.")
    counted = _counter_of(counter, kind)
    if None in [getattr(part, "pk", part) for part in (owner if isinstance(owner, tuple | list) else [owner])]:
        return {}
    badge = badge_of(counted, owner if kind is None else (owner, kind))
    count = count_once(request, badge) if count is None else count
    name = "" if user is None else name_of(badge, user)
    return {
        "name": name,
        "kind": badge.kind if name == counted.name else None,
        "quiet": quiet,
        "count": str(count),
        "shown": f"{max}+" if count > max else str(count),
        "max": str(max),
        "label": label or LABELS.get(counted.name, counted.name.replace("_", " ")),
    }


def _counter_of(name: str | None, kind: str | None) -> Counter:
    """Return the counter that a badge shows."""
    if kind is None:
        return counter_named(name or ("unseen" if unseen.is_used else "unread"))
    if name not in (None, "unread_by_kind"):
        raise ConfigurationError(f"Only unread_by_kind has a badge for a kind. Remove counter={name!r} or kind.")
    return counter_named("unread_by_kind")


@register.inclusion_tag("notifications_inbox/bell.html", takes_context=True)
def notification_bell(context: Context, max: int = 99, title: bool = False) -> dict[str, Any]:
    """Show a button with the badge of ``unseen`` or ``unread``, which opens the newest notifications. If ``title`` is
    true, its number is also in the page's title and at the icon of an installed app. Includes the stylesheet and the
    scripts. Needs ``notifications_counter.inbox.urls``. For an anonymous user, only the stylesheet."""
    if user_in(context) is None:
        return {}
    return {**show_badge(context, max=max), **badge_script(context), "title": title}


@register.simple_tag
def notification_icon(notification: Any) -> dict[str, str]:
    """Return the icon of a notification: the URL of an ``image``, or a ``text``. Empty if neither its data nor the
    setting ICONS has one."""
    data = notification.data if isinstance(notification.data, dict) else {}
    image = data.get("image")
    if isinstance(image, str) and (link := safe_link(image)):
        return {"image": link}
    icon = options.ICONS.get(notification.kind, options.ICONS.get("", ""))
    if "." in icon:
        return {"image": static(icon)}
    return {"text": icon} if options.ICONS else {}


@register.filter(expects_localtime=True)
def day(at: datetime) -> str:
    """Return “Today”, “Yesterday”, the weekday in the last week, or else the month, with its year unless that is this
    year."""
    match _days_ago(at):
        case 0:
            return gettext("Today")
        case 1:
            return gettext("Yesterday")
        case days if days < WEEK:
            return date_format(at, "l")
    return date_format(at, "F" if at.year == datetime.now(at.tzinfo).year else "YEAR_MONTH_FORMAT")


@register.filter(expects_localtime=True)
def time_of_day(at: datetime) -> str:
    """Return the time, or if ``day`` is a month, the date, with its year unless that is this year."""
    if _days_ago(at) < WEEK:
        return date_format(at, "TIME_FORMAT")
    return date_format(at, "MONTH_DAY_FORMAT" if at.year == datetime.now(at.tzinfo).year else "DATE_FORMAT")


@register.filter(expects_localtime=True)
def heading_id(at: datetime, bell: bool) -> str:
    """Return the id of the ``day`` above a time that needs it: neither today's nor a date, nor in a bell."""
    return f"nc-day-{quote(day(at))}" if 0 < _days_ago(at) < WEEK and not bell else ""


def _days_ago(at: datetime) -> int:
    """Return how many days ago a time was, 0 if it is to come."""
    return max(0, (datetime.now(at.tzinfo).date() - at.date()).days)


@register.inclusion_tag("notifications_inbox/badge_script.html", takes_context=True)
def badge_script(context: Context) -> dict[str, Any]:
    """Include the stylesheet, and the script that updates a page's badges. Needs ``notifications_counter.inbox.urls``.
    For an anonymous user, only the stylesheet."""
    user = user_in(context)
    if user is None:
        return {}
    # This is how a user's tabs find each other.
    try:
        reverse("notifications:counts")
    except NoReverseMatch:
        how = "path('notifications/', include('notifications_counter.inbox.urls'))"
        raise ImproperlyConfigured(
            f"Bell and badges ask the inbox's URLs for their numbers. Add {how} to yours."
        ) from None
    identity = identity_of(user, unread)
    who = Signer(salt="notifications_counter.badge").sign(identity).rpartition(":")[2][:16]
    return {"who": who, "nonce": context.get("csp_nonce")}


@register.inclusion_tag("notifications_inbox/toast.html", takes_context=True)
def unread_toast(context: Context) -> dict[str, Any]:
    """Add the region where ``badge_script`` shows new notifications. Adds nothing for an anonymous user."""
    return {"since": datetime.now(UTC).isoformat()} if user_in(context) is not None else {}
