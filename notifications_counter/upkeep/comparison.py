"""Compares cached and stored totals with the rows, for flushes, walks and recounts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.db import OperationalError, connections
from django.db.models import Q

from ..buffer.types import EVERYONE, Look
from ..declaration import Declaration
from ..declaration.primary_keys import Pk
from ..models import CounterState, DoubtRequest
from ..sql.counts import count_rows
from ..sql.target import Target
from .findings import Difference, Result, record
from .phases import Phase, row_in_force, situation_of


class Compared(NamedTuple):
    """The owners that differ and don't change, those that change, and the look at Redis ``after`` the count."""

    wrong: list[Difference]
    changing: list[Pk]
    after: dict[Pk, Look]


@dataclass
class Comparison:
    """Compares totals of a counter with the rows, and adds what it finds to a ``result``. ``dry_run``: change nothing.
    ``is_expected``: a site has named these owners, as after raw SQL, so wrong counts are only in the result. Each call
    is about at most OWNERS_PER_CALL owners."""

    counter: Declaration
    result: Result
    dry_run: bool = False
    is_expected: bool = False

    def compare(self, pks: Sequence[Pk]) -> list[Pk]:
        """Find wrong counts of these owners, and doubt them. Returns the owners of whom nothing is certain, because
        they, or everyone, are changing.

        Look at Redis, count, look again: whoever is the same in both looks, not announced, and differs from the rows,
        was wrong. Compare these twice, as two changes in between may have cancelled each other out."""
        # rule: compared
        state = row_in_force(self.counter).first()
        first = self._compare_once(self.counter.buffer.look(pks))
        if not first.wrong:
            return first.changing
        suspects = {found.owner: first.after[found.owner] for found in first.wrong}
        again = self._compare_once(suspects, is_again=True)
        unsure = [*first.changing, *again.changing]
        if not again.wrong:  # only faster
            return unsure
        wrong = [found.owner for found in again.wrong]
        if not self._is_settled(state):
            return [*unsure, *wrong]
        self.result.add_wrong(again.wrong)
        if not self.dry_run:
            self.counter.buffer.doubt(list(map(str, wrong)))
            if not self.is_expected:
                record("wrong", self.counter, again.wrong)
        return unsure

    def _compare_once(self, before: dict[Pk, Look], is_again: bool = False) -> Compared:
        pks = list(before)
        rows = self.count_or_skip(pks)
        stored = Target(self.counter, connections[self.counter.db]).stored(pks)
        announced = self._announced(pks) if is_again else set()  # there may be many intents
        found = Compared([], [], self.counter.buffer.look(pks))
        for pk, number in rows.items():
            look = found.after[pk]
            if look != before[pk] or look.is_flagged or str(pk) in announced:
                found.changing.append(pk)
            elif (total := _wrong_total(look, number, stored.get(pk, 0))) is not None:
                found.wrong.append(Difference(pk, total, number))
        return found

    def _announced(self, pks: Sequence[Pk]) -> set[str]:
        """Return the owner keys that a DoubtRequest or an intent names, even one that is grounded; all of these owners,
        if one names EVERYONE."""
        owner_keys = set(map(str, pks))
        requests = DoubtRequest.objects.using(self.counter.db).filter(counter=self.counter.name)
        named = {each.named for each in requests.filter(Q(everyone=True) | Q(owner_key__in=owner_keys))}
        for intent in self.counter.buffer.intents():
            named.update(intent.owner_keys)
        return owner_keys if EVERYONE in named else named

    def _is_settled(self, state: CounterState | None) -> bool:
        """Return whether Redis and the database agree, and nothing was lost since: no generation has begun, and no walk
        follows it."""
        now = situation_of(self.counter)
        return state is not None and now.phase == Phase.NORMAL and now.row.walk_token == state.walk_token

    def count_or_skip(self, pks: Sequence[Pk]) -> dict[Pk, int]:
        """Count the rows of owners. If the database fails to, as after a time limit, count them one by one, and skip
        those that it cannot count."""
        if EVERYONE in pks:  # not every database refuses it
            pks = [pk for pk in pks if pk != EVERYONE]
            self._skip(EVERYONE, "it is not the primary key of an owner. Find out what wrote it")
        try:
            return count_rows(self.counter, pks)
        except OperationalError as error:
            if not connections[self.counter.db].is_usable():  # only faster
                raise
            if len(pks) > 1:
                return {pk: rows for each in pks for pk, rows in self.count_or_skip([each]).items()}
            self._skip(pks[0], f"its rows cannot be counted: {error}")
            return {}

    def _skip(self, pk: Pk, reason: str) -> None:
        self.result.skipped += 1
        if not self.dry_run:
            record("skipped", self.counter, [f"{str(pk)!r}: {reason}"])


def _wrong_total(look: Look, rows: int, stored: int) -> int | None:
    """Return the cached total that differs from the rows, or the stored one, unless it is about to be written anyway.
    None if none does."""
    if look.total is not None and look.total != rows:
        return look.total
    return stored if not look.waits and stored != rows else None
