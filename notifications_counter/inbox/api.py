"""The inbox as JSON. Sessions and CSRF tokens work as on Django's own pages; ``openapi.json`` describes every URL.

Every response but 200 and 304 is ``{"detail": "…"}``, a sentence that says what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import cache
from importlib.resources import files
from operator import methodcaller
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.cache import patch_cache_control
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt, ensure_csrf_cookie
from django.views.decorators.http import conditional_page, require_safe

from ..models import Notification, NotificationQuerySet
from .badges import badges_of, count_all, user_of
from .controller import with_ids
from .paging import page_of, parse_time, time_as_text
from .templatetags.notifications_inbox import notification_icon
from .views import OwnNotifications, delete, inbox_of

MAX_LIMIT = 100  # notifications in a page
MAX_IDS = 1000  # in a change


class Refused(Exception):
    """Ends a request with a status and a detail."""

    def __init__(self, status: int, detail: str, **headers: str):
        super().__init__(detail)
        self.response = JsonResponse({"detail": detail}, status=status, headers=headers)


def not_logged_in() -> Refused:
    return Refused(401, _("Authentication required."), **{"WWW-Authenticate": "Session"})


# dispatch() checks the CSRF token itself, because Django's middleware would answer with a page.
@method_decorator([login_not_required, csrf_exempt], name="dispatch")
class APIView(OwnNotifications):
    """The base of the JSON views. Errors such as 401 and 403 are JSON, too."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response: HttpResponseBase
        try:
            if user_of(request) is None:
                raise not_logged_in()
            if hasattr(self, str(request.method).lower()):
                check_csrf(request)
            response = super().dispatch(request, *args, **kwargs)
        except Refused as refused:
            response = refused.response
        except TooManyFieldsSent:
            response = Refused(400, _("There are too many parameters.")).response
        patch_cache_control(response, private=True, no_cache=True)
        return response

    def http_method_not_allowed(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        allowed = super().http_method_not_allowed(request, *args, **kwargs)["Allow"]
        raise Refused(405, _("Use one of these methods: %s.") % allowed, Allow=allowed)

    def as_json(self, notification: Notification) -> dict[str, Any]:
        """Return the JSON object for a notification. Its ``url`` is safe to use as a link, or empty."""
        return {
            "id": notification.pk,
            "kind": notification.kind,
            "title": notification.title,
            "body": notification.body,
            "url": notification.safe_url,
            "data": notification.data,
            "icon": notification_icon(notification),
            "created_at": time_as_text(notification.created_at),
            "seen_at": notification.seen_at and time_as_text(notification.seen_at),
            "read_at": notification.read_at and time_as_text(notification.read_at),
        }


class InboxAPI(APIView):
    """A page of the list: ``notifications``, and the cursors of the ``newer`` and the ``older`` page, empty if there is
    no such page."""

    page_size = 20

    @method_decorator(ensure_csrf_cookie)  # for a site whose pages contain no form
    def get(self, request: HttpRequest) -> HttpResponse:
        asked = request.GET
        rows = self.of_kind(asked.get("kind", ""))
        if "unread" in asked:
            rows = rows.unread() if _flag(asked["unread"]) else rows.read()
        if "since" in asked:
            rows = rows.filter(created_at__gte=_time(asked["since"], rows.db))
        size = _limit(asked["limit"]) if "limit" in asked else self.page_size
        try:
            page = page_of(rows, size, asked.get("before", ""), asked.get("after", ""))
        except ValueError:
            detail = _("“before” and “after” must be the “older” or the “newer” of another page.")
            raise Refused(400, detail) from None
        found = [self.as_json(row) for row in page.rows]
        return answer(request, {"notifications": found, "newer": page.newer, "older": page.older})


class NotificationAPI(APIView):
    """One notification."""

    @method_decorator(ensure_csrf_cookie)
    def get(self, request: HttpRequest, pk: str) -> HttpResponse:
        notification = with_ids(self.get_queryset(), [pk]).first()
        if notification is None:
            raise Refused(404, _("There is no such notification."))
        return answer(request, self.as_json(notification))


class ChangeAPI(APIView):
    """Changes the notifications that the body of a POST names, and returns how many changed, with the new counts of the
    built-in counters.

    ``ids``    a list; missing notifications are ignored
    ``which``  ``all``, or all that are ``read``; only of one ``kind`` if it is given

    ``change()`` changes rows, and returns how many changed.
    """

    change: Callable[[NotificationQuerySet], int]

    def post(self, request: HttpRequest) -> HttpResponse:
        changed = self.change(self.chosen(_body(request)))
        return JsonResponse({"changed": changed, **count_all(badges_of(request.user))})

    def chosen(self, body: Any) -> NotificationQuerySet:
        match body:
            case {"ids": [*ids], **rest} if not rest and len(ids) <= MAX_IDS and all(map(_is_whole, ids)):
                return with_ids(self.get_queryset(), ids)
            case {"which": "all" | "read" as which, **rest} if rest.keys() <= {"kind"}:
                if isinstance(kind := rest.get("kind", ""), str):
                    rows = self.of_kind(kind)
                    return rows.read() if which == "read" else rows
        detail = _("Send “ids”, up to %(most)s whole numbers, or “which”, all or read, with a “kind” if you like.")
        raise Refused(400, detail % {"most": MAX_IDS})


class MarkAsSeenAPI(ChangeAPI):
    change = methodcaller("mark_as_seen")


class MarkAsReadAPI(ChangeAPI):
    change = methodcaller("mark_as_read")


class MarkAsUnreadAPI(ChangeAPI):
    change = methodcaller("mark_as_unread")


class DeleteAPI(ChangeAPI):
    change = staticmethod(delete)


class CountsAPI(APIView):
    """``{"unread": 3}``: the counts of the built-in counters, and of each ``badge`` in the query string."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return answer(request, count_all(badges_of(request.user, request.GET.getlist("badge"))))


@login_not_required
@require_safe
def openapi(request: HttpRequest) -> HttpResponse:
    """Return the description of the API. It is public."""
    return answer(request, {**description(), "servers": [{"url": inbox_of(request).rstrip("/") or "/"}]})


@cache
def description() -> dict[str, Any]:
    """Return the description without the server. It is written by hand; tests compare it with the views."""
    return json.loads(files(__package__).joinpath("openapi.json").read_text(encoding="utf-8"))


@conditional_page
def answer(request: HttpRequest, data: Any) -> HttpResponse:
    """Return JSON, or 304 if the browser has it."""
    return JsonResponse(data)


def check_csrf(request: HttpRequest) -> None:
    """Refuse the request if Django's middleware would."""
    if request.method == "POST" and request.content_type != "application/json":  # the middleware would read a form
        raise Refused(415, _("Send JSON, with the header “Content-Type: application/json”."))
    middleware = CsrfViewMiddleware(lambda request: HttpResponse())
    middleware.process_request(request)
    if middleware.process_view(request, answer, (), {}) is not None:
        header = settings.CSRF_HEADER_NAME.removeprefix("HTTP_").replace("_", "-")
        raise Refused(403, _("Send the CSRF token in the header %s, from an origin that the site trusts.") % header)


# ---------------------------------------------------------------------- input
def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise Refused(400, _("“unread” must be true or false."))
    return text == "true"


def _limit(text: str) -> int:
    if text not in map(str, range(1, MAX_LIMIT + 1)):
        raise Refused(400, _("“limit” must be a number from 1 to %s.") % MAX_LIMIT)
    return int(text)


def _time(text: str, using: str) -> datetime:
    try:
        return parse_time(text, using)
    except ValueError:
        detail = _("“since” must be a time such as 2026-11-22T09:30:00Z. In a URL, write a + as %2B.")
        raise Refused(400, detail) from None


def _body(request: HttpRequest) -> Any:
    try:
        return json.loads(request.body)
    except RequestDataTooBig:
        raise Refused(413, _("The body is too large. Send fewer ids at a time.")) from None
    except (ValueError, RecursionError):  # it is not UTF-8, not JSON, or nested a thousand times
        raise Refused(400, _("The body is not JSON.")) from None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
