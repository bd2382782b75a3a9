"""The work of the flusher for one counter: heal, then flush."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress

from ..declaration import Declaration
from ..exceptions import EXPECTED
from .findings import Progress, Result, no_progress
from .flush import Flusher
from .heal import SECONDS, heal


def heal_and_flush(counter: Declaration, progress: Progress = no_progress) -> Iterator[tuple[Result, Result]]:
    """Heal and flush a counter in turns, until nothing is left to heal. Yield what each turn did, and note in Redis
    whether it failed."""
    is_unfinished = True
    while is_unfinished:
        try:
            healed = heal(counter, SECONDS, progress)
            flushed = Flusher(counter, math.inf, progress).flush()
        except Exception as error:
            _note_run(counter, f"{type(error).__name__}: {' '.join(str(error).split())}")
            raise
        _note_run(counter)
        yield healed, flushed
        is_unfinished = healed.unfinished


def _note_run(counter: Declaration, failure: str = "") -> None:
    """Note a run for monitoring, which sees itself if Redis or the database is out of reach."""
    with suppress(*EXPECTED):
        counter.buffer.note_run(failure)
