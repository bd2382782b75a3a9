from django.db.models import Q

from notifications_counter.counters import Counter

open_tasks = Counter(
    "open_tasks",
    source="tasks.Task",
    owner="project",
    condition=Q(done=False),
    totals="tasks.ProjectTaskCount",
    field="open_count",
)

sent_transfers = Counter(
    "sent_transfers",
    source="tasks.Transfer",
    owner="sender",
    condition=Q(),
    totals="tasks.SenderCount",
    field="sent_count",
)

open_transfers = Counter(
    "open_transfers",
    source="tasks.Transfer",
    owner="receiver",
    condition=Q(state="open"),
    totals="tasks.ReceiverCount",
    field="received_count",
)

OF_ISSUES = {"source": "tasks.Issue", "owner": "project", "totals": "tasks.ProjectIssueCount"}
open_issues = Counter("open_issues", **OF_ISSUES, condition=Q(closed=False), field="open_count")
urgent_issues = Counter("urgent_issues", **OF_ISSUES, condition=Q(closed=False, urgent=True), field="urgent_count")

visible_posts = Counter(
    "visible_posts",
    source="tasks.Post",
    owner="topic",
    condition=Q(hidden=False),
    totals="tasks.TopicPostCount",
    field="visible_count",
)
