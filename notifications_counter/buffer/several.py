"""Reads of several shards, in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..exceptions import BufferUnavailable
from .buffer import Buffer
from .cached import as_integers
from .client import Client
from .commands import Get
from .pipeline import AnyCall, Subject, pipelines_for


def ask_all(client: Client, calls: Sequence[AnyCall], subjects: Sequence[Subject]) -> list[tuple[Subject, Any]]:
    """Send all calls before the first reply is read. Returns the subject of each, and its outcome."""
    pipelines = pipelines_for(client, calls, subjects)
    try:
        for pipeline in pipelines:
            pipeline.send()
        return [each for pipeline in pipelines for each in zip(pipeline.subjects, pipeline.outcomes(), strict=True)]
    finally:
        for pipeline in pipelines:
            pipeline.close()


def totals_of(shares: Sequence[tuple[Buffer, Sequence[bytes]]]) -> list[list[int | None] | None]:
    """Return the cached totals of owners in each shard; None for each that is not cached, and for a shard that raises
    BufferUnavailable."""
    found: list[list[int | None] | None] = [None] * len(shares)
    calls: list[Get] = []
    subjects: list[tuple[int, str | bytes]] = []
    for i, (buffer, owners) in enumerate(shares):
        with suppress(BufferUnavailable):
            buffer.begin_read()
            trusted, prefix = buffer.trusted
            calls.append(Get(buffer.keys.ready, prefix, owners))
            subjects.append((i, trusted))
    for (i, trusted), outcome in ask_all(shares[0][0].client, calls, subjects) if calls else ():
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
