"""Life on the site that `serve` runs: a month of history, and something new now and then."""

import math
import time
from datetime import timedelta
from random import choice, choices, randrange, uniform

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.timeseries import TimeSeries

MINUTE, HOUR, DAY = 60, 3600, 86400  # seconds

KINDS = [("comment", _("Comments")), ("order", _("Orders")), ("security", _("Security"))]

PEOPLE = ["Anna", "Bo", "Chidi", "Dana", "Emre", "Fatma"]

# Kind, title, body, and how many seconds old the first of these are.
NOTIFICATIONS = [
    ("comment", "{who} commented on your draft", "“The second chart needs a unit on its axis.”", 4 * MINUTE),
    ("comment", "{who} answered you", "“Agreed. I have moved the meeting to Thursday, half past two.”", HOUR),
    ("order", "Order {order} has been shipped", "It should arrive within two days.", 3 * HOUR),
    ("order", "{who} paid for order {order}", "The receipt is in your account.", DAY),
    ("security", "New sign-in", "From Firefox on Linux. If that was not you, change your password.", 2 * DAY),
    ("", "{who} shared a folder with you", "It has the figures of this month.", 5 * DAY),
    ("", "Welcome", "This site shows an exact badge for the price of one Redis command.", 30 * DAY),
]


def notification(user, number: int, **values) -> Notification:
    kind, title, body, _age = NOTIFICATIONS[number % len(NOTIFICATIONS)]
    who = PEOPLE[number % len(PEOPLE)]
    data = {"lang": "en"}
    if "{who}" in title:
        data["image"] = f"{settings.STATIC_URL}demo/face-{who.lower()}.svg"
    title = title.format(who=who, order=7041 + number)
    return Notification(user=user, kind=kind, title=title, body=body, data=data, **values)


def settle(users: list) -> None:
    """Create the first notifications of everybody, some of them read, and a month of charts. The charts show that they
    were created just now, unless no flusher has run yet."""
    first = [
        notification(user, place * len(NOTIFICATIONS) + n, created_at=timezone.now() - timedelta(seconds=row[-1]))
        for place, user in enumerate(users)
        for n, row in enumerate(NOTIFICATIONS)
    ]
    Notification.objects.bulk_create(first)
    Notification.objects.filter(created_at__lt=timezone.now() - timedelta(days=3)).mark_as_read()
    now = int(time.time())
    for slice_, backs in ((MINUTE, range(1, 60)), (HOUR, range(1, 48)), (DAY, range(2, 31))):
        for back in backs:
            _happened(now - back * slice_, slice_ // MINUTE, now)


def _happened(at: int, minutes: int, now: int) -> None:
    """Add what the flusher would have counted: as much as in `go_on` by day, less at night and at weekends."""
    much = minutes * (0.65 + 0.35 * math.cos(2 * math.pi * (now - at) / DAY) if minutes < 24 * 60 else 0.65)
    if time.gmtime(at).tm_wday >= 5:
        much /= 2
    rates = {"added": 70, "removed": 60}  # by minute
    counts = {f"{unread.name}:{what}": round(rate * much * uniform(0.7, 1.3)) for what, rate in rates.items()}
    TimeSeries().update_counters(counts, now=at)


def go_on(readers: list, others: list) -> bool:
    """Now and then send, read or delete a notification. Always returns False."""
    what = choices(["", "send", "read", "delete"], [90, 6, 4, 3])[0]
    mine = Notification.objects.for_user(choice(readers)).order_by("pk")
    if what == "send":  # anything but the welcome, which comes last
        notification(choice(readers + others), randrange(len(NOTIFICATIONS) - 1)).save()
    elif what == "read":
        mine.filter(pk__in=list(mine.unread().values_list("pk", flat=True)[:2])).mark_as_read()
    elif what == "delete":
        mine.filter(pk__in=list(mine.read().values_list("pk", flat=True)[:2])).delete()
    return False
