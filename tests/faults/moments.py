"""Moments in the life of a process: before and after its calls of some functions."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.db import connections

from notifications_counter.buffer import Buffer
from notifications_counter.sql import counts
from notifications_counter.sql.target import Target
from notifications_counter.upkeep import heal
from notifications_counter.upkeep.flush import Flush
from notifications_counter.upkeep.walk import Walker
from notifications_counter.writes import log
from notifications_counter.writes.log import TransactionLog

Call = tuple[str, Any, str]
"""A function: its name here, its owner, its attribute."""


class Moments:
    """Calls ``reached`` with the name of each moment, like "before drop", that this process comes to."""

    def __init__(self, calls: list[Call], reached: Callable[[str], None]):
        self.names = [f"{when} {name}" for name in dict.fromkeys(name for name, *_ in calls) for when in WHEN]
        self.reached = reached
        for call in calls:
            self._wrap(*call)

    def _wrap(self, name: str, owner: Any, attribute: str) -> None:
        function: Callable[..., Any] = getattr(owner, attribute)

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.reached(f"before {name}")
            result = function(*args, **kwargs)
            self.reached(f"after {name}")
            return result

        setattr(owner, attribute, wrapped)


WHEN = ("before", "after")


class Countdown:
    """Is it the ``times``-th time of a moment? Moments may come from several threads."""

    def __init__(self, moment: str, times: int):
        self.moment, self.left = moment, times
        self.lock = threading.Lock()

    def is_over(self, moment: str) -> bool:
        """True once."""
        with self.lock:
            if moment != self.moment or self.left == 0:
                return False
            self.left -= 1
            return self.left == 0


OF_A_FLUSH: list[Call] = [
    ("cut", Buffer, "cut"),
    ("fetch", Buffer, "fetch"),
    ("transaction", Flush, "_store"),  # that of one chunk
    ("statement", Target, "store"),  # the one in it: so after it, and before the commit
    ("drop", Buffer, "drop"),
]

OF_HEALING: list[Call] = [
    ("doubt", Buffer, "doubt"),
    ("ground", Buffer, "ground"),
    ("generation", heal, "begin_generation"),  # the transaction in which one begins, if Redis has lost something
    ("generation", Buffer, "begin_generation"),  # what it asks of Redis
    # A walk is next, compare, move, and a recount only compares.
    ("next", Walker, "_row"),
    ("compare", Walker, "compare_page"),
    ("compare", Walker, "compare_stored"),
    ("move", Walker, "_move"),
]

OF_A_WRITE: list[Call] = [
    ("announce", TransactionLog, "send_intents"),
    ("COMMIT", type(connections["default"]), "_commit"),  # a single statement commits itself: before "confirm", too
    ("confirm", TransactionLog, "_confirm"),
    ("request", log, "request_doubts"),
]

OF_A_READ: list[Call] = [
    ("get", Buffer, "totals"),
    ("lease", Buffer, "lease"),
    ("count", counts, "_count"),
    ("keep", Buffer, "keep"),  # caches a total that was missing
]
