"""The dashboard, with buttons to flush and to recount."""

from __future__ import annotations

from functools import partial
from typing import Any

import django
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.translation import gettext_lazy as _

from ..databases.isolation import outside_transactions
from ..models import Dashboard
from ..monitoring.dashboard import BUTTONS, page, visible
from ..places import at
from .base import ACTION_SECONDS, MaintenanceAdmin, flush, recount


@admin.register(Dashboard)
class DashboardAdmin(MaintenanceAdmin):
    """A page instead of a list."""

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name="notifications_counter_dashboard_changelist")]

    @outside_transactions
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        may = {"flush": self.has_flush_permission(request), "recount": self.has_recount_permission(request)}
        if request.method == "POST":
            return self.act(request, may)
        context = {
            **self.admin_site.each_context(request),
            **page(request.GET.get("by", ""), request.GET.get("counter", "")),
            "title": _("Dashboard"),
            "opts": self.opts,
            "crumbs_are_listed": django.VERSION >= (6, 1),
            "refresh": "refresh" in request.GET,
            "may": [button for button in BUTTONS if may[button.name]],
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/notifications_counter/dashboard/change_list.html", context)

    def act(self, request: HttpRequest, may: dict[str, bool]) -> HttpResponse:
        """Flush or recount counters that the user may see, and show the page again, with messages."""
        button, work = ("flush", flush) if "flush" in request.POST else ("recount", recount)
        found = [local for local in visible() if local.name in request.POST.getlist("counter")]
        if not found:
            return HttpResponseBadRequest()
        if not may[button]:
            raise PermissionDenied
        for _name, counter, place in found:
            with at(place):
                self.do(request, counter, partial(work, seconds=ACTION_SECONDS / len(found)))
        return HttpResponseRedirect(request.get_full_path())
