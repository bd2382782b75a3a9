"""Measures what a write of one row costs, beside the same one on a table that nobody counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

from django.conf import settings
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from notifications_counter.counters import unread
from notifications_counter.models import Notification
from servers.relay import Relay

from .bench import OURS, Race, Report, race, running, say
from .models import PlainNotification
from .rivals import Ours, Rival, fill

NOW = timezone.now()
USERS = range(1, 31)
"""Each has a row that is written in a round."""

PLACES = {
    "Redis 1 ms away": (0.0, 0.001),
    "both 1 ms away": (0.001, 0.001),
}
"""The delays of the replies of PostgreSQL and Redis, in seconds."""

Write = Callable[[Any], object]
fresh: dict[Any, list[Any]] = {}
"""The rows of this round, by model."""


def save(*names: str, **values: object) -> Write:
    """Set these values, and save the row, or only the fields of these names."""

    def write(row: Any) -> None:
        vars(row).update(values)
        row.save(update_fields=names or None)

    return write


def filtered(*names: str, **values: object) -> Write:
    """Update the rows that have the same values as this one."""
    return lambda row: type(row).objects.filter(**{name: getattr(row, name) for name in names}).update(**values)


WRITES: dict[str, Write] = {
    "`create()`": lambda row: type(row).objects.create(user_id=row.user_id, kind="new"),
    "`filter(pk=…, user=…).update(read_at=…)`": filtered("pk", "user_id", read_at=NOW),
    "`filter(pk=…).update(read_at=…)`": filtered("pk", read_at=NOW),
    "`filter(pk=…).update(title=…)`": filtered("pk", title="x"),
    "`save()`": save(read_at=NOW),
    "`save()`, only the title is another": save(title="x"),
    '`save(update_fields=["read_at"])`': save("read_at", read_at=NOW),
    "`delete()` of an instance": lambda row: row.delete(),
}
IN_ATOMIC = ("`create()`", "`save()`")
"""Those that are also measured in a transaction."""


def one_row(report: Report, quick: bool) -> str:
    """Add columns to the table of all databases: for PostgreSQL several."""
    fill(len(USERS), 10, [Ours(), Rival()])
    works = WRITES | {f"{name}, in `atomic()`": transaction.atomic(WRITES[name]) for name in IN_ATOMIC}
    name = connection.display_name

    def measure(where: str, show: Callable[[Race, str], str] = Race.ratio) -> list[str]:
        say(where)
        races = [cost(work, 3 if quick else 10, about) for about, work in works.items()]
        return [show(race, OURS) for race in races]

    with_times = Race.cell if connection.vendor == "postgresql" else Race.ratio
    report.columns |= {"": [*works], name: measure(name, with_times)}
    if connection.vendor == "postgresql":
        with relayed() as (database, redis):
            for where, seconds in PLACES.items():
                database.delay, redis.delay = seconds
                report.columns[where] = measure(where)
    return ""


def cost(work: Write, rounds: int, about: str) -> Race:
    """Return its time for one row, beside the same without a counter."""
    does = {"not counted": partial(each, work, PlainNotification), OURS: partial(each, work, Notification)}
    return race(does, rounds=rounds, units=len(USERS), prepare=renew, about=about)


def each(work: Write, model: Any) -> None:
    for row in fresh[model]:
        work(row)


def renew() -> None:
    """Leave the same rows for each contestant, and their counts in the cache."""
    for model in (PlainNotification, Notification):
        model.objects.filter(kind="new").delete()
        model.objects.bulk_create(model(user_id=user, kind="new") for user in USERS)
        fresh[model] = list(model.objects.filter(kind="new"))  # with primary keys, which MySQL does not return
    unread.counts(USERS)


@contextmanager
def relayed() -> Iterator[list[Relay]]:
    """Reach the database and Redis through relays."""
    relays = [Relay(server) for server in running]
    port, (_, redis) = urlsplit(relays[0].url).port, relays
    here = {**settings.CACHES, "default": {**settings.CACHES["default"], "LOCATION": redis.url}}
    with mock.patch.dict(connection.settings_dict, PORT=port), override_settings(CACHES=here):
        connection.close()
        yield relays
    connection.close()
