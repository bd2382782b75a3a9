"""Only the flusher writes stored totals. If anything else does, such as a fixture, a shell or an admin, the owner is
recounted.

Saving or deleting an instance sends ``post_save`` or ``post_delete``. The door sees the statements that send no signal:
``update()``, ``bulk_create()`` and raw deletions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db.models import Model
from django.db.models.signals import post_delete, post_save

from ..declaration import Declaration, declarations
from ..internals import InsertQuery, UpdateQuery
from .ledger import Ledger
from .rows import rows_of

_maintained: ContextVar[bool] = ContextVar("maintained", default=False)


@contextmanager
def maintained() -> Iterator[None]:
    """Mark writes to totals as the app's own, which need no recount."""
    token = _maintained.set(True)
    try:
        yield
    finally:
        _maintained.reset(token)


def write_totals(counters: tuple[Declaration, ...], compiler: Any, execute: Callable[[], Any]) -> Any:
    """Execute a statement of the ORM that writes the totals of these counters."""
    query, using = compiler.query, compiler.connection.alias
    if isinstance(query, UpdateQuery):
        names = {field.name for field, *_ in query.values}  # type: ignore[attr-defined]
        counters = tuple(c for c in counters if names & {c.field, c.batch_field, c.totals._meta.pk.name})
    if not counters or _maintained.get():
        return execute()
    ledger = Ledger.of(using)

    def execute_in_doubt() -> Any:
        if isinstance(query, InsertQuery):
            keys = [instance.pk for instance in query.objs]
        else:
            keys = list(rows_of(query, query.model, using).select_for_update().values_list("pk", flat=True))
            if isinstance(query, UpdateQuery):
                keys += [value for field, _, value in query.values if field.primary_key]  # type: ignore[attr-defined]
        result = execute()
        for counter in counters:
            if any(hasattr(key, "resolve_expression") for key in keys):
                ledger.doubt(counter)
            else:
                _doubt(ledger, counter, keys)
        return result

    return ledger.write(None, execute_in_doubt)


def listen() -> None:
    """Connect the receivers to the totals of all declared counters."""
    for model in {counter.totals for counter in declarations()}:
        for signal in (post_save, post_delete):
            signal.connect(_written, sender=model, dispatch_uid="notifications_counter")


def _written(sender: type[Model], instance: Model, using: str, **_: Any) -> None:
    """Recount the owner of a total that was saved, also by ``loaddata``, or deleted."""
    for counter in declarations():
        if counter.totals is sender and not _maintained.get():
            _doubt(Ledger.of(using), counter, [instance.pk])


def _doubt(ledger: Ledger, counter: Declaration, keys: list[Any]) -> None:
    members = (counter.encode(getattr(key, "pk", key)) for key in keys)
    ledger.record_deltas(counter, dict.fromkeys(member for member in members if member is not None))
