"""How a statement, or a transaction, changes counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeGuard

from ..buffer.types import Delta
from ..declaration import Declaration


class Everyone(Enum):
    """Stands for all owners of a counter, in place of an owner key. In an intent, no owners mean everyone, and so do no
    arguments of ``doubt.lua``."""

    EVERYONE = "everyone"


EVERYONE = Everyone.EVERYONE

OwnerKey = str | Everyone
OwnerKeys = Mapping[Declaration, Sequence[OwnerKey]]

Change = dict[Declaration, dict[OwnerKey, Delta]]
"""Deltas, by counter and owner key. A delta of None puts the owner in doubt."""


def add(deltas: dict[OwnerKey, Delta], owner_key: OwnerKey, delta: Delta) -> None:
    """Add a delta to those of an owner."""
    before = deltas.get(owner_key, 0)
    deltas[owner_key] = None if delta is None or before is None else before + delta


def owners_of(change: Change) -> OwnerKeys:
    """Return the owners whose counts may have changed."""
    owners = {c: [o for o, delta in deltas.items() if delta != 0] for c, deltas in change.items()}
    return {counter: owner_keys for counter, owner_keys in owners.items() if owner_keys}


def everyone(counters: Iterable[Declaration]) -> Change:
    """Return the change that puts everyone in doubt."""
    return {counter: {EVERYONE: None} for counter in counters}


def zeros(owners: Mapping[Declaration, Iterable[OwnerKey]]) -> Change:
    """Return the change that adds 0 to the counts of these owners."""
    return {counter: dict.fromkeys(owner_keys, 0) for counter, owner_keys in owners.items()}


def are_named(owner_keys: Sequence[OwnerKey]) -> TypeGuard[Sequence[str]]:
    """Return whether each owner is named, so that these are not everyone."""
    return EVERYONE not in owner_keys
