"""A busy site whose flushers die: ``python -m tests.faults.traffic DIRECTORY SEED SECONDS``, in ``child_environment``.

Writers, readers, a recounter and flushers, each a process, work on all users; the flushers are killed at random
moments, and others take their places. Writers and readers leave their history in the directory.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django

WRITERS, READERS, FLUSHERS = 3, 2, 2
ENTRIES = {"FLUSH_CHUNK": 3, "HEAL_AFTER": 1, "MAX_TRANSACTION_AGE": 4, "TOTAL_TTL": 1}
# Seconds between two calls, so that nobody starves the others on few cores.
PAUSE, LONG_PAUSE = 0.002, 0.02


def fork(role: Callable[[], Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        role()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def repeat(act: Callable[[], Any], until: float, pause: float = PAUSE) -> None:
    while time.monotonic() < until:
        act()
        time.sleep(pause)


def main(directory: str, seed: str, seconds: str) -> int:
    django.setup()
    from django.conf import settings
    from django.contrib.auth import get_user_model
    from django.db import OperationalError, connections

    from notifications_counter.counters import unread

    from .actors import Reader, Writer
    from .history import History

    settings.NOTIFICATIONS_COUNTER.update(ENTRIES)
    users = list(get_user_model().objects.order_by("username").values_list("pk", flat=True))
    connections.close_all()
    until = time.monotonic() + float(seconds)

    def write(name: str) -> None:
        history, writer = History(), Writer(name, users, random.Random(f"{seed} {name}"))
        repeat(lambda: history.write(writer), until)
        history.save(Path(directory, f"{name}.json"))
        print(f"{name}: {len(history.writes)} changes, {writer.gave_up} rolled back by the database", flush=True)

    def read(name: str) -> None:
        history, reader = History(), Reader(users, random.Random(f"{seed} {name}"))
        repeat(lambda: history.read(reader), until)
        history.save(Path(directory, f"{name}.json"))
        print(f"{name}: {len(history.reads)} reads", flush=True)

    def flush() -> None:
        while True:
            try:
                unread.heal()
                unread.flush()
            except OperationalError as error:
                print(f"flusher: {error}", flush=True)
            time.sleep(LONG_PAUSE)

    chance = random.Random(seed)
    others = [fork(lambda name=f"writer{n}": write(name)) for n in range(WRITERS)]  # type: ignore[misc]
    others += [fork(lambda name=f"reader{n}": read(name)) for n in range(READERS)]  # type: ignore[misc]
    others.append(fork(lambda: repeat(lambda: unread.recount(users), until, LONG_PAUSE)))
    flushers: dict[int, float] = {}
    kills = 0
    while time.monotonic() < until:
        while len(flushers) < FLUSHERS:
            flushers[fork(flush)] = time.monotonic() + chance.uniform(0.02, 0.5)
        pid, when = min(flushers.items(), key=lambda item: item[1])
        time.sleep(max(0.0, when - time.monotonic()))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del flushers[pid]
        kills += 1
    for pid in flushers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(f"{kills} flushers killed", flush=True)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in others)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
