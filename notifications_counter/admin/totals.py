"""The stored totals of notifications, each with its current count."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from ..counters import counters_of_notifications, unread, unseen
from ..databases.transactions import outside_transactions
from ..models import UserNotificationsCount
from ..monitoring.display import grouped
from .base import USERNAME, MaintenanceMixin, ReadOnlyAdmin, time_limit


def annotate(rows: Iterable[Any]) -> None:
    """Set ``user``, or the key of a deleted one, and the current counts of stored totals, all at once to save queries
    and round trips."""
    by_key = {row.pk: row for row in rows}
    users = get_user_model()._base_manager.using(unread.db).in_bulk(by_key)
    counts = unread.counts(by_key)
    unseen_counts = unseen.counts(by_key) if unseen.is_on else {}
    for key, row in by_key.items():
        row.shown_user, row.unread, row.unseen = users.get(key, key), counts[key], unseen_counts.get(key)


class CountList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: Any = list(self.result_list)
        annotate(self.result_list)


@admin.register(UserNotificationsCount)
class UserNotificationsCountAdmin(MaintenanceMixin, ReadOnlyAdmin):
    fields = ["owner", "current", "stored", "updated_at"]
    search_fields = ["user"]
    ordering = ["pk"]
    sortable_by = ["owner"]
    actions = ["flush", "recount"]
    help_texts: ClassVar[dict[str, Any]] = {
        "current": _("All that are unread, as badges show them."),
        "current_unseen": _("How many of these have come since the user opened the inbox."),
        "stored": _("In the database, since the last flush."),
    }

    # ------------------------------------------------------------------ pages
    def get_queryset(self, request: HttpRequest) -> QuerySet[UserNotificationsCount]:
        """Return the totals from the database of the counter. A replica may lag behind."""
        return super().get_queryset(request).using(unread.db)

    def get_list_display(self, request: HttpRequest) -> Any:
        return ["owner", "current", *(["current_unseen"] if unseen.is_on else ()), "stored", "updated_at"]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CountList

    def get_object(self, *args: Any, **kwargs: Any) -> UserNotificationsCount | None:
        row = super().get_object(*args, **kwargs)
        if row is not None:
            annotate([row])
        return row

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Search by name or key, without a join, which would hide deleted users."""
        if not search_term:
            return queryset, False
        users = get_user_model()._base_manager.filter(**{f"{USERNAME}__icontains": search_term})
        found = Q(pk__in=users.values("pk"))
        with suppress(ValueError):
            found |= Q(pk=unread.key(search_term))
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
    def stored(self, row: UserNotificationsCount) -> str:
        return grouped(row.unread_count)

    # ---------------------------------------------------------------- actions
    @outside_transactions
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Run outside transactions, where flushes and recounts refuse to run."""
        return super().changelist_view(request, extra_context)

    @admin.action(description=_("Flush all users (ignores the selection)"), permissions=["flush"])
    def flush(self, request: HttpRequest, queryset: QuerySet[UserNotificationsCount]) -> None:
        stopped = time_limit()
        for counter in counters_of_notifications():
            self.do_flush(request, counter, stopped)

    @admin.action(description=_("Recount selected users"), permissions=["recount"])
    def recount(self, request: HttpRequest, queryset: QuerySet[UserNotificationsCount]) -> None:
        for counter in counters_of_notifications():
            if not counter.has_several_columns:
                self.do_recount(request, counter, queryset.values_list("pk", flat=True))
