"""The stored totals of notifications, each with its current count."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import NoReverseMatch
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..counters import counters_of_notifications, unread, unseen
from ..databases.isolation import outside_transactions
from ..models import UserNotificationsCount
from ..monitoring.display import grouped, odd
from .base import USERNAME, MaintenanceAdmin, recount, short


class CountList(ChangeList):
    """A page of stored totals, each with its user, or the key of a deleted one, and with its current counts. They are
    read together to save queries and round trips."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        pks = [row.pk for row in self.result_list]
        users = get_user_model()._base_manager.using(unread.db).in_bulk(pks)
        counts, unseen_counts = unread.counts(pks), unseen.counts(pks) if unseen.is_used else {}
        for row in self.result_list:
            row.shown_user = users.get(row.pk, row.pk)
            row.unread, row.unseen = counts[row.pk], unseen_counts.get(row.pk)

    def url_for_result(self, result: object) -> str:
        raise NoReverseMatch  # so that the first cell is a header, without a link


class StoredFilter(admin.SimpleListFilter):
    title = _("stored")
    parameter_name = "unread"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, str]]:
        return [("yes", gettext("Has unread"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet) -> QuerySet:
        return queryset.filter(unread_count__gt=0) if self.value() == "yes" else queryset


@admin.register(UserNotificationsCount)
class UserNotificationsCountAdmin(MaintenanceAdmin):
    change_list_template = "admin/notifications_counter/totals.html"
    list_display_links = ["owner"]
    list_filter = [StoredFilter]
    search_fields = ["user"]
    ordering = ["pk"]
    sortable_by = ["owner", "stored"]  # the latter sorts the table, unless the site has an index
    actions = ["recount"]

    # ------------------------------------------------------------------ pages
    def get_queryset(self, request: HttpRequest) -> QuerySet[UserNotificationsCount]:
        """Return the totals from the database of the counter. A replica may lag behind."""
        return super().get_queryset(request).using(unread.db)

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        return ("owner", "current", *(["current_unseen"] if unseen.is_used else ()), "stored", "updated")

    def get_changelist(self, request: HttpRequest, **kwargs: object) -> type[ChangeList]:
        return CountList

    def get_search_results(self, request: HttpRequest, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        """Search by name or key, without a join, which would hide deleted users."""
        if not search_term:
            return queryset, False
        users = get_user_model()._base_manager.filter(**{f"{USERNAME}__icontains": search_term})
        found = Q(pk__in=users.values("pk"))
        with suppress(ValueError):
            found |= Q(pk=unread.pk_of(search_term))
        return queryset.filter(found), False

    @admin.display(description=_("user"), ordering="pk")
    def owner(self, row: Any) -> str:
        return str(row.shown_user)

    @admin.display(description=_("unread"))
    def current(self, row: Any) -> str:
        return grouped(row.unread)

    @admin.display(description=_("unseen"))
    def current_unseen(self, row: Any) -> str:
        return grouped(row.unseen)

    @admin.display(description=_("stored"), ordering="unread_count")
    def stored(self, row: Any) -> str:
        text = grouped(row.unread_count)
        return text if row.unread_count == row.unread else odd(text)

    @admin.display(description=_("updated at"))
    def updated(self, row: UserNotificationsCount) -> str:
        return short(row.updated_at)

    # ---------------------------------------------------------------- actions
    @outside_transactions
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, object] | None = None) -> HttpResponse:
        """Run outside transactions, where flushes and recounts refuse to run."""
        return super().changelist_view(request, extra_context)

    @admin.action(description=_("Recount selected users"), permissions=["recount"])
    def recount(self, request: HttpRequest, queryset: QuerySet[UserNotificationsCount]) -> None:
        pks = queryset.values_list("pk", flat=True)
        for counter in counters_of_notifications():
            if not counter.has_several_columns:
                self.do(request, counter, lambda counter: recount(counter, pks))
