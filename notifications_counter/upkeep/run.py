"""The work of the flusher for one counter: heal, then flush."""

from __future__ import annotations

import math
from contextlib import suppress

from ..databases.errors import EXPECTED
from ..declaration import Declaration
from .findings import Result
from .flush import Flush
from .heal import HEAL_SECONDS, heal


def heal_and_flush(counter: Declaration) -> tuple[Result, Result]:
    """Heal and flush a counter. Return what each did, and note in Redis whether it failed. If the heal is unfinished,
    call this again."""
    try:
        healed = heal(counter, HEAL_SECONDS)
        flushed = Flush(counter, math.inf).run()
    except Exception as error:
        _note_run(counter, f"{type(error).__name__}: {' '.join(str(error).split())}")
        raise
    _note_run(counter)
    return healed, flushed


def _note_run(counter: Declaration, failure: str = "") -> None:
    """Note a run for monitoring, which sees itself if Redis or the database is out of reach."""
    with suppress(*EXPECTED):
        counter.buffer.note_run(failure)
