"""python -m benchmarks.retention [--rows 10000000] [--delete 1000000]: prune while a site writes, on PostgreSQL.

Prints the figures of docs/howto/retention.md. It polls pg_stat_activity for locks every few milliseconds.
"""

from __future__ import annotations

import argparse
import random
import threading
from datetime import timedelta
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from .bench import servers_for

USERS = 10_000
WRITERS = 2
DAYS = timedelta(days=100)
"""The age of the oldest row."""

FILL = """
    INSERT INTO notifications_counter_notification (user_id, kind, title, body, url, data, created_at, read_at)
    SELECT 1 + (i * 7919) %% %(users)s, 'kind', 'A notification', repeat('x', 100), '', '{}',
           now() - %(days)s * (1 - i / %(rows)s::float),
           CASE WHEN i %% 4 > 0 THEN now() END
    FROM generate_series(1::bigint, %(rows)s) AS i
"""

LOOK = """
    SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start))
                    FILTER (WHERE pid = %(pid)s AND backend_xid IS NOT NULL), 0),
           coalesce(max(extract(epoch FROM clock_timestamp() - query_start))
                    FILTER (WHERE wait_event_type = 'Lock' AND %(pid)s = ANY (pg_blocking_pids(pid))), 0)
    FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'
"""


class Traffic:
    """Threads that write like users, and note the time of each write."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write) for _ in range(WRITERS)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        from django.db import connections

        from notifications_counter.models import Notification

        while not self._stop.wait(0.02):
            user = random.randint(1, USERS)
            started = perf_counter()
            Notification.objects.create(user_id=user, title="new")
            Notification.objects.for_user(user).mark_as_read()
            self.seconds.append(perf_counter() - started)
        connections.close_all()


class Watch:
    """Watches how long the pruning holds locks, and how long others wait for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.lock = self.wait = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            while not self._stop.wait(0.005):
                cursor.execute(LOOK, {"pid": self.pid})
                lock, wait = map(float, cursor.fetchone())
                self.lock, self.wait = max(self.lock, lock), max(self.wait, wait)
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--delete", type=int, default=1_000_000, help="the oldest so many of them")
    arguments = parser.parse_args()
    with servers_for("postgresql"):
        measure(arguments.rows, arguments.delete)


def measure(rows: int, delete: int) -> None:
    from django.contrib.auth import get_user_model
    from django.db import connection

    from notifications_counter.counters import unread
    from notifications_counter.maintenance.retention import prune

    get_user_model().objects.bulk_create(get_user_model()(pk=i, username=str(i)) for i in range(1, USERS + 1))
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"rows": rows, "users": USERS, "days": DAYS})
        cursor.execute("ANALYZE")
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    unread.heal(seconds=60)
    with Traffic() as before:
        threading.Event().wait(20)
    with Traffic() as during, Watch(pid) as watch:
        pruned = prune(DAYS * (1 - delete / rows))
    unread.heal(seconds=60)
    unread.flush()
    wrong = unread.recount(dry_run=True).wrong
    print(f"{rows:,} rows, {USERS:,} users, {WRITERS} writers")
    print(
        f"deleted {pruned.deleted:,} in {pruned.seconds:,.0f} s: {pruned.deleted / pruned.seconds:,.0f} rows a second"
    )
    print(f"left {pruned.in_use:,} that were in use; {wrong} counts wrong")
    print(f"locks held for at most {ms(watch.lock)}, longest wait of another for them {ms(watch.wait)}")
    for name, traffic in ("before", before), ("meanwhile", during):
        p99 = quantiles(traffic.seconds, n=100)[98]
        print(f"a notification and a mark_as_read() {name}: median {ms(median(traffic.seconds))}, 99 % {ms(p99)}")


def ms(seconds: Any) -> str:
    return f"{seconds * 1000:,.1f} ms"


if __name__ == "__main__":
    main()
