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

OF_APPS = {
    "source": "composite_owners.CourseNotification",
    "owner": ("user", "app_name"),
    "totals": "composite_owners.AppCount",
}
unseen_by_app = Counter("unseen_by_app", **OF_APPS, condition=Q(last_seen__isnull=True), field="unseen_count")
unread_by_app = Counter("unread_by_app", **OF_APPS, condition=Q(last_read__isnull=True), field="unread_count")

OF_VOTES = {
    "source": "composite_owners.Vote",
    "owner": ["shop", "item", "stars"],
    "condition": Q(hidden=False),
    "totals": "composite_owners.VoteCount",
}
votes = Counter("votes", **OF_VOTES, field="vote_count")
points = Counter("points", **OF_VOTES, sum="weighted", field="points")  # a generated column
