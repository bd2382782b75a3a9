"""Compares counts with the rows, and changes nothing."""

from __future__ import annotations

from .recount import TRIES, BaseRecounter, Counts, Look


class DryRun(BaseRecounter):
    """A recount that only reports what is wrong."""

    def _settle(self, look: Look, counts: Counts) -> None:
        """Report the differences that every look shows. One that comes from a transaction between its COMMIT and its
        confirmation goes away."""
        suspects = look.differences(counts)
        for _ in range(TRIES - 1):
            if not suspects:
                return
            left = {owner_key: look.keys[owner_key] for owner_key in suspects}
            found = self._look(look.buffer, left).differences(self._counts(left))
            suspects = {owner_key: seen for owner_key, seen in suspects.items() if found.get(owner_key) == seen}
        snapshot = look.buffer.snapshot(list(suspects))
        in_doubt = {key for key in suspects if snapshot.owners[key].needs_rows or not snapshot.complete}
        self.result.postponed += len(in_doubt)
        self._report([seen for owner_key, seen in suspects.items() if owner_key not in in_doubt])
