"""python -m tests.timeseries.actor update|clean: a process that works on the test's counters until its stdin closes.

It says one line before it begins. Then it updates, and says at the end how often; or it cleans the seconds as if it
were a minute later, so that a counter is emptied as soon as it is seen, and says at the end how many were.
"""

import os
import sys
from threading import Thread

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

import django

django.setup()

from notifications_counter.timeseries import TimeSeries  # noqa: E402

from .support import MONTH, redis_clock  # noqa: E402

NAMES = [f"n{n}" for n in range(5)]
series = TimeSeries(precisions=[1, MONTH], samples=5)


def main(role: str) -> None:
    print("begins", flush=True)
    done = 0
    ended = Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    while ended.is_alive():
        if role == "update":
            for name in NAMES:
                series.update_counter(name)
            done += 1
        else:
            done += series.clean_counters(lambda precision: precision == 1, now=redis_clock() + 60).gone
    print(done)


if __name__ == "__main__":
    main(sys.argv[1])
