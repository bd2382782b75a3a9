"""A flusher that stops at a step: ``python -m tests.faults.flusher [STEP [TIMES]]``, in ``child_environment``.

It heals and flushes without end. When it comes to the step, like "before finish", for the TIMES-th time, it says so
and waits for a line on stdin; then it ends its run and exits. Without a step it goes on until a line comes.
"""

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import django

CHUNK = 2


class Steps:
    def __init__(self, wanted: str, times: int):
        self.wanted, self.left = wanted, times
        self.lock = threading.Lock()  # chunks are fetched by a thread

    def at(self, step: str) -> None:
        with self.lock:
            if step != self.wanted or self.left == 0:
                return
            self.left -= 1
            if self.left:
                return
        print(step, flush=True)
        if not sys.stdin.readline():
            os._exit(1)  # the test is dead

    def around(self, name: str, owner: Any, attribute: str) -> None:
        call: Callable[..., Any] = getattr(owner, attribute)

        @wraps(call)
        def stopping(*args: Any, **kwargs: Any) -> Any:
            self.at(f"before {name}")
            result = call(*args, **kwargs)
            self.at(f"after {name}")
            return result

        setattr(owner, attribute, stopping)


def main(wanted: str = "", times: str = "1") -> None:
    django.setup()
    from django.conf import settings
    from django.db import connection

    from notifications_counter.buffer import Buffer
    from notifications_counter.counters import unread
    from notifications_counter.flush import Flusher
    from notifications_counter.sql import dialect

    settings.NOTIFICATIONS_COUNTER["FLUSH_CHUNK"] = CHUNK
    steps = Steps(wanted, int(times))
    steps.around("cut", Buffer, "cut")
    steps.around("fetch", Buffer, "fetch")
    steps.around("fetch", Buffer, "fetch_joined")
    steps.around("transaction", Flusher, "_apply")
    steps.around("statement", dialect(connection.vendor), "apply")
    steps.around("finish", Buffer, "finish")
    while steps.left if wanted else not select.select([sys.stdin], [], [], 0)[0]:
        unread.heal()
        unread.flush()
        time.sleep(0.01)  # so that SQLite has room for others


if __name__ == "__main__":
    main(*sys.argv[1:])
