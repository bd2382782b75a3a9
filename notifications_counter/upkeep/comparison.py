"""Compares cached and stored totals with the rows, for flushes, walks and recounts."""

from __future__ import annotations

from collections.abc import Sequence
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


def compare(counter: Declaration, pks: Sequence[Pk], result: Result, dry_run: bool = False) -> list[Pk]:
    """Find wrong counts of these owners, at most OWNERS_PER_CALL; doubt them, and add them to the ``result``. Returns
    the owners of whom nothing is certain, because they, or everyone, are changing.

    Look at Redis, count, look again: whoever is the same in both looks, not announced, and differs from the rows, was
    wrong. Compare these twice, as two changes in between may have cancelled each other out."""
    # rule: compared
    state = row_in_force(counter).first()
    first = _compare_once(counter, counter.buffer.look(pks), result, dry_run)
    if not first.wrong:
        return first.changing
    suspects = {found.owner: first.after[found.owner] for found in first.wrong}
    again = _compare_once(counter, suspects, result, dry_run, is_again=True)
    unsure = [*first.changing, *again.changing]
    if not again.wrong:  # only faster
        return unsure
    wrong = [found.owner for found in again.wrong]
    if not _is_settled(counter, state):
        return [*unsure, *wrong]
    result.add_wrong(again.wrong)
    if not dry_run:
        counter.buffer.doubt(list(map(str, wrong)))
        record("wrong", counter, again.wrong)
    return unsure


class Compared(NamedTuple):
    """The owners that differ and don't change, those that change, and the look at Redis ``after`` the count."""

    wrong: list[Difference]
    changing: list[Pk]
    after: dict[Pk, Look]


def _compare_once(
    counter: Declaration, before: dict[Pk, Look], result: Result, dry_run: bool, is_again: bool = False
) -> Compared:
    pks = list(before)
    rows = count_or_skip(counter, pks, result, dry_run)
    stored = Target(counter, connections[counter.db]).stored(pks)
    announced = _announced(counter, pks) if is_again else set()  # there may be many intents
    found = Compared([], [], counter.buffer.look(pks))
    for pk, number in rows.items():
        look = found.after[pk]
        if look != before[pk] or look.is_flagged or str(pk) in announced:
            found.changing.append(pk)
        elif (total := _wrong_total(look, number, stored.get(pk, 0))) is not None:
            found.wrong.append(Difference(pk, total, number))
    return found


def _wrong_total(look: Look, rows: int, stored: int) -> int | None:
    """Return the cached total that differs from the rows, or the stored one, unless it is about to be written anyway.
    None if none does."""
    if look.total is not None and look.total != rows:
        return look.total
    return stored if not look.waits and stored != rows else None


def _announced(counter: Declaration, pks: Sequence[Pk]) -> set[str]:
    """Return the owner keys that a DoubtRequest or an intent names, even one that is grounded; all of these owners, if
    one names EVERYONE."""
    owner_keys = set(map(str, pks))
    requests = DoubtRequest.objects.using(counter.db).filter(counter=counter.name)
    named = {each.named for each in requests.filter(Q(everyone=True) | Q(owner_key__in=owner_keys))}
    for intent in counter.buffer.intents():
        named.update(intent.owner_keys)
    return owner_keys if EVERYONE in named else named


def _is_settled(counter: Declaration, state: CounterState | None) -> bool:
    """Return whether Redis and the database agree, and nothing was lost since: no generation has begun, and no walk
    follows it."""
    now = situation_of(counter)
    return state is not None and now.phase == Phase.NORMAL and now.row.walk_token == state.walk_token


def count_or_skip(counter: Declaration, pks: Sequence[Pk], result: Result, dry_run: bool = False) -> dict[Pk, int]:
    """Count the rows of owners. If the database fails to, as after a time limit, count them one by one, and skip those
    that it cannot count."""
    if EVERYONE in pks:  # not every database refuses it
        pks = [pk for pk in pks if pk != EVERYONE]
        _skip(counter, EVERYONE, "it is not the primary key of an owner. Find out what wrote it", result, dry_run)
    try:
        return count_rows(counter, pks)
    except OperationalError as error:
        if not connections[counter.db].is_usable():
            raise
        if len(pks) > 1:
            return {pk: rows for each in pks for pk, rows in count_or_skip(counter, [each], result, dry_run).items()}
        _skip(counter, pks[0], f"its rows cannot be counted: {error}", result, dry_run)
        return {}


def _skip(counter: Declaration, pk: Pk, reason: str, result: Result, dry_run: bool) -> None:
    result.skipped += 1
    if not dry_run:
        record("skipped", counter, [f"{str(pk)!r}: {reason}"])
