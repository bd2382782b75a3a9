"""Base classes of the admin pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from django.apps import apps
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ..counters import Counter
from ..exceptions import CounterError
from ..monitoring.display import grouped
from ..monitoring.status import look_at

if not TYPE_CHECKING and apps.is_installed("unfold"):
    from unfold.admin import ModelAdmin  # so that the pages match the site's other pages
else:
    ModelAdmin = admin.ModelAdmin

USERNAME = get_user_model().USERNAME_FIELD

TIME_LIMIT = 20.0
"""Seconds after which an action stops, so that no web server times out."""

MAX_COUNTED = 10_000
"""Rows of a list that are counted, and whose pages are linked. Counting millions takes seconds."""


class FirstPages(Paginator):
    """A paginator of the first rows only."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return rows.order_by()[:MAX_COUNTED].count()


class ExplainedAdmin(ModelAdmin):
    """An admin whose ``help_texts`` explain columns and fields. A message of its actions gets the focus."""

    change_list_template = "admin/notifications_counter/change_list.html"
    help_texts: ClassVar[dict[str, Any]] = {}

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        columns = [name for name in self.get_list_display(request) if name in self.help_texts]
        words = [(self.label_of(name), self.help_texts[name]) for name in columns]
        return super().changelist_view(request, {"words": words, **(extra_context or {})})

    def label_of(self, name: str) -> object:
        """Return the title of a column, which is a method or a field."""
        method: Any = getattr(self, name, None)
        field: Any = None if method else self.opts.get_field(name)
        return method.short_description if method else field.verbose_name

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change, help_texts=self.help_texts, **kwargs)


class ReadOnlyAdmin(ExplainedAdmin):
    """An admin for rows that only the counters write."""

    paginator: ClassVar[type] = FirstPages
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class MaintenanceMixin:
    """Flushes and recounts, each with its own permission."""

    message_user: Callable[..., None]

    def has_flush_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications_counter.flush_unread_counts")

    def has_recount_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications_counter.recount_unread_counts")

    def do_flush(self, request: HttpRequest, counter: Counter, stopped: Callable[[], bool]) -> None:
        with self._errors_told(request, counter):
            require_counts(counter)
            owners = counter.flush(stopped=stopped).owners
            text = ngettext("%(owners)s owner was flushed.", "%(owners)s owners were flushed.", owners)
            self._say(request, counter, text % {"owners": grouped(owners)})

    def do_recount(self, request: HttpRequest, counter: Counter, owners: Iterable[Any] | None) -> None:
        stopped = time_limit()
        with self._errors_told(request, counter):
            require_counts(counter)
            result = counter.recount(owners, stopped=stopped, resume=True)
            text = ngettext(
                "%(owners)s owner was compared with the rows, %(wrong)s wrong.",
                "%(owners)s owners were compared with the rows, %(wrong)s wrong.",
                result.owners,
            )
            self._say(request, counter, text % {"owners": grouped(result.owners), "wrong": grouped(result.wrong)})
            if owners is None and stopped():
                self._say(
                    request, counter, _("The recount ran out of time. Run it again to continue."), messages.WARNING
                )

    @contextmanager
    def _errors_told(self, request: HttpRequest, counter: Counter) -> Iterator[None]:
        """Tell the user why what is done here fails."""
        try:
            yield
        except CounterError as error:
            self._say(request, counter, error, messages.ERROR)

    def _say(self, request: HttpRequest, counter: Counter, text: object, level: int = messages.INFO) -> None:
        name = _("Counter %(name)s") % {"name": counter.name}
        self.message_user(request, f"{name}: {text}", level)


def require_counts(counter: Counter) -> None:
    """Raise CounterError if everyone is to be counted first, which takes long."""
    if look_at(counter).recovery in ("waiting", "due"):
        raise CounterError(_("Redis does not hold complete counts. The next run of flush_counters recovers them."))


def time_limit() -> Callable[[], bool]:
    """Return a function that says whether the time of an action is up."""
    until = time.monotonic() + TIME_LIMIT
    return lambda: time.monotonic() > until
