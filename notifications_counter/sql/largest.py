"""The largest counts, read by one statement: from the rows, or from the stored totals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from django.db.models import F, Q, QuerySet, Value

from ..conf import options
from ..databases.routing import own_rows
from ..declaration import Declaration
from ..declaration.primary_keys import First, Key
from .everyone import Everyone
from .owners import listed, of_owners

KNOWN, WAITING, LISTED, MOVED = range(4)
"""The parts of a statement."""


@dataclass
class Found:
    """The reply of the database.

    ``counts``   of owners without waiting changes, by their totals, and of owners in doubt, by their rows
    ``waiting``  totals and batches of the owners with waiting changes
    ``order``    of owners with equal counts
    """

    counts: dict[Key, int] = field(default_factory=dict)
    waiting: dict[Key, tuple[int, int]] = field(default_factory=dict)
    order: dict[Key, int] = field(default_factory=dict)


class Largest(Everyone):
    """The ``number`` owners with the largest counts, of all, or of those with the values ``first`` in all columns but
    the last."""

    def __init__(self, counter: Declaration, number: int, first: First = ()):
        super().__init__(counter)
        self.number = number
        self.first = first

    def of_rows(self) -> list[tuple[Key, int]]:
        """Return the largest counts of rows."""
        rows = self._of(self.counter.owner_attnames, self._rows(None)).annotate(counted=self.counter.condition.total)
        largest = rows.exclude(counted=0).order_by("-counted", *self.columns)[: self.number]
        found = self._fetch(*self._compile(largest))
        return [(self.counter.key_of(owner), int(count)) for *owner, count in found]

    def of_totals(self, waiting: Sequence[Key], doubted: Sequence[Key], batches: Mapping[int, int]) -> Found | None:
        """Read all totals of the owners with ``waiting`` changes, count the rows of the ``doubted`` owners, and read
        the largest totals of all others. ``batches``: the last one of each shard when these owners were known. None if
        a later one has been written since."""
        parts, params = zip(*self._parts(waiting, doubted, batches), strict=True)
        order = ", ".join(str(i + 1) for i in range(len(self.columns)))
        found = Found()
        lines = self._fetch(f"{' UNION ALL '.join(parts)} ORDER BY {order}", [*chain(*params)])
        for *owner, part, count, batch in lines:
            if part == MOVED:
                return None
            key = self.counter.key_of(owner)
            found.order.setdefault(key, len(found.order))
            if part == WAITING:
                found.waiting[key] = count, batch
            elif part == KNOWN:
                found.counts[key] = int(count)
        return found

    def _parts(
        self, waiting: Sequence[Key], doubted: Sequence[Key], batches: Mapping[int, int]
    ) -> Iterator[tuple[str, Sequence[Any]]]:
        """Yield the parts of this statement, each with its parameters."""
        counter, using = self.counter, self.connection.alias
        totals = self._of([each.attname for each in counter.total_fields], self._totals(None)).order_by()

        def owned_by(fields: Sequence[Any], keys: Sequence[Key]) -> Any:
            return of_owners(counter, fields, keys, using)

        largest = totals.exclude(counted_total=0).order_by("-counted_total", *self.columns)
        if others := [*waiting, *doubted]:
            largest = largest.exclude(owned_by(counter.total_fields, others))
        yield self._part(KNOWN, largest[: self.number])
        if waiting:
            yield self._part(WAITING, totals.filter(owned_by(counter.total_fields, waiting)))
            yield listed(counter, waiting, (LISTED, 0, 0), self.connection)
        if doubted:
            rows = self._rows(None).filter(owned_by(counter.owner_fields, doubted)).order_by()
            counted = rows.annotate(counted_total=counter.condition.total, counted_batch=Value(0))
            yield self._part(KNOWN, counted)
        moved, params = self._compile(self._moved(batches))
        nobody = ", ".join(["NULL"] * len(self.columns))
        yield f"SELECT {nobody}, {MOVED}, 0, 0 FROM ({moved}) later", params

    def _of(self, names: Sequence[str], queryset: QuerySet) -> QuerySet:
        return queryset.filter(**dict(zip(names, self.first, strict=False)))

    def _part(self, part: int, queryset: QuerySet) -> tuple[str, Sequence[Any]]:
        sql, params = self._compile(queryset)
        columns = f"{self.owner}, {part} AS part, counted_total, counted_batch"
        return f"SELECT {columns} FROM ({sql}) part{part}", params

    def _moved(self, batches: Mapping[int, int]) -> QuerySet:
        """Return the shards with a later batch that has been written, if only in part."""
        later = Q()
        for shard, batch in batches.items():
            is_later = Q(finished__gt=batch) | Q(finished=batch, progress__gt=0)
            later |= Q(shard=shard) & is_later
        rows = own_rows("CounterShard", self.connection.alias)
        return rows.filter(later, counter=self.counter.name, shards=options.SHARDS).values(found=F("pk"))
