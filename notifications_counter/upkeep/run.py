"""The work of the flusher for one counter: heal, then flush."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from ..declaration import Declaration
from ..exceptions import EXPECTED
from .findings import Result
from .flush import Flusher
from .heal import SECONDS, heal


def heal_and_flush(
    counter: Declaration,
    progress: Callable[..., None] = lambda step, done, total=None: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Result, Result]]:
    """Heal and flush a counter in turns, until nothing is left to heal. Yield what each turn did, and note in Redis
    whether it failed.

    ``progress`` is called with the step, and the numbers of owners done and, if it is known, of all.
    """

    is_unfinished = True
    while is_unfinished and not stopped():
        try:
            healed = heal(counter, SECONDS, lambda done: progress("compared", done), stopped)
            flushed = Flusher(counter, lambda done, total: progress("flushed", done, total), stopped).flush()
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
