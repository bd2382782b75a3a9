from django.contrib import messages
from django.contrib.auth import get_user_model
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from notifications_counter.counters import unread
from notifications_counter.models import Notification

from .forms import SendForm
from .report import compare


class StrictPolicy(MiddlewareMixin):
    """Makes browsers load and run only files of this site. Django 6 has a setting for this."""

    policy = "default-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"

    def process_response(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response.headers["Content-Security-Policy"] = self.policy
        return response


@never_cache
@login_required
def send(request: HttpRequest) -> HttpResponse:
    form = SendForm(request.POST or None, sender=request.user)
    if request.method == "POST" and form.is_valid():
        to = form.cleaned_data["to"]
        values = {name: form.cleaned_data[name] for name in ("kind", "title", "body")}
        if len(to) == 1:
            Notification.objects.create(user_id=to[0], **values)
        else:
            Notification.objects.bulk_create(Notification(user_id=pk, **values) for pk in to)
        sent = ngettext("Sent to %(n)d user.", "Sent to %(n)d users.", len(to)) % {"n": len(to)}
        messages.success(request, sent)
        return redirect("notifications:inbox")
    for name in list(form.errors)[:1]:
        form.fields["to"].widget.attrs["autofocus"] = name == "to"
        form.fields[name].widget.attrs["autofocus"] = True
    return render(request, "demo/send.html", {"form": form})


@require_GET
@never_cache
@login_required
def counts(request: HttpRequest) -> HttpResponse:
    """Show the badges of the first users beside their stored totals and `COUNT(*)`."""
    if not request.user.is_staff:
        raise Http404
    users = get_user_model().objects.order_by("pk")[:100]
    verdicts = compare(unread, [user.pk for user in users], "user")
    table = [{"user": user, **verdict._asdict()} for user, verdict in zip(users, verdicts, strict=True)]
    return render(request, "demo/counts.html", {"table": table})
