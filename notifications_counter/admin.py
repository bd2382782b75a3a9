"""Notifications to edit, and what the counters write to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from .counters import unread
from .exceptions import BufferUnavailable, CounterError
from .models import CounterShard, Notification, RecountRequest, UserNotificationsCount
from .querysets import NotificationQuerySet

if TYPE_CHECKING:
    NotificationModelAdmin = admin.ModelAdmin[Notification]
    CountModelAdmin = admin.ModelAdmin[UserNotificationsCount]
else:
    NotificationModelAdmin = CountModelAdmin = admin.ModelAdmin

T = TypeVar("T")

USERNAME = get_user_model().USERNAME_FIELD


class ReadFilter(admin.SimpleListFilter):
    title = _("read state")
    parameter_name = "read"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return (("no", _("Unread")), ("yes", _("Read")))

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        how = {"no": "unread", "yes": "read"}.get(self.value() or "")
        return getattr(queryset, how)() if how else queryset


@admin.register(Notification)
class NotificationAdmin(NotificationModelAdmin):
    list_display = ["title", "user", "kind", "created_at", "read_at"]
    list_filter = [ReadFilter, "kind", "created_at"]
    list_select_related = ["user"]
    search_fields = ["title", f"user__{USERNAME}"]
    show_full_result_count = False
    raw_id_fields = ["user"]
    readonly_fields = ["created_at"]
    actions = ["mark_as_read", "mark_as_unread"]

    @admin.action(description=_("Mark selected notifications as read"), permissions=["change"])
    def mark_as_read(self, request: HttpRequest, queryset: NotificationQuerySet) -> None:
        count = queryset.mark_as_read()
        text = ngettext(
            "%(count)d notification was marked as read.", "%(count)d notifications were marked as read.", count
        )
        self.message_user(request, text % {"count": count})

    @admin.action(description=_("Mark selected notifications as unread"), permissions=["change"])
    def mark_as_unread(self, request: HttpRequest, queryset: NotificationQuerySet) -> None:
        count = queryset.mark_as_unread()
        text = ngettext(
            "%(count)d notification was marked as unread.", "%(count)d notifications were marked as unread.", count
        )
        self.message_user(request, text % {"count": count})


class ReadOnly:
    """Of a model whose rows only the counters write."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def look(rows: Iterable[Any]) -> None:
    """Give stored counts what is not in their rows: the user, what waits in Redis, and the count. For all of them
    together, because each would cost queries and round trips."""
    by_member = {str(row.pk): row for row in rows}
    keys = [row.pk for row in by_member.values()]
    users = get_user_model()._base_manager.using(unread.db).in_bulk(keys)
    counts = unread.counts(keys)
    for row in by_member.values():
        row.shown_user = users.get(row.pk, row.pk)
        row.shown_total = counts[row.pk]
        row.shown_waiting = None
    with suppress(BufferUnavailable):
        for buffer, members in unread.by_shard(list(by_member)):
            snapshot = buffer.snapshot(members)
            for member in members:
                row = by_member[member]
                row.shown_waiting = snapshot.value(member, 0, row.flushed_batch)


class CountList(ChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: Any = list(self.result_list)
        look(self.result_list)


@admin.register(UserNotificationsCount)
class UserNotificationsCountAdmin(ReadOnly, CountModelAdmin):
    list_display = ["owner", "stored", "waiting", "total", "updated_at"]
    fields = ["owner", "stored", "waiting", "total", "updated_at", "flushed_batch"]
    search_fields = ["user"]
    ordering = ["pk"]
    actions = ["flush", "recount"]

    # ------------------------------------------------------------------ pages
    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CountList

    def get_object(self, *args: Any, **kwargs: Any) -> UserNotificationsCount | None:
        row = super().get_object(*args, **kwargs)
        if row is not None:
            look([row])
        return row

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """By name or key, without a join: that would hide users that are gone."""
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

    @admin.display(description=_("stored"), ordering="unread_count")
    def stored(self, row: UserNotificationsCount) -> int:
        return row.unread_count

    @admin.display(description=_("waiting in Redis"))
    def waiting(self, row: Any) -> str | None:
        return None if row.shown_waiting is None else f"{row.shown_waiting:+d}"

    @admin.display(description=_("total"))
    def total(self, row: Any) -> int:
        return row.shown_total

    # ---------------------------------------------------------------- actions
    @transaction.non_atomic_requests
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Flushes and recounts refuse to run inside a transaction."""
        return super().changelist_view(request, extra_context)

    def has_flush_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications_counter.flush_unread_counts")

    def has_recount_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications_counter.recount_unread_counts")

    @admin.action(description=_("Flush now, whatever is selected"), permissions=["flush"])
    def flush(self, request: HttpRequest, queryset: QuerySet[UserNotificationsCount]) -> None:
        result = self._try(request, unread.flush)
        if result:
            text = ngettext("%(users)d user was flushed.", "%(users)d users were flushed.", result.users)
            self.message_user(request, text % {"users": result.users})

    @admin.action(description=_("Recount selected users"), permissions=["recount"])
    def recount(self, request: HttpRequest, queryset: QuerySet[UserNotificationsCount]) -> None:
        result = self._try(request, lambda: unread.recount(queryset.values_list("pk", flat=True)))
        if result:
            text = ngettext(
                "%(checked)d user was recounted, %(corrected)d corrected.",
                "%(checked)d users were recounted, %(corrected)d corrected.",
                result.checked,
            )
            self.message_user(request, text % {"checked": result.checked, "corrected": result.corrected})

    def _try(self, request: HttpRequest, action: Callable[[], T]) -> T | None:
        """The result of an action; None, and the user is told why, if it could not be done."""
        try:
            if any(shard.recovering for shard in unread.status()):
                raise CounterError(
                    _("Redis is new or lost its data: the next run of flush_counters recovers it first.")
                )
            return action()
        except CounterError as error:
            self.message_user(request, str(error), messages.ERROR)
            return None


@admin.register(CounterShard)
class CounterShardAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["counter", "shard", "shards", "epoch", "closed", "audited"]


@admin.register(RecountRequest)
class RecountRequestAdmin(ReadOnly, admin.ModelAdmin):
    list_display = ["counter", "owner", "created_at"]
    list_filter = ["counter", "created_at"]
    search_fields = ["owner"]
