from django.db.models import Q

from notifications_counter.counters import Counter

unseen = Counter(
    "unread",  # the name is free
    source="notifications.Notification",
    owner="user",
    condition=Q(seen=False),
    totals="notifications.UnseenCount",
    field="unseen_count",
)
