from django.contrib import messages
from django.contrib.admin.views.decorators import staff_member_required
from django.contrib.auth import get_user_model
from django.contrib.auth.decorators import login_required
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from notifications_counter.controller import NotificationController
from notifications_counter.counters import unread
from notifications_counter.models import Notification, UserNotificationsCount

from .forms import SendForm

PAGE = 20  # notifications


def badge_everywhere(request: HttpRequest) -> dict:
    """Context processor: every page shows the badge, and only a page that does pays for it."""
    if not request.user.is_authenticated:
        return {}
    return {"unread_count": SimpleLazyObject(lambda: unread.count(request.user))}


@require_GET
@never_cache
@login_required
def inbox(request: HttpRequest) -> HttpResponse:
    rows = Notification.objects.for_user(request.user)
    only_unread = "unread" in request.GET
    if only_unread:
        rows = rows.unread()
    if (before := request.GET.get("before", "")).isdecimal():
        rows = rows.filter(pk__lt=before)
    rows = list(rows.order_by("-pk")[: PAGE + 1])
    return render(
        request,
        "demo/inbox.html",
        {
            "notifications": rows[:PAGE],
            "only_unread": only_unread,
            "older": rows[PAGE - 1].pk if len(rows) > PAGE else None,
            "first_page": not before,
        },
    )


@require_GET
@never_cache
@login_required
def badge(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"unread": unread.count(request.user)})


@never_cache
@login_required
def send(request: HttpRequest) -> HttpResponse:
    form = SendForm(request.POST or None, sender=request.user)
    if request.method == "POST" and form.is_valid():
        to, title, body = (form.cleaned_data[name] for name in ("to", "title", "body"))
        if len(to) == 1:
            Notification.objects.create(user_id=to[0], title=title, body=body)
        else:
            Notification.objects.bulk_create(Notification(user_id=pk, title=title, body=body) for pk in to)
        sent = ngettext("Sent to %(n)d user.", "Sent to %(n)d users.", len(to)) % {"n": len(to)}
        messages.success(request, sent)
        return redirect("inbox")
    return render(request, "demo/send.html", {"form": form})


@require_POST
@login_required
def mark_as_read(request: HttpRequest, pk: int) -> HttpResponse:
    NotificationController(request.user.pk).mark_as_read(pk)
    return redirect("inbox")


@require_POST
@login_required
def mark_as_unread(request: HttpRequest, pk: int) -> HttpResponse:
    Notification.objects.for_user(request.user).filter(pk=pk).mark_as_unread()
    return redirect("inbox")


@require_POST
@login_required
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    Notification.objects.for_user(request.user).filter(pk=pk).delete()
    return redirect("inbox")


@require_POST
@login_required
def mark_all_as_read(request: HttpRequest) -> HttpResponse:
    n = NotificationController(request.user.pk).mark_all_as_read()
    text = ngettext("%(n)d notification marked as read.", "%(n)d notifications marked as read.", n)
    messages.success(request, text % {"n": n} if n else _("Nothing was unread."))
    return redirect("inbox")


@require_POST
@login_required
def delete_read(request: HttpRequest) -> HttpResponse:
    Notification.objects.for_user(request.user).read().delete()
    return redirect("inbox")


@require_GET
@never_cache
@staff_member_required(login_url="login")
def counts(request: HttpRequest) -> HttpResponse:
    """The badge of the first users beside what is stored and what `COUNT(*)` says."""
    users = get_user_model().objects.order_by("pk")[:100]
    badges = unread.counts(users)
    stored = UserNotificationsCount.objects.in_bulk(list(badges))
    rows = dict(
        Notification.objects.unread().filter(user__in=list(badges)).order_by().values_list("user").annotate(Count("pk"))
    )
    table = [
        {
            "user": user,
            "badge": badges[user.pk],
            "stored": stored[user.pk].unread_count if user.pk in stored else 0,
            "rows": rows.get(user.pk, 0),
        }
        for user in users
    ]
    return render(request, "demo/counts.html", {"table": table})
