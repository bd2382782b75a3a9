"""What the app itself remembers, to view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..counters import all_counters
from ..models import CounterShard, RecountRequest
from .base import ModelAdmin, ReadOnly


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
