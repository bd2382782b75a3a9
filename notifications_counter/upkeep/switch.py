"""What is in force: a declaration of a counter, or that counting is off, as its row says."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import connections, transaction
from django.utils import timezone

from ..buffer import Buffer
from ..buffer.buffer import OFF_SECONDS
from ..buffer.keys import Keys
from ..buffer.types import OFF
from ..conf import options
from ..databases.identity import identify
from ..databases.transactions import forbid_transaction
from ..declaration import Declaration, switched_off
from ..exceptions import BufferUnavailable
from ..models import CounterState
from .generations import deploy_seconds, is_window_over, state_row
from .history import record

REPLACED = "replaced"
"""What a process finds in force once another declaration has replaced its own."""


def put_in_force(counter: Declaration) -> bool:
    """Put this process's declaration of a counter in force, but only when it heals the counter for the first time:
    otherwise, two processes with different code would take turns forever. Returns whether a generation may begin or has
    begun: not if another declaration is in force, nor for ``deploy_seconds`` after it, when readers count rows, nor
    while counting is off."""
    known = identify(connections[counter.db]).in_force
    _forget_switched_off(counter)
    row = state_row(counter).first()
    in_force = OFF if off_since(row) else counter.fingerprint
    if row is None or row.fingerprint != in_force:
        if known.get(counter.name) == counter.fingerprint:
            record("replaced", counter, level=logging.ERROR)
            known[counter.name] = REPLACED
        if known.get(counter.name) == REPLACED:
            return False
        row = declare(counter, in_force)
    if in_force == OFF:
        tell_redis(counter)
        return False
    known[counter.name] = counter.fingerprint
    if row.declared_at > when_all_tell():  # the clock of who declared it was ahead
        row.declared_at = timezone.now()
        row.save(using=counter.db, update_fields=["declared_at"])
    return is_window_over(row)


def declare(counter: Declaration, fingerprint: str) -> CounterState:
    """Put this process's declaration, or OFF, in force. Returns the row."""
    with transaction.atomic(using=counter.db):
        rows = CounterState.objects.using(counter.db).select_for_update()
        row, is_new = rows.get_or_create(counter=counter.name)
        if row.fingerprint == fingerprint:  # by another flusher, meanwhile
            return row
        event = "off" if fingerprint == OFF else "on" if off_since(row) else "declared"
        row.declared_at = when_all_tell() if event == "on" else timezone.now()
        row.fingerprint, row.mark, row.walk_speed = fingerprint, "", ""
        row.save(using=counter.db)
        if event != "off":
            counter.buffer.reset()
    record(event, counter, level=logging.INFO if is_new else logging.WARNING, wait=round(_window(row)))
    return row


def _window(row: CounterState) -> float:
    """Return for how many seconds readers go on to count rows after this was declared."""
    return deploy_seconds() + (row.declared_at - timezone.now()).total_seconds()


def _forget_switched_off(counter: Declaration) -> None:
    """Forget built-in counters of the same rows that are switched off: nobody tells Redis of their changes, so everyone
    must be counted once they are switched on again."""
    for row in CounterState.objects.using(counter.db).filter(counter__in=switched_off(counter.source_label)):
        database = identify(connections[counter.db])
        Buffer(counter.buffer.client, Keys(options.KEY_PREFIX, row.counter, database.id)).reset()
        row.delete(using=counter.db)
        database.in_force.pop(row.counter, None)


# ------------------------------------------------------------------------- the switch
def switch_off(counter: Declaration) -> bool:
    """Have readers count rows and writers tell nobody. Returns whether Redis knows. Otherwise, the next heal tells
    it."""
    forbid_transaction(counter.db)
    declare(counter, OFF)
    try:
        tell_redis(counter)
    except BufferUnavailable:
        return False
    return True


def tell_redis(counter: Declaration) -> None:
    """Tell Redis that counting is off. The row is locked, so that nobody switches it on meanwhile."""
    with transaction.atomic(using=counter.db):
        if off_since(state_row(counter).select_for_update().first()):
            counter.buffer.switch_off()


def switch_on(counter: Declaration) -> float:
    """Have writers tell Redis again, as after a change of the declaration. Returns for how many seconds readers go on
    to count rows. BufferUnavailable if Redis can't be told; then counting stays off."""
    forbid_transaction(counter.db)
    return _window(declare(counter, counter.fingerprint))


def off_since(row: CounterState | None) -> datetime | None:
    """Return when counting was switched off, None if it is on, as the row of a counter says."""
    return row.declared_at if row is not None and row.fingerprint == OFF else None


def when_all_tell() -> datetime:
    """Return when all processes will know that counting is on, if it has just been switched on: some have believed the
    opposite until OFF_SECONDS before, and executed a statement since."""
    return timezone.now() + timedelta(seconds=2 * OFF_SECONDS)
