from django.db.models import Q

from notifications_counter.counters import Counter

OPEN = {"source": "statements.Ticket", "owner": "agent", "condition": Q(closed=False), "totals": "statements.OpenCount"}
open_tickets = Counter("open_tickets", **OPEN, field="open_count")
open_points = Counter("open_points", **OPEN, sum="priority", field="open_points")

urgent_tickets = Counter(
    "urgent_tickets",
    source="statements.Ticket",
    owner="agent",
    condition=Q(closed=False, due__isnull=True),
    totals="statements.UrgentCount",
    field="urgent_count",
)

new_tickets = Counter(
    "new_tickets",
    source="statements.Ticket",
    owner="queue",
    condition=Q(priority=2) | Q(state="new"),  # with OR, only the database can say
    totals="statements.NewCount",
    field="new_count",
)

watched_weight = Counter(
    "watched_weight",
    source="statements.Watch",
    owner="agent",
    condition=Q(),
    sum="weight",
    totals="statements.WatchCount",
    field="weight",
)

COUNTERS = (open_tickets, urgent_tickets, new_tickets, open_points, watched_weight)
