"""A flusher that stops at a step: ``python -m tests.faults.flusher [STEP [TIMES]]``, in ``child_environment``.

It says that it is ready. If it has a step, it waits for a line on stdin before it starts. Then it heals and flushes
without end. When it comes to the step, like "before drop", for the TIMES-th time, it says so and waits for a line;
then it ends its run and exits. Without a step it goes on until a line comes.
"""

import os
import select
import sys
import time

import django

from .moments import Countdown, Moments, of_a_flush, of_healing


def main(wanted: str = "", times: str = "1") -> None:
    django.setup()
    from notifications_counter.counters import unread

    countdown = Countdown(wanted, int(times))

    def reached(step: str) -> None:
        if countdown.is_over(step):
            print(step, flush=True)
            if not sys.stdin.readline():
                os._exit(1)  # the test is dead

    Moments(of_a_flush() + of_healing(), reached)
    print("ready", flush=True)
    if wanted and not sys.stdin.readline():
        os._exit(1)  # the test is dead
    while countdown.left if wanted else not select.select([sys.stdin], [], [], 0)[0]:
        unread.heal()
        unread.flush(chunk_size=2)
        time.sleep(0.01)  # so that SQLite has room for others


if __name__ == "__main__":
    main(*sys.argv[1:])
