"""The dashboard, with buttons to flush and to recount."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _

from ..counters import Counter, counter_named
from ..databases.transactions import outside_transactions
from ..exceptions import ConfigurationError
from ..models import Dashboard
from ..monitoring import dashboard
from ..upkeep.places import Place, at
from .base import MaintenanceMixin, ReadOnlyAdmin, time_limit


@admin.register(Dashboard)
class DashboardAdmin(MaintenanceMixin, ReadOnlyAdmin):
    """A page instead of a list."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name="notifications_counter_dashboard_changelist")]

    @outside_transactions
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self.act(request)
        context = {
            **self.admin_site.each_context(request),
            **dashboard.page(*(request.GET.get(name, "") for name in ("by", "at", "counter"))),
            "title": _("Dashboard"),
            "opts": self.opts,
            "refresh": "refresh" in request.GET,
            "may_flush": self.has_flush_permission(request),
            "may_recount": self.has_recount_permission(request),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/notifications_counter/dashboard/change_list.html", context)

    def act(self, request: HttpRequest) -> HttpResponse:
        """Flush or recount, and show the page again, with a message."""
        try:
            counter = counter_named(request.POST.get("counter", ""))
            place = self.place_of(counter, request.GET.get("at", ""))
        except ConfigurationError as error:
            return HttpResponseBadRequest(str(error), content_type="text/plain")
        if "flush" in request.POST:
            if not self.has_flush_permission(request):
                raise PermissionDenied
            with at(place):
                self.do_flush(request, counter, time_limit())
        elif "recount" in request.POST:
            if not self.has_recount_permission(request):
                raise PermissionDenied
            with at(place):
                self.do_recount(request, counter, None)
        return HttpResponseRedirect(request.get_full_path())

    def place_of(self, counter: Counter, where: str) -> Place:
        """Return the place in a URL, by default the first that the user may see. ConfigurationError if the user may not
        see it."""
        for local in dashboard.visible():
            if local.counter is counter and where in ("", dashboard.name_in_url(local.place)):
                return local.place
        raise ConfigurationError(f"Counter {counter.name!r} is not in {where!r}.")
