from django.db import connection
from django.db.models import Q

from notifications_counter.counters import Counter

inbox = Counter(
    "inbox",
    source="notifications.Notification",
    owner="recipient",
    condition=Q(unread=True, deleted=False),
    totals="other_packages.InboxCount",
    field="inbox_count",
)

open_jobs = Counter(
    "open_jobs",
    source="other_packages.Job",
    owner="worker",
    condition=Q(done=False),
    totals="other_packages.JobCount",
    field="open_count",
)

if connection.vendor == "postgresql":
    free_items = Counter(
        "free_items",
        source="other_packages.Item",
        owner="keeper",
        condition=Q(sold=False),
        totals="other_packages.ItemCount",
        field="free_count",
    )
