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

visible_posts = Counter(
    "visible_posts",
    source="tasks.Post",
    owner="topic",
    condition=Q(hidden=False),
    totals="tasks.TopicPostCount",
    field="visible_count",
)
