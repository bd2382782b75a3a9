"""What the admin's pages share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ..counters import Counter
from ..databases.errors import EXPECTED, explain
from ..monitoring.display import grouped, local, styled, with_code
from ..monitoring.status import read_counter

USERNAME = get_user_model().USERNAME_FIELD

ACTION_SECONDS = 20.0
"""Seconds after which an action stops, so that no web server times out."""

MAX_COUNTED_ROWS = 10_000
"""Rows of a list that are counted, and whose pages are linked. Counting millions takes seconds."""


class AtLeast(int):
    """A number of rows, of which there may be more."""

    def __str__(self) -> str:
        # Django would separate the thousands of the former.
        return f"≥{self:d}" if settings.USE_THOUSAND_SEPARATOR else f"{grouped(int(self))}+"


class FirstPages(Paginator):
    """A paginator of the first rows only."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        found = rows.order_by()[: MAX_COUNTED_ROWS + 1].count()
        return found if found <= MAX_COUNTED_ROWS else AtLeast(MAX_COUNTED_ROWS)


class ListAdmin(admin.ModelAdmin):
    """A list that neither reads nor sorts the whole table. A message of its actions gets the focus."""

    change_list_template = "admin/notifications_counter/change_list.html"
    paginator: ClassVar[type] = FirstPages
    show_full_result_count = False


class MaintenanceAdmin(ListAdmin):
    """Shows what only the counters write, and flushes and recounts it, each with its own permission."""

    def _nobody(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _nobody

    def has_flush_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications_counter.flush_unread_counts")

    def has_recount_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("notifications_counter.recount_unread_counts")

    def do(self, request: HttpRequest, counter: Counter, work: Callable[[Counter], tuple[str, bool]]) -> None:
        """Flush or recount a counter, and tell the user what that did, or why it failed."""
        try:
            text, is_done = work(counter)
            level = messages.INFO if is_done else messages.WARNING
        except EXPECTED as error:
            text, level = explain(error), messages.ERROR
        title = _("Counter %(name)s") % {"name": counter.name}
        self.message_user(request, with_code(f"{title}: {text}"), level)


def flush(counter: Counter, seconds: float = ACTION_SECONDS) -> tuple[str, bool]:
    """Flush a counter. Returns what that did, and whether no problem was left."""
    owners = counter.flush(seconds).owners
    text = ngettext("%(owners)s owner was flushed.", "%(owners)s owners were flushed.", owners)
    status = read_counter(counter)
    why_not = [problem.text for problem in (*status.problems(), *status.deploy())]
    return " ".join([text % {"owners": grouped(owners)}, *why_not]), not why_not


def recount(
    counter: Counter, owners: Iterable[object] | None = None, seconds: float = ACTION_SECONDS
) -> tuple[str, bool]:
    """Recount owners, or everyone. Returns what that did, and whether it is finished."""
    result = counter.recount(owners, seconds=seconds)
    text = ngettext(
        "%(owners)s owner was compared with the rows, %(wrong)s wrong.",
        "%(owners)s owners were compared with the rows, %(wrong)s wrong.",
        result.owners,
    )
    text %= {"owners": grouped(result.owners), "wrong": grouped(result.wrong)}
    more = _("It ran out of time. `manage.py recount_counters` compares everyone.")
    return (f"{text} {more}", False) if result.unfinished else (text, True)


def short(at: datetime) -> str:
    """Return a date and time for a narrow column, in two lines on a phone."""
    day, time = (styled(local(at.timestamp()), style) for style in ("SHORT_DATE_FORMAT", "TIME_FORMAT"))
    return format_html('{} <span class="nc-time">{}</span>', day, time)
