"""Time-sliced counters in Redis: how often something happened, in slices of time at several precisions.

    update_counter("hits")
    get_counter("hits", 60)  # [(slice start, count), …], a slice a minute

The recipe is from Redis in Action, 5.2.1: a hash ``count:<precision>:<name>`` from slice start to count, and a sorted
set of all known counters. Each counter keeps the newest 120 slices of each precision. Slices start at multiples of
the precision since the epoch. Times are seconds since the epoch or aware datetimes; the default is the time of the
Redis server. Every function raises BufferUnavailable if Redis is unreachable or the database has not been migrated.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from asgiref.sync import sync_to_async

from ..conf import is_integer
from ..declaration.primary_keys import plain
from ..recipes import Recipe, Time, When, seconds
from ..redis.calls import MAX_ARGUMENTS, Scripts, command, in_groups
from ..redis.replies import as_bytes, as_pairs, as_text

SCRIPTS = Scripts(__package__)

PRECISIONS = (1, 5, 60, 300, 3600, 18000, 86400)
"""Seconds, as in the book."""
DEFAULT_SAMPLES = 120
MAX_SAMPLES = 10_000
MAX_PRECISION_SECONDS = 2_678_400
"""31 days."""
NAMES_PER_CALL = 50
"""The most names that one script call updates."""
SLICES_PER_CALL = 10_000
"""Slices that one script call of a cleaner looks at, so that it blocks Redis for only a few milliseconds. A counter
itself takes as long as 20 of them."""
YEAR_3000 = 32_503_680_000
"""The year 3000, in seconds. A later time must be in milliseconds."""
MAX_DIGITS = 15
"""The most digits of a count. Lua's numbers hold them exactly."""
MAX_COUNT = 10**MAX_DIGITS - 1
MAX_NAME_LENGTH = 200
"""The most characters of a name."""


@dataclass
class CleanResult:
    """The result of a cleaning: how many ``counters`` it looked at, counting each precision of a name as one; how many
    ``slices`` it removed; and how many counters are ``gone``, because they had no slices left."""

    counters: int = 0
    slices: int = 0
    gone: int = 0


class TimeSeries(Recipe):
    """A family of counters; see ``Recipe``.

    ``precisions``  lengths of slices, in seconds, at most 31 days
    ``samples``     slices kept of each, at most 10,000
    """

    def __init__(
        self,
        precisions: Sequence[int] = PRECISIONS,
        samples: int = DEFAULT_SAMPLES,
        name: str = "count",
        alias: str | None = None,
        shared: bool = False,
    ):
        super().__init__(name, alias, shared)
        is_list = isinstance(precisions, list | tuple)
        are_valid = is_list and all(is_integer(each) and 0 < each <= MAX_PRECISION_SECONDS for each in precisions)
        if not are_valid or not 0 < len(precisions) == len(set(precisions)):
            raise ValueError(
                f"precisions={precisions!r:.200}: pass a list of distinct integers from 1 to {MAX_PRECISION_SECONDS} "
                "seconds."
            )
        if not is_integer(samples) or not 0 < samples <= MAX_SAMPLES:
            raise ValueError(f"samples={samples!r:.200}: pass an integer from 1 to {MAX_SAMPLES}.")
        self.precisions = sorted(precisions, reverse=True)
        """Seconds, coarsest first."""
        self.samples = samples

    # ---------------------------------------------------------------- update
    def update_counter(self, name: str, count: int = 1, now: When = None) -> None:
        """Add to the count at every precision, atomically and in one round trip. ``count`` may be negative."""
        self.update_counters({_valid(name): count}, now)

    def update_counters(self, counts: Mapping[str, int], now: When = None) -> None:
        """Count for many names, in one round trip for every 50. Each name is updated atomically.

        Raises ValueError before anything is counted if a name or a count is invalid.
        """
        if not isinstance(counts, Mapping):
            raise ValueError(f"{counts!r:.200} is not a dict; pass one of names and counts.")
        time = "" if now is None else str(_whole(now))
        for count in counts.values():
            _check_count(count)
        counts = {_valid(name): count for name, count in counts.items()}
        base, precisions = self.base, self.precisions
        per_name = len(precisions) + 1
        most = min(NAMES_PER_CALL * per_name, MAX_ARGUMENTS - 1000)
        for some in in_groups(list(counts), [per_name] * len(counts), most):
            keys = [f"{base}:known", *(f"{base}:{precision}:{name}" for name in some for precision in precisions)]
            numbers = (self.samples, len(precisions), *precisions, *(counts[name] for name in some))
            self.client.ask(SCRIPTS.call("update_series", keys, time, *map(str, numbers)))

    # ------------------------------------------------------------------ read
    def get_counter(
        self, name: str, precision: int, start: When = None, end: When = None, fill: bool = False
    ) -> list[tuple[int, int]]:
        """Return ``(slice start, count)``, oldest first, of the newest slices up to now, as many as are kept, and of
        any later ones.

        A counter that has none of these was updated with a ``now`` of its own. Then the result is its slices up to the
        newest. The result does not depend on the server, or on whether a cleaner has run.

        ``start``, ``end``: only slices that start at ``start`` or later and before ``end``.
        ``fill``: also slices without a count, as zeros, from ``start`` (or the first with a count) to ``end`` (or the
        last with a count), but none older than those that are kept, and as many at most after now.
        """
        name = _valid(name)
        self._check_precision(precision)
        first = 0 if start is None else _whole(start, math.ceil)
        end_ = YEAR_3000 if end is None else _whole(end, math.ceil)
        key = f"{self.base}:{precision}:{name}"
        [(clock, flat)] = self.client.ask(SCRIPTS.call("read_series", [key]))
        counts = {int(slice_): int(count) for slice_, count in as_pairs(flat)}
        now, window = int(clock), self.samples * precision
        if counts and not any(now - window < slice_ <= now for slice_ in counts):
            now = max(counts)
        counts = {slice_: count for slice_, count in counts.items() if slice_ > now - window}
        if fill and (counts or (start is not None and end is not None)):
            since = max(min(counts) if start is None else first, now - window + 1)
            until = min(max(counts) + 1 if end is None else end_, now + window)
            # Rounded up to the start of a slice.
            counts = dict.fromkeys(range(-(-since // precision) * precision, until, precision), 0) | counts
        return sorted((slice_, count) for slice_, count in counts.items() if first <= slice_ < end_)

    def list_counters(self, after: str = "", limit: int = 1000, precision: int | None = None) -> list[str]:
        """Return the names of counters in a stable order: at most ``limit`` of them, after the name ``after``.

        Lists the counters kept at ``precision``, by default the coarsest, where a counter stays longest. The list is
        empty after the last page.
        """
        after = after and _valid(after)
        if not is_integer(limit) or limit < 1:
            raise ValueError(f"limit={limit!r:.200}: pass the number of names that you want, at least 1.")
        precision = self.precisions[0] if precision is None else precision
        self._check_precision(precision)
        names: list[str] = []
        first, end = _range(precision)
        low = as_bytes(f"({precision}:{after}" if after else first)
        while len(names) < limit:
            page = "LIMIT", "0", str(min(limit - len(names), 1000))
            [found] = self.client.ask(command("ZRANGEBYLEX", f"{self.base}:known", low, end, *page))
            if not (members := [*map(as_text, found)]):
                break
            held = self.client.ask(*[command("EXISTS", f"{self.base}:{member}") for member in members])
            # The server expires some.
            names += [member.partition(":")[2] for member, is_there in zip(members, held, strict=True) if is_there]
            low = as_bytes(f"({members[-1]}")
        return names

    # ----------------------------------------------------------------- clean
    def clean_counters(
        self,
        due: Callable[[int], bool] = lambda precision: True,
        now: When = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> CleanResult:
        """Remove the slices that are too old at ``now`` for a read to return them, and counters without any slices.

        ``due`` returns whether to clean a precision. ``progress`` is called with the number of counters looked at and
        of all counters at the start. Several processes may clean at once.
        """
        result = CleanResult()
        time = "" if now is None else str(_whole(now))
        known = f"{self.base}:known"
        precisions = [precision for precision in self._known_precisions() if due(precision)]
        total = sum(self.client.ask(command("ZLEXCOUNT", known, *_range(each)))[0] for each in precisions)
        for precision in precisions:
            first, end = _range(precision)
            low, window = as_bytes(first), str(self.samples * precision)
            while True:
                call = SCRIPTS.call("clean_series", [known], low, end, window, time, str(SLICES_PER_CALL))
                [(last, counters, slices, gone)] = self.client.ask(call)
                if not last:
                    break
                low = as_bytes(f"({as_text(last)}")
                result.counters += counters
                result.slices += slices
                result.gone += gone
                progress(result.counters, total)
        return result

    def _known_precisions(self) -> Iterator[int]:
        """Yield the precisions of known counters, some of which may be of an earlier release."""
        known, low = f"{self.base}:known", "-"
        while found := self.client.ask(command("ZRANGEBYLEX", known, low, "+", "LIMIT", "0", "1"))[0]:
            precision = int(as_text(found[0]).partition(":")[0])
            yield precision
            low = f"[{precision};"

    def _check_precision(self, precision: object) -> None:
        if not is_integer(precision) or precision not in self.precisions:
            known = ", ".join(map(str, reversed(self.precisions)))
            raise ValueError(f"Nothing is counted at a precision of {precision!r:.200}; pass one of {known} (seconds).")

    # ----------------------------------------------------------------- async
    aupdate_counter = sync_to_async(update_counter)
    aupdate_counters = sync_to_async(update_counters)
    aget_counter = sync_to_async(get_counter)
    alist_counters = sync_to_async(list_counters)


def _range(precision: int) -> tuple[str, str]:
    """Return the range of a precision's members in ``known``. The character after the colon is the semicolon."""
    return f"[{precision}:", f"({precision};"


def _valid(name: object) -> str:
    """Return a name. ValueError if it is invalid."""
    name = plain(name)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{name!r:.200} is not a name for a counter; pass a string that is not empty.")
    if len(name) > MAX_NAME_LENGTH:
        fact = f"The name {name[:20]!r}… has {len(name)} characters"
        raise ValueError(f"{fact}; pass one with at most {MAX_NAME_LENGTH}.")
    # Control characters, and surrogates, which cannot be sent.
    if any(c in "{}" or unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise ValueError(f"The name {name!r} has braces or control characters; pass one without them.")
    return name


def _check_count(count: object) -> None:
    if not is_integer(count) or not 0 < abs(count) <= MAX_COUNT:
        raise ValueError(f"count={count!r:.200}: pass an integer that is not 0 and has at most {MAX_DIGITS} digits.")


def _whole(time: Time, rounded: Callable[[float], int] = math.floor) -> int:
    """Return a time in whole seconds."""
    number = seconds(time)
    if not 0 <= number < YEAR_3000:
        raise ValueError(f"{time!r:.200} is not between the years 1970 and 3000; pass seconds, not milliseconds.")
    return rounded(number)


_default = TimeSeries()

update_counter = _default.update_counter
update_counters = _default.update_counters
get_counter = _default.get_counter
list_counters = _default.list_counters
clean_counters = _default.clean_counters
aupdate_counter = _default.aupdate_counter
aupdate_counters = _default.aupdate_counters
aget_counter = _default.aget_counter
alist_counters = _default.alist_counters
