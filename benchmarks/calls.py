"""Counts the calls of the app's functions, which are the same each time, however busy the machine is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from django.contrib.sessions.models import Session
from django.db import connection, transaction
from django.utils import timezone

import notifications_counter
from notifications_counter.counters import unread
from notifications_counter.models import Notification

from .bench import Report, size, table
from .rivals import Ours, fill

PACKAGE = str(Path(notifications_counter.__file__).parent)


def calls(report: Report, quick: bool) -> str:
    fill(1_000, 2, [Ours()])
    all_, rows, now = range(1, 1_001), Notification.objects, timezone.now()
    one = rows.filter(pk=rows.filter(user_id=1).values_list("pk", flat=True)[0])
    create = partial(rows.create, user_id=1, title="Hello")

    def creates() -> None:
        with transaction.atomic():
            for user in all_[:100]:
                rows.create(user_id=user, title="Hello")

    operations: dict[str, Callable[[], object]] = {
        "`count()`": partial(unread.count, 1),
        "`counts()` of 1,000 users": partial(unread.counts, all_),
        "`create()`": create,
        "100 of them in a transaction": creates,
        "`bulk_create()` for 1,000 users": lambda: rows.bulk_create(Notification(user_id=user) for user in all_),
        "`for_user().mark_as_read()`": lambda: rows.for_user(1).mark_as_read(),
        "`delete()` of an instance": lambda: rows.filter(user_id=2)[0].delete(),
        "`filter(pk=…).update(read_at=…)`": partial(one.update, read_at=now),
        "`filter(pk=…).update(title=…)`": partial(one.update, title="Bye"),
        "`update(read_at=…)` of 1,000 users": partial(rows.all().update, read_at=now),
        "`delete()` of 1,000 users' rows": lambda: rows.filter(kind="message").delete(),
        "a SELECT from a table that nobody counts": Session.objects.first,
        "an UPDATE of such a table": partial(Session.objects.update, expire_date=now),
        "`cursor.execute()`": partial(connection.cursor().execute, "SELECT 1"),
    }
    create()  # the first call fills caches
    return table(["", "calls"], [[name, size(_count(do))] for name, do in operations.items()])


def _count(do: Callable[[], Any]) -> int:
    number = 0

    def see(frame: FrameType, event: str, _: object) -> None:
        nonlocal number
        number += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    sys.setprofile(see)
    do()
    sys.setprofile(None)
    return number
