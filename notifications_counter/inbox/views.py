"""The inbox of the user who makes the request.

Every view takes its notifications from ``get_queryset()``, which returns only the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import nsmallest
from operator import methodcaller
from typing import Any
from urllib.parse import urljoin, urlsplit

from django.apps import apps
from django.contrib import messages
from django.contrib.auth.mixins import LoginRequiredMixin
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import conditional_page
from django.views.generic import DetailView, TemplateView, View

from ..counters import unread, unread_by_kind, unseen
from ..declaration.primary_keys import fits
from ..internals import url_has_allowed_host_and_scheme
from ..models import Notification, NotificationQuerySet
from .badges import badge_of, badge_of_kinds, count_once
from .controller import NotificationController, with_ids
from .paging import neighbors_of, page_of, parse_time, time_as_text

MAX_ROWS = 200  # in a page that grows as the user scrolls; MOST in list.js
MAX_TABS = 20  # for kinds that the site does not name


class OwnNotifications(LoginRequiredMixin, View):
    """The base of all views of the inbox, pages and JSON."""

    def get_queryset(self) -> NotificationQuerySet:
        """Return the notifications that this view can see and change."""
        return NotificationController(self.request.user).notifications

    def of_kind(self, kind: str) -> NotificationQuerySet:
        """Return the notifications of one kind, or all if ``kind`` is empty."""
        rows = self.get_queryset()
        if not kind:
            return rows
        return rows.filter(kind=kind) if fits(Notification._meta.get_field("kind"), kind) else rows.none()


def inbox_of(request: HttpRequest) -> str:
    """Return the URL of the inbox that a request belongs to."""
    match = request.resolver_match
    return reverse("notifications:inbox", current_app=match.namespace if match else None)


@method_decorator([never_cache, csrf_protect], name="dispatch")
class PageView(OwnNotifications):
    """The base of the pages. They may redirect to this site, and to ``allowed_hosts``. They show ``kinds``, pairs of a
    kind and its name."""

    allowed_hosts: Collection[str] = ()
    kinds: Sequence[tuple[str, str]] = ()

    def allows(self, url: str) -> bool:
        """Return whether the view may redirect to this URL."""
        hosts = {self.request.get_host(), *self.allowed_hosts}
        return url_has_allowed_host_and_scheme(url, hosts, require_https=self.request.is_secure())

    @property
    def is_visit(self) -> bool:
        """Whether somebody looks at the page. A browser may also prefetch it, or load it as an image of another site's
        page."""
        headers = self.request.headers
        is_page = headers.get("Sec-Fetch-Dest", "document") == "document"
        is_ours = headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
        is_early = "prefetch" in headers.get("Sec-Purpose", "")
        return self.request.method == "GET" and (is_page or is_ours) and not is_early

    @property
    def part(self) -> str:
        """The part of the page that a script asks for, if any."""
        return self.request.headers.get("X-Part", "")

    @property
    def query(self) -> str:
        """The filter and the page of the list, which links to a notification and back carry along."""
        asked = self.request.GET.urlencode()
        return f"?{asked}" if asked else ""

    @property
    def show(self) -> str:
        """What the list shows: ``all``, or ``unread``."""
        return "unread" if self.request.GET.get("show") == "unread" else "all"

    def listed(self) -> NotificationQuerySet:
        """Return what the filter of the list lets through."""
        rows = self.of_kind(self.request.GET.get("kind", ""))
        return rows.unread() if self.show == "unread" else rows

    @property
    def has_htmx(self) -> bool:
        """Whether templates can load htmx from django-htmx."""
        return apps.is_installed("django_htmx")


class InboxView(PageView, TemplateView):
    """A page of the list, which can be filtered by its ``kinds``. With the header ``X-Part``, scripts ask for the list
    alone, or for the list of a bell. If `unseen` is in use, a GET marks everything as seen."""

    template_name = "notifications_inbox/inbox.html"
    list_template_name = "notifications_inbox/list.html"
    page_size = 20
    bell_size = 10

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if self.is_visit:
            self.mark_as_seen()
        if self.part not in ("list", "bell"):
            return super().get(request, *args, **kwargs)
        render_new = conditional_page(render)  # or return 304 if the browser has it
        return render_new(request, self.list_template_name, self.get_context_data(**kwargs))

    @property
    def size(self) -> int:
        """The number of rows. A script that has added older rows to the list asks for as many as it shows."""
        if self.part == "bell":
            return self.bell_size
        shown = self.request.headers.get("X-Rows", "")
        wanted = int(shown) if shown.isascii() and shown.isdecimal() and len(shown) < 5 else 0
        return max(self.page_size, min(wanted, MAX_ROWS))

    def mark_as_seen(self) -> None:
        """Mark everything that this view can show as seen. If nothing is unseen, this only asks Redis."""
        if unseen.is_used and unseen.count(self.request.user):
            self.get_queryset().mark_as_seen()

    @property
    def has_numbers(self) -> bool:
        """Whether the tabs have numbers."""
        return unread_by_kind.is_used

    def tabs(self) -> Sequence[tuple[str, str]]:
        """Return the kinds to filter by, each with its name: ``kinds``. If that is empty and `unread_by_kind` is
        in use, return the kinds with the most unread notifications, and the one that is shown."""
        if self.kinds or not self.has_numbers:
            return self.kinds
        column, shown = Notification._meta.get_field("kind"), self.request.GET.get("kind", "")
        counts = count_once(self.request, badge_of_kinds(self.request.user))
        most = nsmallest(MAX_TABS, filter(None, counts), key=lambda kind: (-counts[kind], kind))
        return [(kind, kind) for kind in sorted({shown, *most}) if kind and fits(column, kind)]

    def count_unread(self, kind: str) -> int:
        """Return how many are unread: of a kind if one is given and `unread_by_kind` is in use, else of all kinds."""
        user = self.request.user
        if kind and self.has_numbers:
            return count_once(self.request, badge_of_kinds(user)).get(kind, 0)
        return count_once(self.request, badge_of(unread, user))

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        asked = self.request.GET
        kind = asked.get("kind", "")
        try:
            page = page_of(self.listed(), self.size, asked.get("before", ""), asked.get("after", ""))
        except ValueError as error:
            raise Http404(error) from None
        bell = self.part == "bell"
        context |= {"bell": bell, "at": "nc-bell" if bell else "nc", "kind_name": dict(self.tabs()).get(kind, kind)}
        has_unread = any(not row.is_read for row in page.rows) or self.count_unread(kind) > 0
        return super().get_context_data(page=page, show=self.show, kind=kind, has_unread=has_unread, **context)


class NotificationView(PageView, DetailView):
    """One notification. A POST opens it: marks it as read, and redirects to its URL. With ``mark_on_get``, a GET does
    the same, for links in emails."""

    template_name = "notifications_inbox/notification.html"
    mark_on_get = False

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        opened = self.open() if self.mark_on_get and self.is_visit else None
        return opened or super().get(request, *args, **kwargs)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self.open() or HttpResponseRedirect(request.get_full_path())

    def open(self) -> HttpResponse | None:
        """Mark it as read, and redirect to its URL if that is allowed."""
        self.get_queryset().filter(pk=self.kwargs["pk"]).mark_as_read()
        self.object = self.get_object()
        return HttpResponseRedirect(self.target) if self.target else None

    @property
    def target(self) -> str:
        """The URL that opening it redirects to, if any. A relative URL starts at the root of the site."""
        url = self.object.safe_url
        if not self.allows(url):
            return ""
        # urljoin() drops the first slash of ../http:/shop.example/, and browsers would leave the site.
        return url if urlsplit(url).netloc else "/" + urljoin("/", url).lstrip("/\\")

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(target=self.target, **neighbors_of(self.object, self.listed()), **context)


class ChangeView(PageView):
    """Changes the notifications that a form names, tells the user, and redirects to the form's ``next``, or to the
    inbox. A script, which sends the header ``X-Part``, gets the message instead.

    ``pk``        one notification; 404 if it is missing
    ``selected``  any number of notifications; missing ones are ignored
    ``which``     ``all``, or all that are ``read``, ``at`` or ``until`` a time; only of one ``kind`` if it is given

    ``change()`` changes rows, and returns how many changed; ``told`` is the message to the user.
    """

    change: Callable[[NotificationQuerySet], int]
    told: Any

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Redirect to the inbox. A login leads here if the session ended before a button was clicked."""
        return HttpResponseRedirect(inbox_of(request))

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        self.now = timezone.now()
        try:
            changed = self.change(self.chosen())
        except ValueError as error:
            raise Http404(error) from None
        text = self.told % {"n": changed} if changed else _("Nothing to change.")
        if self.part:
            headers = {"X-Changed-At": time_as_text(self.now) if changed else ""}
            return HttpResponse(text, content_type="text/plain", headers=headers)
        messages.success(request, text, fail_silently=True)
        back = request.POST.get("next", "")
        return HttpResponseRedirect(back if self.allows(back) else inbox_of(request))

    def chosen(self) -> NotificationQuerySet:
        posted = self.request.POST
        if "pk" in posted:
            found = with_ids(self.get_queryset(), [posted["pk"]])
            if not found.exists():
                raise Http404
            return found
        match posted.get("which"):
            case "all":
                return self.of_kind(posted.get("kind", ""))
            case "read":
                read = self.of_kind(posted.get("kind", "")).read()
                if "at" in posted:  # to undo exactly that change
                    read = read.filter(read_at=parse_time(posted["at"], read.db))
                return read.filter(read_at__lte=parse_time(posted["until"], read.db)) if "until" in posted else read
        return with_ids(self.get_queryset(), posted.getlist("selected"))


class MarkAsReadView(ChangeView):
    told = ngettext_lazy("%(n)d notification marked as read.", "%(n)d notifications marked as read.", "n")

    def change(self, rows: NotificationQuerySet) -> int:
        return rows.mark_as_read(self.now)


class MarkAsUnreadView(ChangeView):
    told = ngettext_lazy("%(n)d notification marked as unread.", "%(n)d notifications marked as unread.", "n")
    change = methodcaller("mark_as_unread")


def delete(rows: NotificationQuerySet) -> int:
    """Delete rows. Returns how many, without the rows that a cascade deleted."""
    return rows.delete()[1].get(Notification._meta.label, 0)


class DeleteView(ChangeView):
    told = ngettext_lazy("%(n)d notification deleted.", "%(n)d notifications deleted.", "n")
    change = staticmethod(delete)
