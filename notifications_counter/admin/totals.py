"""The stored totals of notifications, each with its pending change in Redis."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from ..counters import counters_of_notifications, unread, unseen
from ..databases.transactions import outside_transactions
from ..exceptions import BufferUnavailable
from ..models import UserNotificationsCount
from ..monitoring.display import grouped, signed
from .base import USERNAME, MaintenanceMixin, ReadOnlyAdmin, time_limit


@dataclass(frozen=True, slots=True)
class Shown:
    """The figures beside a stored total: its ``user``, or the key of a deleted user; the whole ``total``, and its
    ``pending`` change, None if unknown; the number of ``unseen`` notifications, None if not counted."""

    user: object
    total: int
    pending: int | None
    unseen: int | None


def annotate(rows: Iterable[Any]) -> None:
    """Set ``shown`` of stored totals, all at once to save queries and round trips."""
    by_owner_key = {str(row.pk): row for row in rows}
    keys = [row.pk for row in by_owner_key.values()]
    users = get_user_model()._base_manager.using(unread.db).in_bulk(keys)
    totals = unread.counts(keys)
    unseen_counts = unseen.counts(keys) if unseen.is_on else {}
    pending: dict[str, int | None] = {}
    with suppress(BufferUnavailable):
        for buffer, owner_keys in unread.by_shard(list(by_owner_key)):
            snapshot = buffer.snapshot(owner_keys)
            pending |= {
                owner_key: snapshot.value(owner_key, 0, by_owner_key[owner_key].flushed_batch)
                for owner_key in owner_keys
            }
    for owner_key, row in by_owner_key.items():
        user, total = users.get(row.pk, row.pk), totals[row.pk]
        row.shown = Shown(user, total, pending.get(owner_key), unseen_counts.get(row.pk))


class CountList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: Any = list(self.result_list)
        annotate(self.result_list)


@admin.register(UserNotificationsCount)
class UserNotificationsCountAdmin(MaintenanceMixin, ReadOnlyAdmin):
    fields = ["owner", "stored", "waiting", "total", "updated_at", "flushed_batch"]
    search_fields = ["user"]
    ordering = ["pk"]
    sortable_by = ["owner"]
    actions = ["flush", "recount"]
    help_texts: ClassVar[dict[str, Any]] = {
        "stored": _("In the database, since the last flush."),
        "waiting": _("Changes since then, which the next flush writes to the database."),
        "total": _("Both together: all that are unread."),
        "total_unseen": _("How many of these have come since the user opened the inbox."),
        "flushed_batch": _("The last group of changes that is in the stored number."),
    }

    # ------------------------------------------------------------------ pages
    def get_queryset(self, request: HttpRequest) -> QuerySet[UserNotificationsCount]:
        """Return the totals from the database of the counter. A replica may lag behind."""
        return super().get_queryset(request).using(unread.db)

    def get_list_display(self, request: HttpRequest) -> Any:
        return ["owner", "stored", "waiting", "total", *(["total_unseen"] if unseen.is_on else ()), "updated_at"]

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
        return str(row.shown.user)

    @admin.display(description=_("stored"), ordering="unread_count")
    def stored(self, row: UserNotificationsCount) -> str:
        return grouped(row.unread_count)

    @admin.display(description=_("waiting in Redis"))
    def waiting(self, row: Any) -> str | None:
        return None if row.shown.pending is None else signed(row.shown.pending)

    @admin.display(description=_("total"))
    def total(self, row: Any) -> str:
        return grouped(row.shown.total)

    @admin.display(description=_("unseen"))
    def total_unseen(self, row: Any) -> str:
        return grouped(row.shown.unseen)

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
