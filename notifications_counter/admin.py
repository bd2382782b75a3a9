"""The admin: notifications to edit, the counters' own tables to view, and a dashboard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from .counters import Counter, all_counters, counter_named, counters_of_notifications, unread, unseen
from .declaration.databases import outside_transactions
from .exceptions import BufferUnavailable, ConfigurationError, CounterError
from .maintenance.places import Place, at
from .models import CounterShard, Dashboard, Notification, NotificationQuerySet, RecountRequest, UserNotificationsCount
from .monitoring import dashboard
from .monitoring.display import grouped, signed

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin
    NotificationModelAdmin = admin.ModelAdmin[Notification]
    CountModelAdmin = admin.ModelAdmin[UserNotificationsCount]
else:
    if apps.is_installed("unfold"):
        from unfold.admin import ModelAdmin  # so that the pages match the site's others
    else:
        ModelAdmin = admin.ModelAdmin
    NotificationModelAdmin = CountModelAdmin = ModelAdmin

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds after which an action stops, so that no web server times out."""

USERNAME = get_user_model().USERNAME_FIELD


COUNTED = 10_000
"""Rows of a list that are counted, and whose pages are linked. To count millions takes seconds."""

RECENT = 1000
"""The newest notifications, whose kinds can be filtered by."""


class FirstPages(Paginator):
    """The pages of the first rows."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return rows.order_by()[:COUNTED].count()


class KindFilter(admin.SimpleListFilter):
    """Of the kinds of recent notifications, because to find all would take a look at every row."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        recent = model_admin.get_queryset(request).order_by("-pk").values_list("kind", flat=True)[:RECENT]
        return [(kind, kind) for kind in sorted({*recent, self.value() or ""}) if kind]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(kind=self.value()) if self.value() else queryset


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
    list_filter = [ReadFilter, KindFilter, "created_at"]
    list_select_related = ["user"]
    search_fields = ["title", f"user__{USERNAME}"]
    # No list reads or sorts the whole table.
    ordering = ["-pk"]
    sortable_by = ()
    paginator: ClassVar[type] = FirstPages
    show_full_result_count = False
    raw_id_fields = ["user"]
    readonly_fields = ["created_at"]
    actions = ["mark_as_read", "mark_as_unread"]

    @admin.action(description=_("Mark selected notifications as read"), permissions=["change"])
    def mark_as_read(self, request: HttpRequest, queryset: NotificationQuerySet) -> None:
        count = queryset.mark_as_read()
        text = ngettext(
            "%(count)s notification was marked as read.", "%(count)s notifications were marked as read.", count
        )
        self.message_user(request, text % {"count": grouped(count)})

    @admin.action(description=_("Mark selected notifications as unread"), permissions=["change"])
    def mark_as_unread(self, request: HttpRequest, queryset: NotificationQuerySet) -> None:
        count = queryset.mark_as_unread()
        text = ngettext(
            "%(count)s notification was marked as unread.", "%(count)s notifications were marked as unread.", count
        )
        self.message_user(request, text % {"count": grouped(count)})


class ReadOnly:
    """An admin for rows that only the counters write."""

    paginator: ClassVar[type] = FirstPages
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class Maintains:
    """An admin that can flush and recount, each with its own permission."""

    message_user: Callable[..., None]

    def has_flush_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications_counter.flush_unread_counts")

    def has_recount_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications_counter.recount_unread_counts")

    def do_flush(self, request: HttpRequest, counter: Counter, stopped: Callable[[], bool]) -> None:
        result = self._try(request, counter, lambda: counter.flush(stopped=stopped))
        if result:
            text = ngettext("%(users)s user was flushed.", "%(users)s users were flushed.", result.users)
            self.message_user(request, text % {"users": grouped(result.users)})

    def do_recount(self, request: HttpRequest, counter: Counter, users: Iterable[Any] | None) -> None:
        stopped = out_of_patience()
        result = self._try(request, counter, lambda: counter.recount(users, stopped=stopped, resume=True))
        if result:
            text = ngettext(
                "%(checked)s user was recounted, %(corrected)s corrected.",
                "%(checked)s users were recounted, %(corrected)s corrected.",
                result.checked,
            )
            numbers = {"checked": result.checked, "corrected": result.corrected}
            self.message_user(request, text % {name: grouped(number) for name, number in numbers.items()})
        if result and result.in_doubt:
            text = ngettext(
                "%(users)s user in doubt is left to flush_counters.",
                "%(users)s users in doubt are left to flush_counters.",
                result.in_doubt,
            )
            self.message_user(request, text % {"users": grouped(result.in_doubt)})
        if result and users is None and stopped():
            self.message_user(request, _("The recount ran out of time. Run it again to continue."), messages.WARNING)

    def _try(self, request: HttpRequest, counter: Counter, action: Callable[[], T]) -> T | None:
        """Return the result of an action. If it fails, tell the user why and return None."""
        try:
            if any(shard.recovering for shard in counter.status()):
                raise CounterError(
                    _("Redis does not hold complete counts. The next run of flush_counters recovers them.")
                )
            return action()
        except CounterError as error:
            self.message_user(request, str(error), messages.ERROR)
            return None


def out_of_patience() -> Callable[[], bool]:
    until = time.monotonic() + PATIENCE
    return lambda: time.monotonic() > until


def look(rows: Iterable[Any]) -> None:
    """Add to stored counts what their rows lack: the user, what waits in Redis, and the count. All rows are looked up
    together, to save queries and round trips."""
    by_member = {str(row.pk): row for row in rows}
    keys = [row.pk for row in by_member.values()]
    users = get_user_model()._base_manager.using(unread.db).in_bulk(keys)
    counts = unread.counts(keys)
    news = {} if unseen.disabled else unseen.counts(keys)
    for row in by_member.values():
        row.shown_user = users.get(row.pk, row.pk)
        row.shown_total = counts[row.pk]
        row.shown_unseen = news.get(row.pk)
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
class UserNotificationsCountAdmin(Maintains, ReadOnly, CountModelAdmin):
    fields = ["owner", "stored", "waiting", "total", "updated_at", "flushed_batch"]
    search_fields = ["user"]
    ordering = ["pk"]
    sortable_by = ["owner"]
    actions = ["flush", "recount"]

    # ------------------------------------------------------------------ pages
    def get_list_display(self, request: HttpRequest) -> Any:
        return ["owner", "stored", "waiting", "total", *(() if unseen.disabled else ["total_unseen"]), "updated_at"]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CountList

    def get_object(self, *args: Any, **kwargs: Any) -> UserNotificationsCount | None:
        row = super().get_object(*args, **kwargs)
        if row is not None:
            look([row])
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

    @admin.display(description=_("stored"), ordering="unread_count")
    def stored(self, row: UserNotificationsCount) -> str:
        return grouped(row.unread_count)

    @admin.display(description=_("waiting in Redis"))
    def waiting(self, row: Any) -> str | None:
        return None if row.shown_waiting is None else signed(row.shown_waiting)

    @admin.display(description=_("total"))
    def total(self, row: Any) -> str:
        return grouped(row.shown_total)

    @admin.display(description=_("unseen"))
    def total_unseen(self, row: Any) -> str:
        return grouped(row.shown_unseen)

    # ---------------------------------------------------------------- actions
    @outside_transactions
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Flushes and recounts refuse to run inside a transaction."""
        return super().changelist_view(request, extra_context)

    @admin.action(description=_("Flush all users (ignores the selection)"), permissions=["flush"])
    def flush(self, request: HttpRequest, queryset: QuerySet[UserNotificationsCount]) -> None:
        stopped = out_of_patience()
        for counter in counters_of_notifications():
            self.do_flush(request, counter, stopped)

    @admin.action(description=_("Recount selected users"), permissions=["recount"])
    def recount(self, request: HttpRequest, queryset: QuerySet[UserNotificationsCount]) -> None:
        for counter in counters_of_notifications():
            self.do_recount(request, counter, queryset.values_list("pk", flat=True))


@admin.register(Dashboard)
class DashboardAdmin(Maintains, ReadOnly, ModelAdmin):
    """A page in place of a list."""

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
            **dashboard.page(request.GET.get("by", ""), request.GET.get("at", "")),
            "title": _("Dashboard"),
            "opts": self.opts,
            "refresh": "refresh" in request.GET,
            "may_flush": self.has_flush_permission(request),
            "may_recount": self.has_recount_permission(request),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/notifications_counter/dashboard/change_list.html", context)

    def act(self, request: HttpRequest) -> HttpResponse:
        """Do what a button says, and redirect to the page."""
        try:
            counter = counter_named(request.POST.get("counter", ""))
            place = self.place_of(counter, request.GET.get("at", ""))
        except ConfigurationError as error:
            return HttpResponseBadRequest(str(error), content_type="text/plain")
        if "flush" in request.POST:
            if not self.has_flush_permission(request):
                raise PermissionDenied
            with at(place):
                self.do_flush(request, counter, out_of_patience())
        elif "recount" in request.POST:
            if not self.has_recount_permission(request):
                raise PermissionDenied
            with at(place):
                self.do_recount(request, counter, None)
        return HttpResponseRedirect(request.get_full_path())

    def place_of(self, counter: Counter, where: str) -> Place:
        """Return the place that a URL names, by default the first that the user may see. ConfigurationError if the user
        may not see it."""
        for local in dashboard.visible():
            if local.counter is counter and where in ("", dashboard.key_of(local.place)):
                return local.place
        raise ConfigurationError(f"Counter {counter.name!r} is not in {where!r}.")


@admin.register(CounterShard)
class CounterShardAdmin(ReadOnly, ModelAdmin):
    list_display = ["counter", "shard", "shards", "epoch", "closed", "audited"]


class CounterFilter(admin.SimpleListFilter):
    title = _("counter")
    parameter_name = "counter"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [(counter.name, counter.name) for counter in all_counters()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(counter=self.value()) if self.value() else queryset


@admin.register(RecountRequest)
class RecountRequestAdmin(ReadOnly, ModelAdmin):
    list_display = ["counter", "owner", "created_at"]
    ordering = ["-pk"]
    sortable_by = ()
    list_filter = [CounterFilter, "created_at"]
    search_fields = ["owner"]
