"""The inbox of whoever makes the request, and the unread count as JSON."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.cache import get_conditional_response, patch_cache_control
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.generic import View

from .context_processors import unread_of


@method_decorator(login_not_required, name="dispatch")
class UnreadView(View):
    """``{"unread": 3}``, or 304 if the browser knows that already. 401 for nobody: a script wants no login page."""

    def get(self, request: HttpRequest) -> HttpResponse:
        unread = unread_of(request)
        response: HttpResponse | None
        if unread is None:
            detail = {"detail": _("Authentication required.")}
            response = JsonResponse(detail, status=401, headers={"WWW-Authenticate": "Session"})
        else:
            etag = f'"{unread}"'
            response = JsonResponse({"unread": unread}, headers={"ETag": etag})
            response = get_conditional_response(request, etag, response=response) or response
        patch_cache_control(response, private=True, no_cache=True)
        return response
