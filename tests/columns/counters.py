from django.db.models import Q

from notifications_counter.counters import Counter

alerts = Counter(
    "alerts",
    source="columns.Alert",
    owner=("organization", "recipient"),
    condition=Q(read=False),
    totals="columns.AlertCount",
    field="unread_count",
)

unseen_by_app = Counter(
    "unseen_by_app",
    source="columns.CourseNotification",
    owner=("user", "app_name"),
    condition=Q(last_seen__isnull=True),
    totals="columns.AppCount",
    field="unseen_count",
    batch_field="unseen_batch",
)

unread_by_app = Counter(
    "unread_by_app",
    source="columns.CourseNotification",
    owner=("user", "app_name"),
    condition=Q(last_read__isnull=True),
    totals="columns.AppCount",
    field="unread_count",
)

conversations = Counter(
    "conversations",
    source="columns.Delivery",
    owner=("user", "conversation"),
    condition=Q(read=False),
    totals="columns.ConversationCount",
    field="unread_count",
)

votes = Counter(
    "votes",
    source="columns.Vote",
    owner=["shop", "item", "stars"],
    condition=Q(hidden=False),
    totals="columns.VoteCount",
    field="vote_count",
)

COUNTERS = (alerts, unseen_by_app, unread_by_app, conversations, votes)
