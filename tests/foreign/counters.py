from django.db import connection
from django.db.models import Q

from notifications_counter.counters import Counter

inbox = Counter(
    "inbox",
    source="notifications.Notification",
    owner="recipient",
    condition=Q(unread=True, deleted=False),
    totals="foreign.InboxCount",
    field="inbox_count",
)

open_jobs = Counter(
    "open_jobs",
    source="foreign.Job",
    owner="worker",
    condition=Q(done=False),
    totals="foreign.JobCount",
    field="open_count",
)

changes = Counter(
    "changes",
    source="foreign.HistoricalJob",
    owner="worker",
    condition=Q(done=False),
    totals="foreign.ChangeCount",
    field="change_count",
)

if connection.vendor == "postgresql":
    free_items = Counter(
        "free_items",
        source="foreign.Item",
        owner="keeper",
        condition=Q(sold=False),
        totals="foreign.ItemCount",
        field="free_count",
    )
