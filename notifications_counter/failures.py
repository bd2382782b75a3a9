"""What fails at some places, while the work goes on at the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from django.db import connections

from .databases.errors import EXPECTED, OUTAGES, explain, needs_a_migration
from .places import C, LocalCounter, at
from .reports import report


def at_each(local: Iterable[LocalCounter[C]], work: Callable[[LocalCounter[C]], object]) -> None:
    """Call a function at the place of each counter. If it fails for one, go on with the others. In the end, raise one
    error, a mistake in the code if there is one, and log the others."""
    failures = Failures()
    for each in local:
        with failures.caught(each):
            work(each)
    failures.raise_one()


class Failures:
    """What fails in a run, which goes on at the next place. The same message counts once, and so does a kind of outage.
    ``loop``: the name of a command that runs again and again."""

    def __init__(self, loop: str = ""):
        self.loop = loop
        self._before: dict[str, tuple[str, Exception]] = {}
        self._now: dict[str, tuple[str, Exception]] = {}

    @contextmanager
    def caught(self, local: LocalCounter[Any] | None = None) -> Iterator[None]:
        """Catch an error of the block, which works at the place of a counter, if one is given."""
        try:
            with at(local.place) if local else nullcontext():
                yield
        except Exception as error:
            if local:
                error.add_note(local.name)
                if not (connection := connections[local.place.alias]).in_atomic_block:
                    connection.close()  # after a failover, it may be one to a replica
            kind = type(error).__name__ if isinstance(error, OUTAGES) else str(error)
            self._now.setdefault(kind, (local.name if local else "", error))

    def raise_one(self) -> None:
        """Raise one of the errors, if any, and log the others."""
        mistakes_first = sorted(self._now.values(), key=lambda failure: isinstance(failure[1], EXPECTED))
        for failure in mistakes_first[1:]:
            self._log(*failure)
        if mistakes_first:
            raise mistakes_first[0][1]

    def end_run(self) -> bool:
        """Log what did not fail in the run before, or that the loop works again. Returns whether anything failed."""
        for kind, failure in self._now.items():
            if kind not in self._before:
                self._log(*failure)
        if self._before and not self._now:
            report("run_works", command=self.loop)
        self._before, self._now = self._now, {}
        return bool(self._before)

    def _log(self, name: str, error: Exception) -> None:
        """Log an error, with its traceback if it is a mistake in the code."""
        mistake = None if isinstance(error, EXPECTED) or needs_a_migration(error) else error
        if self.loop:
            report("run_failed", exc_info=mistake, command=self.loop, reason=explain(error, name))
        else:
            report("also_failed", exc_info=mistake, reason=explain(error, name))
