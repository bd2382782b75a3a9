"""Reads of several shards, in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..exceptions import BufferUnavailable
from .buffer import Buffer
from .commands import Get
from .pipeline import pipelines_for
from .types import as_integers


def totals_of(shares: Sequence[tuple[Buffer, Sequence[bytes]]]) -> list[list[int | None] | None]:
    """Return the cached totals of owners in each shard; None for each that is not cached, and for a shard that raises
    BufferUnavailable."""
    found: list[list[int | None] | None] = [None] * len(shares)
    calls: list[Get] = []
    subjects: list[tuple[int, str | bytes]] = []
    for i, (buffer, owners) in enumerate(shares):
        with suppress(BufferUnavailable):
            buffer.require_writes()
            trusted, prefix = buffer.trusted
            calls.append(Get(buffer.keys.ready, prefix, owners))
            subjects.append((i, trusted))
    pipelines = pipelines_for(shares[0][0].client, calls, subjects) if calls else ()
    try:
        for pipeline in pipelines:
            pipeline.send()
        outcomes = [each for pipe in pipelines for each in zip(pipe.subjects, pipe.outcomes(), strict=True)]
    finally:
        for pipeline in pipelines:
            pipeline.close()
    for (i, trusted), outcome in outcomes:
        if isinstance(outcome, BufferUnavailable):
            continue
        ready, *totals = outcome
        if ready == trusted:
            found[i] = as_integers(totals)
            continue
        with suppress(BufferUnavailable):
            shares[i][0].trust(ready)
            (found[i],) = totals_of([shares[i]])
    return found
