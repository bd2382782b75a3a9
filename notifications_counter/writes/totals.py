"""Doubts owners whose stored totals something other than the flusher has written: a fixture, a shell, an admin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Any

from ..declaration import Declaration
from ..internals import InsertQuery, UpdateQuery
from .ledger import Ledger
from .rows import rows_of
from .transaction import Change

_maintained: ContextVar[bool] = ContextVar("maintained", default=False)


@contextmanager
def maintained() -> Iterator[None]:
    """Mark writes to totals as the app's own, which put nobody in doubt."""
    token = _maintained.set(True)
    try:
        yield
    finally:
        _maintained.reset(token)


def write_totals(counters: tuple[Declaration, ...], compiler: Any, execute: Callable[[], Any]) -> Any:
    """Execute a statement of the ORM that writes totals of these counters, and put the owners in doubt."""
    query, connection = compiler.query, compiler.connection
    if isinstance(query, UpdateQuery):
        names = {field.name for field, *_ in query.values}  # type: ignore[attr-defined]
        counters = tuple(c for c in counters if names & {c.field, *(f.name for f in c.total_fields)})
    counters = tuple(c for c in counters if c.db == connection.alias)  # a counter belongs to one database
    if not counters or _maintained.get():
        return execute()

    def execute_and_doubt() -> tuple[Any, Change]:
        written = {counter: _owners(counter, query, connection.alias) for counter in counters}
        everyone_of = [
            counter
            for counter, keys in written.items()
            if any(hasattr(value, "resolve_expression") for value in chain(*keys))
        ]
        deltas = {counter: _doubts(counter, keys) for counter, keys in written.items() if counter not in everyone_of}
        return execute(), Change(deltas, everyone_of)

    return Ledger.on(connection).write(None, execute_and_doubt)


def _owners(counter: Declaration, query: Any, using: str) -> list[tuple[Any, ...]]:
    """Return the owner columns of the totals that a statement writes, before and after it."""
    names = [field.attname for field in counter.total_fields] if counter.has_several_columns else ["pk"]
    if isinstance(query, InsertQuery):
        return [tuple(getattr(instance, name) for name in names) for instance in query.objs]
    before = list(rows_of(query, using).select_for_update().values_list(*names))
    if not isinstance(query, UpdateQuery):
        return before
    new = {"pk" if f.primary_key else f.attname: value for f, _, value in query.values}  # type: ignore[attr-defined]
    return before + [tuple(new.get(name, value) for name, value in zip(names, key, strict=True)) for key in before]


def _doubts(counter: Declaration, keys: list[tuple[Any, ...]]) -> dict[str, None]:
    owners = ([getattr(value, "pk", value) for value in key] for key in keys)
    owner_keys = (counter.encode(owner if counter.has_several_columns else owner[0]) for owner in owners)
    return dict.fromkeys(owner_key for owner_key in owner_keys if owner_key is not None)
