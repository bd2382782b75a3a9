"""Measures the path of a write and of a read: instructions of the processor, and calls of the app's functions.

Callgrind counts the instructions of the Python process, without servers and kernel. Unlike seconds, they are nearly the
same each time, however busy the machine is.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import django
from django.apps import apps
from django.db import connection, transaction
from django.utils import timezone
from django_redis import get_redis_connection

import servers

from .bench import Report, number, say, size, table

SITES = {"without the app": [""], "not counted": ["", "Notification"], "counted": ["", "Notification", "Counter"]}
"""The needs of operations that run at each site. The second site has the model of the third, but its counter is off."""

PATIENT = {"READ_TIMEOUT": 600, "WRITE_TIMEOUT": 600}  # callgrind takes fifty times as long
SETUP = "`django.setup()`"
USERS = 1_000
PACKAGE = str(Path(__file__).resolve().parent.parent / "notifications_counter")


class Operation(NamedTuple):
    """``prepare`` returns the measured function. It needs a model or, as "Counter", a counter of it."""

    name: str
    prepare: Callable[[], Callable[[], object]]
    needs: str = "Notification"
    in_transaction: bool = False
    warm: int = 10  # calls before the measured one, to fill caches and specialize bytecode


def notification() -> Any:
    return apps.get_model("notifications_counter", "Notification")


def session() -> Any:
    return apps.get_model("sessions", "Session").objects.filter(pk="one")


def filled(rows: int, owners: int) -> Any:
    """Return all notifications, after creating this number of unread ones."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM notifications_counter_notification")
        cursor.execute(
            "INSERT INTO notifications_counter_notification (user_id, kind, title, body, url, data, created_at)"
            " SELECT 1 + i %% %s, 'message', 'Hello', '', '', '{}', now() FROM generate_series(1, %s) i",
            (owners, rows),
        )
    return notification().objects.all()


def update_one(**values: object) -> Callable[[], object]:
    key = filled(1, 1).get().pk
    return lambda: notification().objects.filter(pk=key).update(**values)


def create(user: int = 1) -> None:
    notification().objects.create(user_id=user, title="Hello")


def creates() -> None:
    with transaction.atomic():
        for user in range(1, 101):
            create(user)


def bulk_create() -> Callable[[], object]:
    model = notification()
    return partial(model.objects.bulk_create, [model(user_id=1 + i, title="Hello") for i in range(USERS)])


def mark_as_read() -> Callable[[], object]:
    rows = filled(1, 1)
    return lambda: rows.for_user(1).mark_as_read()


def execute(*, write: bool = False) -> Callable[[], object]:
    cursor = connection.cursor()
    if write:
        create()
    return partial(cursor.execute, "SELECT 1")


def unread() -> Any:
    from notifications_counter.counters import unread

    return unread


def read(users: int) -> Callable[[], object]:
    """Return a read of counts or, where nothing is counted, of as many texts by redis-py."""
    if unread().is_on:
        return partial(unread().count, 1) if users == 1 else partial(unread().counts, range(1, users + 1))
    redis: Any = get_redis_connection("default")
    keys = [f"{{nc:plain:0}}:total:1:{user}" for user in range(1, users + 1)]
    redis.mset(dict.fromkeys(keys, 5))
    return partial(redis.get, keys[0]) if users == 1 else partial(redis.mget, keys)


OPERATIONS = [
    # Reads come first: the rows of the others are inserted uncounted, so counts fall below zero.
    Operation("`count()` ÷ redis-py's `GET`", lambda: read(1)),
    Operation("`counts()` of 1,000 users ÷ `MGET`", lambda: read(USERS)),
    Operation("`create()`", lambda: create),
    Operation("100 of them in a transaction", lambda: creates, warm=1),
    Operation("`bulk_create()` for 1,000 users", bulk_create, warm=1),
    Operation("`for_user().mark_as_read()`", mark_as_read),
    Operation("`delete()` of an instance", lambda: filled(1, 1).get().delete),
    Operation(
        "`delete()` of 10,000 rows of 500 users", lambda: filled(10_000, 500).filter(kind="message").delete, warm=1
    ),
    Operation("`filter(pk=…).update(read_at=…)`", lambda: update_one(read_at=timezone.now())),
    Operation(
        "`update(read_at=…)` of 1,000 users",
        lambda: partial(filled(USERS, USERS).update, read_at=timezone.now()),
        warm=1,
    ),
    Operation("`filter(pk=…).update(title=…)`", lambda: update_one(title="Bye")),
    Operation("a SELECT from a table that nobody counts", lambda: session().first, needs=""),
    Operation("an UPDATE of such a table", lambda: partial(session().update, expire_date=timezone.now()), needs=""),
    Operation("`cursor.execute()`", execute, needs=""),
    Operation("… after a `create()` in its transaction", partial(execute, write=True), in_transaction=True),
]


def instructions(report: Report, quick: bool) -> str:
    """Measure each operation at three sites."""
    from .rivals import empty, settle, users

    if not (valgrind := servers.system_program("valgrind")):
        return "Not measured in this run: no valgrind."
    found: dict[str, dict[str, tuple[int, int, int]]] = {}
    for site in SITES:
        empty()
        users(USERS)
        settle(range(1, USERS + 1))
        for name, figures in of_site(site, valgrind).items():
            found.setdefault(name, {})[site] = figures
        (state,) = unread().status()
        assert not state.status.dirty, state  # every write took the usual path
        say(f"instructions, {site}")
    lines = []
    for name in (SETUP, *(operation.name for operation in OPERATIONS)):
        counts = [found[name][site][0] if site in found[name] else 0 for site in SITES]
        base = next(filter(None, counts))
        ratio = number(counts[-1] / base) if base != counts[-1] else ""
        lines.append([name, ratio, size(found[name]["counted"][1])])
    return table(["", "instructions ÷ uncounted", "calls of functions"], lines)


def of_site(site: str, valgrind: Path | str) -> dict[str, tuple[int, int, int]]:
    """Return by operation: instructions, calls of the app's functions, and the number of their files."""
    with servers.temporary_directory() as directory:
        callgrind = [str(valgrind), "--tool=callgrind", f"--callgrind-out-file={directory}/dump"]
        done = subprocess.run(
            servers.dies_with_parent(
                [*callgrind, "--dump-before=os_sched_yield", sys.executable, "-m", "benchmarks.instructions", site]
            ),
            env={
                **os.environ,
                "PYTHONHASHSEED": "0",
                "BENCHMARK_APPS": "notifications_counter" if "Notification" in SITES[site] else "",
                "BENCHMARK_OPTIONS": json.dumps(PATIENT),
            },
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-3_000:])
        called = json.loads(done.stdout)
        totals = {
            name: re.search(r"^totals: (\d+)", (directory / f"dump.{2 * i + 2}").read_text(), re.MULTILINE)
            for i, name in enumerate(called)
        }
    assert all(totals.values()), totals
    return {name: (int(totals[name][1]), *called[name]) for name in called}  # type: ignore[index]


def main(site: str) -> None:
    """Run under callgrind. Each call of sched_yield() begins a dump."""
    gc.disable()
    os.sched_yield()
    django.setup()
    os.sched_yield()
    modules = [name for name in sys.modules if name.partition(".")[0] == "notifications_counter"]
    called = {SETUP: (0, len(modules))}
    if site == "not counted":
        unread()._switch(False)
    elif site == "counted":
        from notifications_counter.buffer import connections

        connections.FRESH_SECONDS *= 50  # as PATIENT
    for operation in OPERATIONS:
        if operation.needs not in SITES[site]:
            continue
        for turn in range(operation.warm + 2):
            with transaction.atomic() if operation.in_transaction else nullcontext():
                do = operation.prepare()
                if turn < operation.warm:
                    do()
                elif turn == operation.warm:
                    os.sched_yield()
                    do()
                    os.sched_yield()
                else:
                    called[operation.name] = calls(do)
    print(json.dumps(called))


def calls(do: Callable[[], object]) -> tuple[int, int]:
    """Return the calls of the app's functions, and the number of their files."""
    files: list[str] = []

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.append(frame.f_code.co_filename)

    sys.setprofile(see)
    do()
    sys.setprofile(None)
    return len(files), len(set(files))


if __name__ == "__main__":
    main(sys.argv[1])
