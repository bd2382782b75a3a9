"""Bystanders: users whose rows nobody changes. They make a recovery long, and every read of theirs has one answer."""

from collections.abc import Sequence
from typing import Any

from django.contrib.auth import get_user_model

from notifications_counter.counters import unread
from notifications_counter.models import Notification, UserNotificationsCount

from .database import run
from .tenants import current

ROWS = 2
"""Unread rows of each."""
AT_ONCE = 10_000


def make_bystanders(number: int) -> Sequence[Any]:
    """Create them, with rows that nobody has counted yet. Returns their primary keys."""
    if not number:
        return []
    model = get_user_model()
    for first in range(0, number, AT_ONCE):
        model.objects.bulk_create(model(username=f"bystander {n}") for n in range(first, min(first + AT_ONCE, number)))
    table, users = Notification._meta.db_table, model._meta.db_table
    for _ in range(ROWS):
        run(
            f"INSERT INTO {table} (user_id, kind, title, body, url, data, created_at)"
            f" SELECT id, '', 'x', '', '', '{{}}', CURRENT_TIMESTAMP FROM {users} WHERE username LIKE 'bystander %'"
        )
    if current().vendor == "postgresql":
        run("ANALYZE")
    return list(model.objects.filter(username__startswith="bystander").values_list("pk", flat=True))


def wrong_bystanders(users: Sequence[Any]) -> list[str]:
    """What is wrong with their counts, and with their totals."""
    wrong = []
    for first in range(0, len(users), AT_ONCE):
        some = users[first : first + AT_ONCE]
        stored = UserNotificationsCount.objects.filter(pk__in=some).values_list("pk", "unread_count")
        for what, numbers in {"counts": unread.counts(some), "stored": dict(stored)}.items():
            wrong += [f"bystander {u}: {what} {numbers.get(u)}, rows {ROWS}" for u in some if numbers.get(u) != ROWS]
    return wrong
