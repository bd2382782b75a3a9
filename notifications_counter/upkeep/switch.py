"""What is in force: a declaration of a counter, unless counting is off. The counter's row says so."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from ..buffer.buffer import OFF_SECONDS
from ..databases.transactions import forbid_transaction
from ..declaration import Declaration
from ..exceptions import BufferUnavailable
from ..models import CounterState
from .generations import deploy_seconds, is_window_over, state_row
from .history import record


def put_in_force(counter: Declaration) -> bool:
    """Put this process's declaration of a counter in force, but only when it heals the counter for the first time:
    otherwise, two processes with different code would take turns forever. Returns whether a generation may begin or has
    begun: not if another declaration is in force, nor for ``deploy_seconds`` after it, when readers count rows, nor
    while counting is off."""
    buffer, row = counter.buffer, state_row(counter).first()
    if row is not None and row.off_since:
        tell_redis(counter)
        return False
    if row is None or row.fingerprint != counter.fingerprint:
        if buffer.in_force:
            record("replaced", counter, level=logging.ERROR)
            buffer.in_force = False
        if buffer.in_force is False:
            return False
        row = declare(counter)
    buffer.in_force = True
    if row.declared_at > when_all_tell():  # the clock of who declared it was ahead
        row.declared_at = timezone.now()
        row.save(using=counter.db, update_fields=["declared_at"])
    return is_window_over(row)


def declare(counter: Declaration, switch_on: bool = False, is_off: bool = False) -> CounterState:
    """Put this process's declaration in force, and with ``switch_on`` also counting, but only if counting still
    ``is_off``, or is not, as the caller has seen: what an operator says stays. Returns the row."""
    with transaction.atomic(using=counter.db):
        rows = CounterState.objects.using(counter.db).select_for_update()
        row, is_new = rows.get_or_create(counter=counter.name)
        if bool(row.off_since) != is_off or (not switch_on and row.fingerprint == counter.fingerprint):
            return row  # meanwhile, somebody else was faster
        row.declared_at = when_all_tell() if switch_on else timezone.now()
        row.fingerprint, row.off_since, row.mark, row.walk_speed = counter.fingerprint, None, "", ""
        row.save(using=counter.db)
        counter.buffer.reset()
    event, level = "on" if switch_on else "declared", logging.INFO if is_new else logging.WARNING
    record(event, counter, level=level, wait=round(window(row)))
    return row


def window(row: CounterState) -> float:
    """Return for how many seconds readers go on to count rows after this was declared."""
    return deploy_seconds() + (row.declared_at - timezone.now()).total_seconds()


# ------------------------------------------------------------------------- the switch
def switch_off(counter: Declaration) -> bool:
    """Have readers count rows and writers tell nobody. Returns whether Redis knows. Otherwise, the next heal tells
    it."""
    forbid_transaction(counter.db)
    note_off(counter)
    try:
        tell_redis(counter)
    except BufferUnavailable:
        return False
    return True


def note_off(counter: Declaration) -> None:
    """Note in the database that counting is off, unless it is already."""
    CounterState.objects.using(counter.db).get_or_create(counter=counter.name)
    if state_row(counter).filter(off_since=None).update(off_since=timezone.now(), mark="", walk_speed=""):
        record("off", counter, level=logging.WARNING)


def tell_redis(counter: Declaration) -> None:
    """Tell Redis that counting is off. The row is locked, so that nobody switches it on meanwhile."""
    with transaction.atomic(using=counter.db):
        if state_row(counter).select_for_update().exclude(off_since=None).first():
            counter.buffer.switch_off()


def switch_on(counter: Declaration, is_off: bool = True) -> float:
    """Have writers tell Redis again, as after a change of the declaration. Returns for how many seconds readers go on
    to count rows. BufferUnavailable if Redis can't be told; then counting stays off."""
    forbid_transaction(counter.db)
    return window(declare(counter, switch_on=True, is_off=is_off))


def when_all_tell() -> datetime:
    """Return when all processes will know that counting is on, if it has just been switched on: some have believed the
    opposite until OFF_SECONDS before, and executed a statement since."""
    return timezone.now() + timedelta(seconds=2 * OFF_SECONDS)
