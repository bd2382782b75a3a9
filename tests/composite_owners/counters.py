from django.db.models import Q

from notifications_counter.counters import Counter

alerts = Counter(
    "alerts",
    source="composite_owners.Alert",
    owner=("organization", "recipient"),
    condition=Q(read=False),
    totals="composite_owners.AlertCount",
    field="unread_count",
)

unseen_by_app = Counter(
    "unseen_by_app",
    source="composite_owners.CourseNotification",
    owner=("user", "app_name"),
    condition=Q(last_seen__isnull=True),
    totals="composite_owners.AppCount",
    field="unseen_count",
)

unread_by_app = Counter(
    "unread_by_app",
    source="composite_owners.CourseNotification",
    owner=("user", "app_name"),
    condition=Q(last_read__isnull=True),
    totals="composite_owners.AppCount",
    field="unread_count",
)

votes = Counter(
    "votes",
    source="composite_owners.Vote",
    owner=["shop", "item", "stars"],
    condition=Q(hidden=False),
    totals="composite_owners.VoteCount",
    field="vote_count",
)

points = Counter(
    "points",
    source="composite_owners.Vote",
    owner=["shop", "item", "stars"],
    condition=Q(hidden=False),
    sum="weighted",  # a generated column
    totals="composite_owners.VoteCount",
    field="points",
)

COUNTERS = (alerts, unseen_by_app, unread_by_app, votes, points)
