"""Compares cached and stored totals with the rows, for flushes, walks and recounts."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import OperationalError, connections
from django.db.models import Q

from ..buffer.types import Look
from ..declaration import Declaration
from ..declaration.primary_keys import Pk
from ..models import CounterState, DoubtRequest
from ..sql.counts import count_rows
from ..sql.target import Target
from .findings import Difference, Result, record_skipped, record_wrong
from .phases import Phase, row_in_force, situation_of


def compare(counter: Declaration, pks: Sequence[Pk], result: Result, dry_run: bool = False) -> list[Pk]:
    """Find wrong counts of these owners, at most OWNERS_PER_CALL, and doubt and record them. Returns the owners of whom
    nothing is certain, because they are changing.

    Look at Redis, count, look again: whoever is the same in both looks, not announced, and differs from the rows, was
    wrong. Compare these twice, as two changes in between may have cancelled each other out."""
    # rule: compared
    buffer, target = counter.buffer, Target(counter, connections[counter.db])
    state, before, unsure = row_in_force(counter).first(), buffer.look(pks), list[Pk]()
    for is_again in (False, True):
        rows, stored = count_or_skip(counter, pks, result, dry_run), target.stored(pks)
        announced = _announced(counter, pks) if is_again else set()  # there may be many intents
        after = buffer.look(pks)
        changing = {pk for pk in rows if after[pk] != before[pk] or after[pk].is_flagged or str(pk) in announced}
        unsure += changing
        wrong = [
            Difference(pk, total, rows[pk])
            for pk in rows
            if pk not in changing and (total := _wrong_total(after[pk], rows[pk], stored.get(pk, 0))) is not None
        ]
        if not wrong:
            return unsure
        pks, before = [each.owner for each in wrong], after
    if not _is_settled(counter, state):
        return [*unsure, *pks]
    result.add_wrong(wrong)
    if not dry_run:
        buffer.doubt([str(pk) for pk in pks])
        record_wrong(counter, wrong)
    return unsure


def _wrong_total(look: Look, rows: int, stored: int) -> int | None:
    """Return the cached total that differs from the rows, or the stored one, unless it is about to be written anyway.
    None if none does."""
    if look.total is not None and look.total != rows:
        return look.total
    return stored if not look.waits and stored != rows else None


def _announced(counter: Declaration, pks: Sequence[Pk]) -> set[str]:
    """Return the owner keys that a DoubtRequest or an intent names, even one that is grounded. All of these owners, if
    it is for everyone."""
    owner_keys = set(map(str, pks))
    requests = DoubtRequest.objects.using(counter.db).filter(counter=counter.name)
    named = requests.filter(Q(everyone=True) | Q(owner_key__in=owner_keys)).values_list("owner_key", "everyone")
    groups = [intent.owner_keys for intent in counter.buffer.intents()]
    groups += [() if everyone else (owner_key,) for owner_key, everyone in named]
    return owner_keys if () in groups else set().union(*groups)


def _is_settled(counter: Declaration, state: CounterState | None) -> bool:
    """Return whether Redis and the database agree, and nothing was lost since: no generation has begun, and no walk
    follows it."""
    now = situation_of(counter)
    return state is not None and now.phase == Phase.NORMAL and now.row.walk_token == state.walk_token


def count_or_skip(counter: Declaration, pks: Sequence[Pk], result: Result, dry_run: bool = False) -> dict[Pk, int]:
    """Count the rows of owners. If the database fails to, as after a time limit, count them one by one, and skip those
    that it cannot count."""
    try:
        return count_rows(counter, pks)
    except OperationalError as error:
        if not connections[counter.db].is_usable():
            raise
        if len(pks) > 1:
            return {pk: rows for each in pks for pk, rows in count_or_skip(counter, [each], result, dry_run).items()}
        result.skipped += 1
        if not dry_run:
            record_skipped(counter, {str(pks[0]): f"its rows cannot be counted: {error}"})
        return {}
