"""How a statement, or a transaction, changes counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..buffer.types import EVERYONE, Delta
from ..declaration import Declaration

OwnerKeys = Mapping[Declaration, Sequence[str]]

Change = dict[Declaration, dict[str, Delta]]
"""Deltas, by counter and owner key. A delta of None puts the owner in doubt, or EVERYONE."""


def add(deltas: dict[str, Delta], owner_key: str, delta: Delta) -> None:
    """Add a delta to those of an owner."""
    before = deltas.get(owner_key, 0)
    deltas[owner_key] = None if delta is None or before is None else before + delta


def owners_of(change: Change) -> OwnerKeys:
    """Return the owners whose counts may have changed."""
    owners = {c: [o for o, delta in deltas.items() if delta != 0] for c, deltas in change.items()}
    return {counter: owner_keys for counter, owner_keys in owners.items() if owner_keys}


def unknown_for(owner_keys: Iterable[str | None]) -> dict[str, Delta]:
    """Return the deltas that put these owners in doubt."""
    return dict.fromkeys(owner_key for owner_key in owner_keys if owner_key is not None)


def unknown_for_everyone(counters: Iterable[Declaration]) -> Change:
    """Return the change that puts everyone in doubt."""
    return {counter: {EVERYONE: None} for counter in counters}


def zeros(owners: Mapping[Declaration, Iterable[str]]) -> Change:
    """Return the change that adds 0 to the counts of these owners."""
    return {counter: dict.fromkeys(owner_keys, 0) for counter, owner_keys in owners.items()}
