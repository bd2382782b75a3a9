"""Compares counters with the rows, and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ..buffer import Buffer
from ..declaration.primary_keys import Key
from .recount import TRIES, Counts, Look, Recounter


class DryRun(Recounter):
    """Finds what a recount would correct."""

    def _look(self, buffer: Buffer, keys: dict[str, Key]) -> Look:
        return Look(buffer, keys, buffer.snapshot(list(keys)))

    def _is_in_force(self, look: Look) -> bool:
        return True

    def reject(self, buffer: Buffer, owner_keys: Sequence[str]) -> None:
        pass

    def _note(self, position: str) -> None:
        pass

    def _finish(self, look: Look, counts: Counts) -> None:
        """A difference is wrong only if every look shows the same one. One that comes from a transaction between its
        COMMIT and its confirmation goes away."""
        suspects = {owner_key: seen for owner_key, seen in look.compare(counts).items() if seen.was != seen.rows}
        for _ in range(TRIES - 1):
            if not suspects:
                return
            left = {owner_key: look.keys[owner_key] for owner_key in suspects}
            found = self._look(look.buffer, left).compare(self._counts(left))
            suspects = {owner_key: seen for owner_key, seen in suspects.items() if found.get(owner_key) == seen}
        snapshot = look.buffer.snapshot(list(suspects))
        in_doubt = {m for m in suspects if snapshot.owners[m].in_doubt or not snapshot.complete}
        self.result.postponed += len(in_doubt)
        self._report([seen for owner_key, seen in suspects.items() if owner_key not in in_doubt])
