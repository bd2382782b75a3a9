"""python -m benchmarks.core [--quick]: what counting costs, as ratios to what a site could do instead.

Writes are compared with PlainNotification, a model with the same columns and indexes that nobody counts.
"""

import argparse
import subprocess
import sys
from functools import partial
from itertools import cycle, islice

from .bench import Result, compare, machine, stage, table

USERS = 1000
EACH = 100  # notifications of a user; 0 to 100 of them are unread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer users; noisier figures")
    parser.add_argument("--only", default="", help="only benchmarks whose function's name contains this")
    arguments = parser.parse_args()
    with stage():
        seed()
        rows = []
        for benchmark in (count, counts, create, bulk_create, saves, flush, recipe, memory, delete):
            if arguments.only in benchmark.__name__:
                rows += [r.row() if isinstance(r, Result) else r for r in benchmark(arguments.quick)]
        print("", machine(), "", table(rows), sep="\n")


# ------------------------------------------------------------------- fixtures
def sql(statement: str, *params: object) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, params or None)


def names() -> tuple[str, str, str]:
    """The tables of notifications, plain notifications and totals."""
    from notifications_counter.models import Notification, UserNotificationsCount

    from .models import PlainNotification

    return tuple(m._meta.db_table for m in (Notification, PlainNotification, UserNotificationsCount))  # type: ignore


def seed() -> None:
    """Users 1 … USERS with EACH notifications, counted and plain, all of them warm in Redis."""
    sql(
        "INSERT INTO auth_user (id, username, password, first_name, last_name, email, is_superuser, is_staff,"
        " is_active, date_joined) SELECT n, 'user' || n, '', '', '', '', false, false, true, now()"
        " FROM generate_series(1, %s) n",
        USERS,
    )
    for name in names()[:2]:
        sql(
            f"INSERT INTO {name} (user_id, kind, title, body, url, data, created_at, read_at)"
            " SELECT u, 'message', 'Hello', '', '', '{}', now() - n * interval '1 minute',"
            " CASE WHEN n > u %% 101 THEN now() END FROM generate_series(1, %s) n, generate_series(1, %s) u",
            EACH,
            USERS,
        )
    sql("VACUUM ANALYZE")
    settle()


def settle() -> None:
    """Recount what was changed behind the app's back, flush it, and fill the cache, all of it a while ago."""
    from notifications_counter.counters import unread

    unread.heal(seconds=600)
    unread.recount(range(1, USERS + 1))
    unread.flush()
    unread.counts(range(1, USERS + 1))
    for buffer in unread.buffers:  # the leases of a recount would last for another minute
        buffer.client.redis.hdel(buffer.keys.state, "leased_until")


def fields(user: int) -> dict[str, object]:
    return {"user_id": user, "kind": "message", "title": "Hello", "body": "World"}


def fill(users: int) -> None:
    """What waits for this many users, as commits would have left it."""
    from notifications_counter.counters import unread

    (buffer,) = unread.buffers
    pipeline = buffer.client.redis.pipeline(transaction=False)
    for first in range(1, users + 1, 10_000):
        last = min(first + 9999, users)
        pipeline.zadd(buffer.keys.pending, {str(user): user % 7 - 3 or 4 for user in range(first, last + 1)})
    pipeline.execute()


# ---------------------------------------------------------------------- reads
def count(quick: bool) -> list[Result]:
    from django.contrib.auth.models import User

    from notifications_counter.counters import unread
    from notifications_counter.models import Notification

    get = _bare_client().get
    users = cycle(User.objects.in_bulk(range(1, USERS + 1)).values())
    keys = cycle(_keys())
    calls, rounds = 300, 12 if quick else 60

    def ours() -> None:
        for user in islice(users, calls):
            unread.count(user)

    def bare() -> None:
        for key in islice(keys, calls):
            get(key)

    def rows() -> None:
        for user in islice(users, calls):
            Notification.objects.filter(user=user, read_at=None).count()

    units = (calls, calls)
    return [
        compare("count(), warm ÷ redis-py GET", "≤ 1.1", ours, bare, rounds=rounds, units=units),
        compare("COUNT(*) of 0–100 unread ÷ count()", "≥ 4", ours, rows, rounds=rounds, units=units, faster=True),
    ]


def counts(quick: bool) -> list[Result]:
    from notifications_counter.counters import unread

    users, mget, keys = list(range(1, USERS + 1)), _bare_client().mget, _keys()
    calls, rounds = 10, 12 if quick else 60

    def ours() -> None:
        for _ in range(calls):
            unread.counts(users)

    def bare() -> None:
        for _ in range(calls):
            mget(keys)

    name = f"counts() of {USERS:,} users, warm ÷ MGET"
    return [compare(name, "≤ 1.7", ours, bare, rounds=rounds, units=(calls, calls))]


def _bare_client():
    from django.conf import settings
    from redis import Redis

    return Redis.from_url(settings.CACHES["default"]["LOCATION"])


def _keys() -> list[str]:
    """Cached totals under keys as long as ours."""
    keys = [f"{{nc:plain:0}}:total:1:{user}" for user in range(1, USERS + 1)]
    _bare_client().mset(dict.fromkeys(keys, 50))
    return keys


# --------------------------------------------------------------------- writes
def create(quick: bool) -> list[Result]:
    from notifications_counter.models import Notification

    from .models import PlainNotification

    calls, rounds, users = 200, 10 if quick else 40, cycle(range(1, USERS + 1))

    def do(model) -> None:
        for user in islice(users, calls):
            model.objects.create(**fields(user))

    return [_counted("create() ÷ uncounted", "≤ 1.55", do, rounds, calls, Notification, PlainNotification)]


def bulk_create(quick: bool) -> list[Result]:
    from notifications_counter.models import Notification

    from .models import PlainNotification

    def do(model) -> None:
        model.objects.bulk_create([model(**fields(user)) for user in range(1, USERS + 1)])

    name = f"bulk_create() of {USERS:,}, each for another user ÷ uncounted"
    return [_counted(name, "≤ 1.15", do, 10 if quick else 40, 1, Notification, PlainNotification)]


def saves(quick: bool) -> list[Result]:
    from django.db import transaction

    from notifications_counter.models import Notification

    from .models import PlainNotification

    def do(model) -> None:
        with transaction.atomic():
            for user in range(1, 501):
                model(**fields(user)).save()

    name = "500 saves for 500 users in one transaction ÷ uncounted"
    return [_counted(name, "≤ 1.2", do, 10 if quick else 40, 500, Notification, PlainNotification)]


def _counted(name, target, do, rounds, units, counted, plain) -> Result:
    result = compare(name, target, partial(do, counted), partial(do, plain), rounds=rounds, units=(units, units))
    settle()
    return result


# ---------------------------------------------------------------------- flush
def flush(quick: bool) -> list[Result]:
    from notifications_counter.counters import unread

    users, totals = 50_000 if quick else 200_000, names()[2]
    _store(users)

    def prepare() -> None:
        sql(f"VACUUM {totals}")
        fill(users)

    def ours() -> None:
        assert unread.flush().users == users

    def update() -> None:
        sql(f"UPDATE {totals} SET unread_count = unread_count + 1")

    return [
        compare(
            f"flush() of {users:,} users: its rate ÷ that of one UPDATE of all rows",
            "≥ 0.5",
            ours,
            update,
            rounds=5 if quick else 9,
            units=(users, users),
            unit="a user",
            faster=True,
            prepare=prepare,
        )  # fmt: skip
    ]


def recipe(quick: bool) -> list[Result]:
    from django.db.models import F

    from notifications_counter.counters import unread
    from notifications_counter.models import UserNotificationsCount

    users, few, totals = 50_000 if quick else 200_000, 2000, names()[2]
    _store(users)
    client, key = _bare_client(), "recipe"

    def prepare() -> None:
        sql(f"VACUUM {totals}")
        fill(users)
        client.zadd(key, {str(user): 1 for user in range(1, few + 1)})

    def ours() -> None:
        assert unread.flush().users == users

    def plain() -> None:
        for user in client.zrange(key, 0, -1):
            pipeline = client.pipeline()
            pipeline.zscore(key, user)
            pipeline.zrem(key, user)
            delta, _ = pipeline.execute()
            UserNotificationsCount.objects.filter(pk=int(user)).update(unread_count=F("unread_count") + int(delta))

    return [
        compare(
            f"flush() of {users:,} users: its rate ÷ that of the plain recipe on {few:,}",
            "≥ 90",
            ours,
            plain,
            rounds=5 if quick else 9,
            units=(users, few),
            unit="a user",
            faster=True,
            prepare=prepare,
        )  # fmt: skip
    ]


def memory(quick: bool) -> list[tuple[str, ...]]:
    """Peak memory of flushers, each a fresh process."""
    from notifications_counter.counters import unread

    small, large = 10_000, 100_000 if quick else 1_000_000
    peaks = {}
    unread.flush()
    for users in (small, large):
        found = []
        for _ in range(1 if users == large else 3):
            fill(users)
            command = [sys.executable, "-m", f"{__package__}.flush_memory"]
            flushed, peak = map(int, subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.split())
            assert flushed == users
            found.append(peak / 1024)
        peaks[users] = sum(found) / len(found)
    name = f"peak memory of a flush of {large:,} users − of one of {small:,}"
    print(f"{name}: {peaks[large] - peaks[small]:.1f} MiB", flush=True)
    sides = f"{peaks[large]:.1f} MiB : {peaks[small]:.1f} MiB"
    return [(name, f"{peaks[large] - peaks[small]:.1f} MiB", "≤ 10 MiB", "", sides)]


def _store(users: int) -> None:
    """Exactly this many stored totals."""
    totals = names()[2]
    sql(f"TRUNCATE {totals}")
    sql(
        f"INSERT INTO {totals} (user_id, unread_count, flushed_batch, updated_at)"
        " SELECT n, 50, 0, now() FROM generate_series(1, %s) n",
        users,
    )
    sql("VACUUM ANALYZE")


# ------------------------------------------------------------------- deletion
def delete(quick: bool) -> list[Result]:
    from notifications_counter.models import Notification

    from .models import PlainNotification

    rows = 10_000 if quick else 50_000
    users = USERS // 2

    def prepare() -> None:
        for name in names()[:2]:
            sql(f"DELETE FROM {name} WHERE kind = 'old'")
            sql(f"VACUUM {name}")
            sql(
                f"INSERT INTO {name} (user_id, kind, title, body, url, data, created_at, read_at)"
                " SELECT u, 'old', 'Hello', 'World', '', '{}', now(), CASE WHEN n %% 2 = 0 THEN now() END"
                " FROM generate_series(1, %s) n, generate_series(1, %s) u",
                rows // users,
                users,
            )
        settle()

    def do(model) -> None:
        assert model.objects.filter(kind="old").delete()[0] == rows

    return [
        compare(
            f"QuerySet.delete() of {rows:,} rows ÷ uncounted",
            "≤ 20",
            partial(do, Notification),
            partial(do, PlainNotification),
            rounds=3 if quick else 5,
            prepare=prepare,
        )  # fmt: skip
    ]


if __name__ == "__main__":
    main()
