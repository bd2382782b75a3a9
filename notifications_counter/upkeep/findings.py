"""What flushes and walks find: wrong counts, and owners who are set aside."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import F
from django.utils import timezone

from ..declaration import Declaration
from ..declaration.primary_keys import Key
from ..models import RecountRequest
from .generations import state_row
from .history import record

EXAMPLES = 5
"""How many owners the log names."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A wrong count: the primary key of the ``owner``, what the cached or stored count ``was``, and the number of
    ``rows``."""

    owner: Key
    was: int
    rows: int


@dataclass
class Result:
    """What a flush, a heal or a recount did: how many ``owners`` it wrote or compared; how many counts were ``wrong``,
    because something wrote behind the ORM's back; how many owners were set ``aside``, because they cannot be stored;
    and whether it is ``unfinished``, because its time ran out before its work was done: call it again."""

    owners: int = 0
    wrong: int = 0
    aside: int = 0
    unfinished: bool = False


def unexplained(counter: Declaration, wrong: Sequence[Difference]) -> Sequence[Difference]:
    """Return the differences that are not explained by a RecountRequest, which the next heal reads, or because the
    owner was set aside."""
    requests = RecountRequest.objects.using(counter.db).filter(counter=counter.name)
    if not wrong or requests.filter(everyone=True).exists():
        return []
    owner_keys = [str(difference.owner) for difference in wrong]
    requested = requests.filter(owner__in=owner_keys, everyone=False).values_list("owner", flat=True)
    explained = {*requested, *counter.buffer.aside_of(owner_keys)}
    return [difference for difference in wrong if str(difference.owner) not in explained]


def note_mismatches(counter: Declaration, mismatches: Sequence[Difference]) -> None:
    """Record wrong counts that something has caused behind the ORM's back."""
    if not mismatches:
        return
    state_row(counter).update(wrong=F("wrong") + len(mismatches), wrong_at=timezone.now())
    shown = [f"{found.owner}: {found.was} instead of {found.rows}" for found in mismatches[:EXAMPLES]]
    about = {"wrong": len(mismatches), "examples": ", ".join(shown)}
    record("mismatched", counter, level=logging.WARNING, **about)


def set_aside(counter: Declaration, reasons: dict[str, str]) -> None:
    """Keep owners that cannot be stored or counted, with the reasons, until that succeeds, and log those that are new.
    Walks try again."""
    if new := counter.buffer.set_aside(reasons):
        shown = [f"{owner_key!r}: {reason}" for owner_key, reason in list(new.items())[:EXAMPLES]]
        record("aside", counter, level=logging.ERROR, owners=len(new), examples="; ".join(shown))
