"""Read-only pages of the app's own records: shards and recount requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..counters import all_counters
from ..maintenance.audit import AuditProgress
from ..models import CounterShard, RecountRequest
from .base import ReadOnlyAdmin

AUDITED = _("How far the recount of everyone has come. Empty if none is under way.")


@admin.register(CounterShard)
class CounterShardAdmin(ReadOnlyAdmin):
    list_display = ["counter", "shard", "shards", "epoch", "closed", "audited_up_to"]
    help_texts: ClassVar[dict[str, Any]] = {
        "shard": _("A part of the owners, with keys of its own in Redis."),
        "epoch": _("Rises when everyone is to be recounted, as after Redis has lost data."),
        "finished": _("The last group of changes that the flusher has written to the database."),
        "closed": _("No group of changes up to this one is accepted anymore."),
        "audited": AUDITED,
        "audited_up_to": AUDITED,
        "verified": _("How far the comparison with the rows has come, and what it has found."),
        "declared": _("Stands for what the counter counts. After a deploy, it may be another one."),
    }

    @admin.display(description=_("audited up to"))
    def audited_up_to(self, row: CounterShard) -> str | None:
        return AuditProgress.of(row.audited).end.partition(":")[2] or None


class CounterFilter(admin.SimpleListFilter):
    title = _("counter")
    parameter_name = "counter"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [(counter.name, counter.name) for counter in all_counters()]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.filter(counter=self.value()) if self.value() else queryset


@admin.register(RecountRequest)
class RecountRequestAdmin(ReadOnlyAdmin):
    list_display = ["counter", "owner", "created_at"]
    help_texts: ClassVar[dict[str, Any]] = {
        "owner": _("To be recounted, because Redis could not be told of a change. Everyone, if empty."),
    }
    ordering = ["-pk"]
    sortable_by = ()
    list_filter = [CounterFilter, "created_at"]
    search_fields = ["owner"]
