"""The admin of notifications."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..models import Notification, NotificationQuerySet
from .base import USERNAME, ListAdmin, short

RECENT_NOTIFICATIONS = 1000
"""The filter offers the kinds of this number of newest notifications."""


class KindFilter(admin.SimpleListFilter):
    """Filters by the kinds of recent notifications. Finding all kinds would read every row."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, str]]:
        recent = model_admin.get_queryset(request).order_by("-pk").values_list("kind", flat=True)[:RECENT_NOTIFICATIONS]
        return [(kind, kind) for kind in sorted({*recent, self.value() or ""}) if kind]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Notification]) -> QuerySet[Notification]:
        return queryset.filter(kind=self.value()) if self.value() else queryset


class ReadFilter(admin.SimpleListFilter):
    title = _("read state")
    parameter_name = "read"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin) -> list[tuple[str, str]]:
        return [("no", gettext("Unread")), ("yes", gettext("Read"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Notification]) -> QuerySet[Notification]:
        return queryset.filter(read_at__isnull=self.value() == "no") if self.value() in ("no", "yes") else queryset


@admin.register(Notification)
class NotificationAdmin(ListAdmin):
    list_display = ["title", "user", "kind", "created", "is_read"]
    list_filter = [ReadFilter, KindFilter, "created_at"]
    list_select_related = ["user"]
    search_fields = ["title", f"user__{USERNAME}"]
    ordering = ["-pk"]
    sortable_by = ()
    raw_id_fields = ["user"]
    readonly_fields = ["created_at", "seen_at", "read_at"]
    actions = ["mark_as_read", "mark_as_unread"]

    def get_form(self, *args: Any, **kwargs: Any) -> Any:
        texts = {"user": _("The primary key of a user. The button beside the field finds it.")}
        return super().get_form(*args, **{"help_texts": texts, **kwargs})

    def get_fields(self, request: HttpRequest, obj: Notification | None = None) -> list[Any]:
        fields = super().get_fields(request, obj)
        return [field for field in fields if obj or field not in self.readonly_fields]

    @admin.display(description=_("created at"))
    def created(self, notification: Notification) -> str:
        return short(notification.created_at)

    @admin.display(description=_("Read"))
    def is_read(self, notification: Notification) -> str:
        sign, text, name = ("✓", _("Read"), "nc-was-read") if notification.is_read else ("-", _("Unread"), "")
        return format_html('<span class="{}" role="img" aria-label="{}">{}</span>', name, text, sign)

    @admin.action(description=_("Mark selected notifications as read"), permissions=["change"])
    def mark_as_read(self, request: HttpRequest, queryset: NotificationQuerySet) -> None:
        n = queryset.mark_as_read()
        self.tell(request, ngettext("%(n)d notification marked as read.", "%(n)d notifications marked as read.", n), n)

    @admin.action(description=_("Mark selected notifications as unread"), permissions=["change"])
    def mark_as_unread(self, request: HttpRequest, queryset: NotificationQuerySet) -> None:
        n = queryset.mark_as_unread()
        text = ngettext("%(n)d notification marked as unread.", "%(n)d notifications marked as unread.", n)
        self.tell(request, text, n)

    def tell(self, request: HttpRequest, text: str, n: int) -> None:
        """Tell the user what was done, and the admin's log, in one entry: an action may change millions of rows."""
        self.message_user(request, text % {"n": n})
        LogEntry.objects.create(
            user_id=request.user.pk,  # type: ignore[misc]  # who sees the admin is logged in
            content_type=ContentType.objects.get_for_model(Notification),
            object_repr=text % {"n": n},
            action_flag=CHANGE,
        )
