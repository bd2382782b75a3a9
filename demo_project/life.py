"""What `serve` shows: a site that has been there for a month, and on which something always happens."""

import math
import random
import time

from django.utils.translation import gettext_lazy as _

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from notifications_counter.timeseries import TimeSeries

MINUTE, HOUR, DAY = 60, 3600, 86400  # seconds

KINDS = [("comment", _("Comments")), ("order", _("Orders")), ("security", _("Security"))]

NOTIFICATIONS = [
    ("comment", "Anna commented on your draft", "“The second chart needs a unit on its axis.”"),
    ("comment", "Bo answered you", "“Agreed. I have moved the meeting to Thursday, half past two.”"),
    ("order", "Order 7041 has been shipped", "It should arrive within two days."),
    ("order", "Payment received", "Thank you. The receipt is in your account."),
    ("security", "New sign-in", "From Firefox on Linux, a minute ago. If that was not you, change your password."),
    ("", "Your export is ready", "The file stays for seven days."),
    ("", "Welcome", "This site shows an exact badge for the price of one Redis GET."),
]


def notification(user, number: int) -> Notification:
    kind, title, body = NOTIFICATIONS[number % len(NOTIFICATIONS)]
    return Notification(user=user, kind=kind, title=title, body=body)


def settle(users: list) -> None:
    """The first notifications of everybody, some of them read, and the charts of a month."""
    Notification.objects.bulk_create(notification(user, n) for user in users for n in range(len(NOTIFICATIONS)))
    Notification.objects.filter(title="Welcome").mark_as_read()
    unread.recount(users)
    now = int(time.time())
    for back in range(1, 60):
        _happened(now - back * MINUTE, minutes=1, now=now)
    for back in range(1, 48):
        _happened(now - back * HOUR, minutes=60, now=now)
    for back in range(2, 30):
        _happened(now - back * DAY, minutes=24 * 60, now=now)


def _happened(at: int, minutes: int, now: int) -> None:
    """What RECORD_ACTIVITY would have counted: as much as `go_on` does by day, less by night and at the weekend."""
    hour = 2 * math.pi * (now - at) / DAY
    much = minutes * random.uniform(0.7, 1.3) * (0.65 + 0.35 * math.cos(hour) if minutes < 24 * 60 else 0.65)
    if time.gmtime(at).tm_wday >= 5:
        much /= 2
    rates = {"created": 75, "read": 60, "deleted": 50, "flushed": 80, "flushes": 50}  # by minute
    TimeSeries().update_counters(
        {f"{unread.activity}:{what}": round(rate * much) for what, rate in rates.items()}, now=at
    )


def go_on(readers: list, others: list) -> bool:
    """Now and then somebody is told something, and one of the readers reads or deletes. Returns False, always."""
    what = random.choices(["", "send", "read", "delete"], [90, 6, 4, 3])[0]
    mine = Notification.objects.for_user(random.choice(readers)).order_by("pk")
    if what == "send":
        notification(random.choice(readers + others), random.randrange(len(NOTIFICATIONS))).save()
    elif what == "read":
        mine.filter(pk__in=list(mine.unread().values_list("pk", flat=True)[:2])).mark_as_read()
    elif what == "delete":
        mine.filter(pk__in=list(mine.read().values_list("pk", flat=True)[:2])).delete()
    return False
