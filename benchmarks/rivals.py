"""The alternatives to this app, each in its best form, with the same operations.

``fill`` creates users with unread rows. ``read`` returns the number in a badge. ``create`` creates one notification,
and ``fan_out`` one for each of many users. ``mark`` marks one as read or as unread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone
from redis import Redis

from notifications_counter.counters import unread
from notifications_counter.models import Notification

from . import models
from .bench import OURS

CAP = 100
"""The largest number that a capped count returns."""

PART = 10_000
"""Rows or users in a call."""

redis = Redis.from_url(settings.CACHES["default"]["LOCATION"], decode_responses=True)


def sql(statement: str, *params: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params or None)


def quoted(model: Any) -> str:
    return connection.ops.quote_name(model._meta.db_table)


NUMBERS = "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {})"


def empty() -> None:
    """Delete all rows and keys, and heal the counters."""
    call_command("flush", verbosity=0, interactive=False)
    redis.flushall()
    unread.heal(seconds=600)


def vacuum(*tables: Any) -> None:
    """Update statistics, as autovacuum does after a while, and remove dead rows."""
    how = {"mysql": "ANALYZE TABLE {}", "postgresql": "VACUUM ANALYZE {}"}.get(connection.vendor, "ANALYZE {}")
    for model in tables:
        sql(how.format(quoted(model)))


def users(number: int) -> None:
    """Create users 1 … number."""
    numbers(number)
    name = {"mysql": "CONCAT('user', i)"}.get(connection.vendor, "'user' || i")
    sql(
        "INSERT INTO auth_user (id, username, password, first_name, last_name, email, is_superuser, is_staff,"
        f" is_active, date_joined) {NUMBERS.format(number)} SELECT i + 1, {name}, '', '', '', '', false, false, true,"
        " CURRENT_TIMESTAMP FROM n"
    )
    vacuum(models.RowCount)


def numbers(most: int) -> None:
    if connection.vendor == "mysql":
        name = "max_recursive_iterations" if connection.mysql_is_mariadb else "cte_max_recursion_depth"
        sql(f"SET SESSION {name} = {most + 1}")


def rows(model: Any, users: int, each: int, first: int = 1) -> None:
    """Create unread rows of users, from the ``first`` on: one for each in turn, ``each`` times."""
    numbers(users * each)
    if users * each:
        sql(
            f"INSERT INTO {quoted(model)} (user_id, kind, title, body, url, data, created_at) "
            f"{NUMBERS.format(users * each)} SELECT {first} + i % {users}, 'message', 'Hello', 'World', '', '{{}}',"
            " CURRENT_TIMESTAMP FROM n"
        )


class Rival:
    """No counter: a badge counts the rows."""

    name = "not counted"
    model: Any = models.PlainNotification
    totals: Any = None
    is_filled = False
    """Whether another rival fills its tables."""

    def fields(self, user: int) -> dict[str, Any]:
        return {"user_id": user, "kind": "message", "title": "Hello", "body": "World"}

    def fill(self, users: int, each: int, first: int = 1) -> None:
        if self.is_filled:
            return
        rows(self.model, users, each, first)
        if self.totals:
            self.store(users, each, first)
        vacuum(*filter(None, (self.model, self.totals)))

    def store(self, users: int, each: int, first: int) -> None:
        """Store the totals of the filled rows."""
        totals = (self.totals(user_id=user, unread_count=each) for user in range(first, first + users))
        self.totals.objects.bulk_create(totals, batch_size=PART)

    def read(self, user: int) -> int:
        return self.model.objects.filter(user_id=user, read_at=None).count()

    def create(self, user: int) -> None:
        self.model.objects.create(**self.fields(user))

    def fan_out(self, users: Sequence[int]) -> None:
        self.model.objects.bulk_create([self.model(**self.fields(user)) for user in users])

    def mark(self, user: int, row: int, is_read: bool) -> int:
        changed = self.model.objects.filter(pk=row, read_at__isnull=is_read)
        return changed.update(read_at=timezone.now() if is_read else None)


class Ours(Rival):
    name = OURS
    model = Notification

    def fill(self, users: int, each: int, first: int = 1) -> None:
        """Recount the rows, flush, and fill the cache, as if that were long ago."""
        super().fill(users, each, first)
        them = range(first, first + users)
        unread.recount(None if users > PART else them)
        unread.flush()
        for i in range(0, users, PART):
            unread.counts(them[i : i + PART])
        vacuum(unread.totals)

    def read(self, user: int) -> int:
        return unread.count(user)

    def mark(self, user: int, row: int, is_read: bool) -> int:
        rows = Notification.objects.for_user(user).filter(pk=row)
        return rows.mark_as_read() if is_read else rows.mark_as_unread()


def touch(users: int) -> None:
    """Create a row for each of this many users, so that all wait for a flush."""
    for i in range(0, users, PART):
        some = range(i + 1, min(i + PART, users) + 1)
        Notification.objects.bulk_create([Notification(user_id=user, title="Hello") for user in some])


class CountStar(Rival):
    name = "`COUNT(*)`"

    def __init__(self) -> None:
        self.model = models.PlainNotification if connection.vendor == "mysql" else models.PartialNotification


class CountSql(CountStar):
    """The same rows, without what the ORM costs."""

    is_filled = True

    def __init__(self) -> None:
        super().__init__()
        self.name += ", cursor"
        self.statement = f"SELECT COUNT(*) FROM {quoted(self.model)} WHERE user_id = %s AND read_at IS NULL"

    def read(self, user: int) -> int:
        with connection.cursor() as cursor:
            cursor.execute(self.statement, (user,))
            return cursor.fetchone()[0]


class CappedCount(CountStar):
    """A count for badges such as 99+."""

    is_filled = True

    def __init__(self) -> None:
        super().__init__()
        self.name = f"`COUNT(*)` over `LIMIT {CAP}`"

    def read(self, user: int) -> int:
        return self.model.objects.filter(user_id=user, read_at=None)[:CAP].count()


class CounterRow(Rival):
    name = "a counter row"
    model = models.RowNotification
    totals = models.RowCount

    def read(self, user: int) -> int:
        return self.totals.objects.values_list("unread_count", flat=True).get(pk=user)

    def create(self, user: int) -> None:
        with transaction.atomic():
            super().create(user)
            self.totals.objects.filter(pk=user).update(unread_count=F("unread_count") + 1)

    def fan_out(self, users: Sequence[int]) -> None:
        with transaction.atomic():
            super().fan_out(users)
            self.totals.objects.filter(pk__in=users).update(unread_count=F("unread_count") + 1)

    def mark(self, user: int, row: int, is_read: bool) -> int:
        with transaction.atomic():
            changed = super().mark(user, row, is_read)
            added = -changed if is_read else changed
            self.totals.objects.filter(pk=user).update(unread_count=F("unread_count") + added)
        return changed


class RowSql(CounterRow):
    """The same rows, without what the ORM costs."""

    name = "a counter row, cursor"
    is_filled = True

    def read(self, user: int) -> int:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT unread_count FROM {quoted(self.totals)} WHERE user_id = %s", (user,))
            return cursor.fetchone()[0]


class Trigger(Rival):
    """A trigger that counts the rows of a statement at once. PostgreSQL only."""

    name = "a trigger"
    model = models.TriggerNotification
    totals = models.TriggerCount

    def __init__(self) -> None:
        rows, name = quoted(self.model), self.model._meta.model_name
        new = "SELECT user_id, 1 AS d FROM new_rows WHERE read_at IS NULL"
        old = "SELECT user_id, -1 FROM old_rows WHERE read_at IS NULL"
        for event, tables, changed in (
            ("insert", "NEW TABLE AS new_rows", new),
            ("update", "OLD TABLE AS old_rows NEW TABLE AS new_rows", f"{new} UNION ALL {old}"),
        ):
            deltas = f"SELECT user_id, sum(d) FROM ({changed}) AS changed GROUP BY user_id HAVING sum(d) <> 0"
            sql(
                f"CREATE OR REPLACE FUNCTION {name}_{event}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                f" {self.add(f'{deltas} ORDER BY user_id')}; RETURN NULL; END $$"
            )
            sql(
                f"CREATE OR REPLACE TRIGGER {name}_{event} AFTER {event} ON {rows} REFERENCING {tables}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION {name}_{event}()"
            )

    def add(self, deltas: str) -> str:
        """Return the statement that adds these deltas."""
        counts = quoted(self.totals)
        total = f"{counts}.unread_count + excluded.unread_count"
        insert = f"INSERT INTO {counts} (user_id, unread_count) {deltas}"
        return f"{insert} ON CONFLICT (user_id) DO UPDATE SET unread_count = {total}"

    read = CounterRow.read

    def store(self, users: int, each: int, first: int) -> None:
        """The trigger has."""
        if not each:
            super().store(users, each, first)


class Change(Trigger):
    """A trigger appends deltas, so that writers do not wait for each other; a badge adds up those of the user; a job
    squashes them into totals."""

    name = "append-only deltas"
    model = models.DeltaNotification
    totals = models.DeltaCount

    def add(self, deltas: str) -> str:
        return f"INSERT INTO {quoted(models.Delta)} (user_id, delta) {deltas}"

    def read(self, user: int) -> int:
        with connection.cursor() as cursor:
            total = f"SELECT unread_count FROM {quoted(self.totals)} WHERE user_id = %s"
            deltas = f"SELECT SUM(delta) FROM {quoted(models.Delta)} WHERE user_id = %s"
            cursor.execute(f"SELECT COALESCE(({total}), 0) + COALESCE(({deltas}), 0)", (user, user))
            return int(cursor.fetchone()[0])

    def store(self, users: int, each: int, first: int) -> None:
        super().store(users, each, first)
        self.squash()
        vacuum(models.Delta)

    def squash(self) -> None:
        """Add all deltas to the totals, in one transaction."""
        with transaction.atomic():
            last = models.Delta.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
            summed = f"SELECT user_id, SUM(delta) FROM {quoted(models.Delta)} WHERE id <= {last} GROUP BY user_id"
            sql(super().add(f"{summed} ORDER BY user_id"))
            models.Delta.objects.filter(pk__lte=last).delete()


class Recipe(Rival):
    """ZINCRBY after the commit; a badge adds the stored total. A process killed in between leaves a wrong count."""

    name = "`ZINCRBY`"
    model = models.RecipeNotification
    totals = models.RecipeCount
    key = "recipe"

    def read(self, user: int) -> int:
        waiting: Any = redis.zscore(self.key, str(user))
        return int(waiting or 0) + self.totals.objects.values_list("unread_count", flat=True).get(pk=user)

    def create(self, user: int) -> None:
        super().create(user)
        redis.zincrby(self.key, 1, str(user))

    def fan_out(self, users: Sequence[int]) -> None:
        super().fan_out(users)
        pipeline = redis.pipeline(transaction=False)
        for user in users:
            pipeline.zincrby(self.key, 1, str(user))
        pipeline.execute()


def readers() -> list[Rival]:
    return [Ours(), CountStar(), CountSql(), CappedCount(), CounterRow(), RowSql(), Change(), Recipe()]


def writers() -> list[Rival]:
    return [Ours(), CountStar(), CounterRow(), Trigger(), Change(), Recipe()]


def fill(number: int, each: int, rivals: Sequence[Rival]) -> Sequence[Rival]:
    """Have only this many users, each with as many unread rows at each rival."""
    empty()
    users(number)
    for rival in rivals:
        rival.fill(number, each)
    return rivals


def agree(rivals: Sequence[Rival], number: int) -> None:
    """Check that no rival was fast by being wrong: each returns COUNT(*) of its own rows for fifty of ``number``
    users."""
    for rival in rivals:
        for user in range(1, number + 1, math.ceil(number / 50)):
            shown, right = rival.read(user), Rival.read(rival, user)
            right = min(right, CAP) if isinstance(rival, CappedCount) else right
            assert shown == right, f"{rival.name}: the badge of user {user} shows {shown}, and {right} rows are unread"
