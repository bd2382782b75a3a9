"""How a statement changes counts: the deltas, added up from rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import mul
from typing import Any, NamedTuple

from ..buffer.types import Delta
from ..declaration import Declaration
from .columns import Row

Deltas = Mapping[Declaration, Mapping[str, Delta]]
"""Deltas by counter and owner key; None for an owner to recount."""


class Change(NamedTuple):
    """The deltas of a statement. In the counters ``everyone_of``, it may have changed anyone's count."""

    deltas: Deltas
    everyone_of: Sequence[Declaration] = ()


class Sums(dict[Declaration, dict[str, int]]):
    """Deltas, by counter and owner key, to which rows are added."""

    def __init__(self, counters: Iterable[Declaration]):
        super().__init__((counter, {}) for counter in counters)

    def add(self, counter: Declaration, owner_keys: Sequence[str | None], numbers: Sequence[int]) -> None:
        """Add a number for each owner."""
        sums: dict[Any, int] = self[counter]
        added = {**sums, **dict(zip(owner_keys, numbers, strict=True))}
        if len(added) < len(sums) + len(owner_keys):  # an owner twice; the loop takes much longer
            added = sums
            for owner_key, number in zip(owner_keys, numbers, strict=True):
                added[owner_key] = added.get(owner_key, 0) + number
        added.pop(None, None)
        self[counter] = added

    def add_columns(self, columns: Iterable[Sequence[Any]], numbers: Sequence[int]) -> None:
        """Add different rows, given column by column, and how many there are of each."""
        for counter, keys, values in per_counter(self, columns):
            added = list(map(int, map(mul, values, numbers)))  # a sum of PostgreSQL may be a Decimal
            self.add(counter, counter.encode_all(list(compress(keys, added))), list(filter(None, added)))


def per_counter(
    counters: Iterable[Declaration], columns: Iterable[Sequence[Any]]
) -> Iterator[tuple[Declaration, Sequence[Any], Sequence[Any]]]:
    """Yield each counter with its columns: the owners' keys, and the values that the rows add."""
    columns = iter(columns)
    for counter in counters:
        keys = [next(columns, ()) for _ in counter.owner_attnames]
        yield counter, list(zip(*keys, strict=True)) if counter.has_several_columns else keys[0], next(columns, ())


def difference(counters: Iterable[Declaration], before: Iterable[Row] = (), after: Iterable[Row] = ()) -> Sums:
    """Return the deltas of a statement, given all its rows before and after."""
    sums, were, are = Sums(counters), Counter(map(tuple, before)), Counter(map(tuple, after))
    sums.add_columns(zip(*were, strict=True), [-number for number in were.values()])
    sums.add_columns(zip(*are, strict=True), list(are.values()))
    return sums


def unknown_deltas(counters: Iterable[Declaration], rows: Iterable[Row]) -> dict[Declaration, dict[str, None]]:
    """Return deltas of None for the owners of these rows."""
    return {
        counter: dict.fromkeys(owner_key for owner_key in counter.encode_all(keys) if owner_key is not None)
        for counter, keys, _ in per_counter(counters, zip(*rows, strict=True))
    }
