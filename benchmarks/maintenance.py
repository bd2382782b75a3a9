"""Measures flush, recount and recovery by the number of users, and the memory of the flusher and of Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import Any

from django.db import connection

from notifications_counter.counters import unread
from notifications_counter.models import Notification, UserNotificationsCount

from .bench import LIMIT, OURS, Report, exponent, number, race, size, table
from .rivals import NUMBERS, Recipe, empty, numbers, quoted, redis, rows, sql, users, vacuum

ONE_UPDATE = f"{LIMIT}one `UPDATE` of all rows"


def pending(users: int) -> None:
    """Fill `pending` for this many users, as commits would."""
    (buffer,) = unread.buffers
    pipeline = redis.pipeline(transaction=False)
    for first in range(1, users + 1, 1_000):  # managed services refuse longer commands
        last = min(first + 999, users)
        pipeline.zadd(buffer.keys.pending, {str(user): user % 7 - 3 or 4 for user in range(first, last + 1)})
    pipeline.execute()


def totals(number: int, each: int = 50) -> None:
    """Store exactly this many totals."""
    stored = quoted(UserNotificationsCount)
    numbers(number)
    sql(f"DELETE FROM {stored}")
    sql(
        f"INSERT INTO {stored} (user_id, unread_count, flushed_batch, updated_at)"
        f" {NUMBERS.format(number)} SELECT i + 1, {each}, 0, CURRENT_TIMESTAMP FROM n"
    )
    vacuum(UserNotificationsCount)


def right(flushes: int) -> None:
    """Check that this number of flushes of ``pending``, and of ``update_all``, were each added to ``totals`` once."""
    added = f"{flushes} * (1 + COALESCE(NULLIF(user_id % 7 - 3, 0), 4))"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {quoted(UserNotificationsCount)} WHERE unread_count <> 50 + {added}")
        (wrong,) = cursor.fetchone()
    assert not wrong, f"{wrong} totals are wrong after a flush"


def update_all() -> None:
    """Update all totals, which no flush can beat."""
    sql(f"UPDATE {quoted(UserNotificationsCount)} SET unread_count = unread_count + 1")


def flush(report: Report, quick: bool) -> str:
    """Measure by the number of pending users."""
    sizes = (1_000, 10_000, 50_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    recipe = Recipe()
    races = {}
    for count in sizes:
        empty()
        totals(count)

        def prepare(count: int = count) -> None:
            vacuum(UserNotificationsCount, recipe.totals)
            pending(count)
            if count == sizes[0]:
                redis.zadd(recipe.key, {str(user): 1 for user in range(1, count + 1)})

        def ours(count: int = count) -> None:
            assert unread.flush().owners == count

        does: dict[str, Any] = {OURS: ours}
        if count == sizes[0]:  # more take minutes
            recipe.store(count, 50, first=1)
            does[recipe.name] = recipe.flush
        does[ONE_UPDATE] = update_all
        rounds = 2 if count > 100_000 else 3 if quick else 6
        races[count] = race(
            does, rounds=rounds, units=count, prepare=prepare, pin=False, about=f"flush of {size(count)}"
        )
        right(rounds + 1)
        report.grew("flush, by users", count, races[count].median() * count)
    report.costs["flush"] = races[sizes[-1]].median()
    return report.matrix("flush", races, "for each user, users:", size)


def flush_memory(report: Report, quick: bool) -> str:
    """Measure the peak memory of flushers, each in a fresh process."""
    lines = []
    empty()
    for count in (1_000, 10_000, 100_000) if quick else (1_000, 10_000, 100_000, 1_000_000):
        pending(count)
        done = subprocess.run(
            [sys.executable, "-m", f"{__package__}.flush_memory"], capture_output=True, text=True, env=os.environ
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-1_000:])
        flushed, peak = map(int, done.stdout.split())
        assert flushed == count
        lines.append((size(count), peak))
    first = lines[0][1] or 1
    return table(
        ["users of the batch", "peak memory of the process", "÷ the first"],
        [[count, f"{number(peak / 1024)} MiB", number(peak / first)] for count, peak in lines],
    )


def recount(report: Report, quick: bool) -> str:
    """Measure a recount of everyone, and the recovery of an empty Redis, by the number of users with one row each."""
    sizes = (1_000, 3_000, 10_000) if quick else (10_000, 100_000, 1_000_000)
    races = {}
    for count in sizes:
        empty()
        users(count)
        rows(Notification, count, 1)
        totals(count, each=1)
        vacuum(Notification)
        unread.heal(seconds=600)

        def ours(count: int = count) -> None:
            result = unread.recount()
            assert (result.checked, result.wrong) == (count, 0), result

        def recovery(count: int = count) -> None:
            redis.flushall()
            assert unread.heal(seconds=600).checked == count

        def grouped() -> None:
            with connection.cursor() as cursor:
                cursor.execute(
                    f"SELECT user_id, COUNT(*) FROM {quoted(Notification)} WHERE read_at IS NULL GROUP BY user_id"
                )
                cursor.fetchall()

        does = {
            f"{OURS}, `recount()`": ours,
            f"{OURS}, `heal()` of an empty Redis": recovery,
            f"{LIMIT}`COUNT(*) … GROUP BY`": grouped,
        }
        large = count > 100_000
        races[count] = race(
            does, rounds=1 if large else 2, warm=not large, units=count, about=f"recount of {size(count)}"
        )
        for name, what in ((f"{OURS}, `recount()`", "recount"), (f"{OURS}, `heal()` of an empty Redis", "recovery")):
            report.grew(f"{what}, by users", count, races[count].median(name) * count)
    report.costs["recount"] = races[sizes[-1]].median(f"{OURS}, `recount()`")
    return report.matrix("recount", races, "for each user, users:", size)


def redis_memory(report: Report, quick: bool) -> str:
    """Measure the bytes of a user in Redis, by its used memory before and after."""
    count = 10_000 if quick else 100_000

    def bare_waiting() -> None:
        for first in range(0, count, 10_000):
            redis.zadd("bare", {str(user): 1 for user in range(first + 1, min(first + 10_000, count) + 1)})

    def bare_warm() -> None:
        for first in range(0, count, 10_000):
            redis.mset({f"t:{user}": 50 for user in range(first + 1, min(first + 10_000, count) + 1)})

    def warm() -> None:
        for first in range(0, count, 10_000):
            unread.counts(range(first + 1, min(first + 10_000, count) + 1))

    def used(do: Any) -> float:
        empty()
        unread.count(1)
        before: Any = redis.info("memory")
        do()
        after: Any = redis.info("memory")
        return (after["used_memory"] - before["used_memory"]) / count

    lines = []
    totals(1)
    for what, ours, bare, name in (
        ("waiting", partial(pending, count), bare_waiting, "a bare sorted set"),
        ("warm", warm, bare_warm, "a bare `SET` under a short key"),
    ):
        mine, theirs = used(ours), used(bare)
        report.costs[what] = mine
        lines.append(
            [f"a {what} user", f"{number(mine)} bytes", f"{name}: {number(theirs)} bytes", number(mine / theirs)]
        )
    return table([f"of {size(count)}", OURS, "beside it", "ours ÷ theirs"], lines)


def growth(report: Report, quick: bool) -> str:
    """Show whether the times by size are linear."""
    if not report.growth:
        raise RuntimeError("nothing was measured by size")
    report.plot("growth", "Time", "users or counters", report.growth)
    exponents = {what: exponent(times) for what, times in report.growth.items()}
    steeper = [what for what, slope in exponents.items() if slope > 1.1]
    sentence = f"Steeper than linear: {'; '.join(steeper)}." if steeper else "Each is linear, or better."
    return f"{'; '.join(f'{what}: {number(slope)}' for what, slope in exponents.items())}. {sentence}"
