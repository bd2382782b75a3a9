"""Walks over everyone, in pages, and puts those in doubt whose stored or cached total differs from the rows.

A recount walks alone, on demand. Flushers walk at one of two speeds: at full speed after a generation has begun; and
gently once in WALK_SECONDS, a page at a time, at a twentieth of a flusher's time. The row of the counter says how far
the walk has come. It moves behind a page that is done, by an UPDATE that succeeds only if the row still says what was
read. So if a flusher is killed, another one compares its page; if it was only slow, that costs work, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain
from typing import Any
from uuid import uuid4

from django.core.exceptions import ValidationError
from django.db import OperationalError, connections
from django.utils import timezone

from ..buffer.types import OWNERS_PER_CALL
from ..conf import options
from ..databases.isolation import forbid_transaction
from ..declaration import Declaration
from ..declaration.primary_keys import Pk
from ..models import CounterState
from ..redis.calls import chunked
from ..reports import report
from ..sql.everyone import page
from ..sql.target import Target
from .comparison import Comparison
from .findings import Result, settle_wrong
from .generations import forbid_other_rows, forbid_replaced, walk_from_the_start
from .phases import row_in_force

GENTLE_SHARE = 0.05
"""The part of the flusher's time that a gentle walk takes at most."""


class Walker:
    """Compares owners of a counter with the rows, for about so many seconds. ``dry_run`` and ``is_expected``: see
    ``Comparison``."""

    def __init__(self, counter: Declaration, seconds: float, dry_run: bool = False, is_expected: bool = False):
        self.counter = counter
        self.until = time.monotonic() + seconds
        self.dry_run = dry_run
        self.result = Result()
        self.comparison = Comparison(counter, self.result, dry_run, is_expected)

    # ------------------------------------------------------------------- pages
    def compare_page(self, pks: Sequence[Pk]) -> None:
        """Compare a page. Who is changing meanwhile is doubted without a word, because it may be wrong, too."""
        self.result.owners += len(pks)
        unsure = self.comparison.compare(pks)
        if not self.dry_run:
            self._doubt(unsure)

    def compare_stored(self, pks: Sequence[Pk]) -> None:
        """Doubt owners whose stored total differs from the rows, at full speed: nothing is cached that is older than
        the walk."""
        self.result.owners += len(pks)
        rows = self.comparison.count_or_skip(pks)
        stored = Target(self.counter, connections[self.counter.db]).stored(pks)
        self._doubt([pk for pk in rows if rows[pk] != stored.get(pk, 0)])

    def _doubt(self, pks: Sequence[Pk]) -> None:
        self.counter.buffer.doubt([str(pk) for pk in pks])

    def compare_everyone(self) -> None:
        """Compare everyone who has rows, a stored total, or a count that is to be flushed."""
        for pks in chain(self._only_in_redis(), self._pages()):
            self.compare_page(pks)
            report("compared", self.counter, owners=self.result.owners)
            self.result.unfinished = time.monotonic() > self.until
            if self.result.unfinished:
                return

    def _only_in_redis(self) -> Iterator[list[Pk]]:
        """Yield the owners who wait for a flush, and are in no page: they have no rows, and no stored total yet."""
        target = Target(self.counter, connections[self.counter.db])
        for owner_keys in self.counter.buffer.waiting():
            pks = list[Pk]()
            for owner_key in owner_keys:
                with suppress(ValidationError):  # a flush reports it
                    pks.append(self.counter.valid_pk(owner_key))
            rows, stored = self.comparison.count_or_skip(pks), target.stored(pks)
            if found := [pk for pk in rows if not rows[pk] and pk not in stored]:
                yield found

    def _pages(self) -> Iterator[list[Pk]]:
        """Yield everyone who has rows or a stored total."""
        position = None
        while pks := self._page(position):
            yield pks
            position = str(pks[-1])

    def _page(self, after: str | None) -> list[Pk]:
        """Return the next owners after an owner key, None for the first. Pages get smaller while the database fails to
        find them, as after a time limit."""
        for size in (OWNERS_PER_CALL, 30):
            with suppress(OperationalError):
                return page(self.counter, after, size)
        return page(self.counter, after, 1)

    # ---------------------------------------------------------------- together
    def walk_together(self) -> Result:
        """Go on with the walk that is under way, or begin one if it is time."""
        while (row := self._row()) is not None and self._step(row):
            pass
        return self.result

    def _step(self, row: CounterState) -> bool:
        """Take the next step of a walk that is where this row says. Returns whether to go on."""
        if row.walk_speed == row.FULL_SPEED:
            return self._step_at_full_speed(row)
        if row.walk_speed == row.GENTLE:
            return self._step_gently(row)
        if not options.WALK_SECONDS or _is_within(row.walk_began_at, timezone.now()):
            return False
        self._move(row, **walk_from_the_start(row.GENTLE))
        return True

    def _step_at_full_speed(self, row: CounterState) -> bool:
        """Compare a page, and go on. If another flusher was faster, it goes on alone."""
        pks = self._page(row.walked_to)
        if not pks:
            if self._move(row, walk_speed=""):
                report("walked", self.counter)
            return False
        self.compare_stored(pks)
        is_ours = self._move(row, walked_to=str(pks[-1]), walk_resumes_at=timezone.now())
        report("compared", self.counter, owners=self.result.owners)
        if not is_ours:  # only faster
            return False
        self.result.unfinished = time.monotonic() > self.until
        return not self.result.unfinished

    def _step_gently(self, row: CounterState) -> bool:
        """Compare a page, if it is due, and no other: the next one is due after a rest."""
        if _is_within(timezone.now(), row.walk_resumes_at):
            return False
        started = time.monotonic()
        pks = self._page(row.walked_to)
        if not pks:
            self._move(row, walk_speed="")
            return False
        self.compare_page(pks)
        rest = timedelta(seconds=(time.monotonic() - started) * (1 / GENTLE_SHARE - 1))
        self._move(row, walked_to=str(pks[-1]), walk_resumes_at=timezone.now() + rest)
        report("compared", self.counter, owners=self.result.owners)
        return False

    def _row(self) -> CounterState | None:
        """Return the row of the counter, which says how far the walk has come; None if nobody may walk."""
        return row_in_force(self.counter).first()

    def _move(self, seen: CounterState, **fields: Any) -> bool:
        """Move a walk behind a page that is done. Returns False, and does nothing, if it is not where it was ``seen``
        any more."""
        # rule: position
        rows = row_in_force(self.counter).filter(walk_token=seen.walk_token)
        return bool(rows.update(**{"walk_token": uuid4().hex, **fields}))


def _is_within(earlier: datetime, later: datetime) -> bool:
    """Return whether the second time is after the first, by less than WALK_SECONDS. A longer wait for a page means that
    the clock was put back."""
    return timedelta(0) < later - earlier < timedelta(seconds=options.WALK_SECONDS)


def recount(
    counter: Declaration,
    pks: Iterable[Pk] | None,
    dry_run: bool,
    seconds: float,
) -> Result:
    """Compare these owners, or everyone, as ``Counter.recount`` says."""
    forbid_transaction(counter.db)
    forbid_replaced(counter)
    forbid_other_rows(counter)
    began = timezone.now()
    walker = Walker(counter, seconds, dry_run, is_expected=pks is not None)
    if pks is None:
        walker.compare_everyone()
        if not (dry_run or walker.result.wrong or walker.result.unfinished):
            settle_wrong(counter, began)
    for some in chunked(list(dict.fromkeys(pks or ())), OWNERS_PER_CALL):
        walker.compare_page(some)
    if walker.result.owners and not dry_run:
        report("recount", counter, owners=walker.result.owners, wrong=walker.result.wrong)
    return walker.result
