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
from ..reports import report
from .generations import deploy_seconds, row_in_force, seconds_to_wait, state_row

_in_force = set[tuple[str, str]]()
"""Declarations, by keys and fingerprint, that this process has found in force."""
_told = set[tuple[str, str]]()
"""Those of which it has told that another one has replaced them."""


def put_in_force(counter: Declaration) -> CounterState | None:
    """Put this process's declaration of a counter in force, but only when it heals the counter for the first time:
    otherwise, two processes with different code would take turns forever. Returns the counter's row; None if another
    declaration has replaced this one, or counting is off, which Redis is told again."""
    me = counter.buffer.base, counter.fingerprint
    row = state_row(counter).first()
    if row is None or not (row.off_since or row.fingerprint == counter.fingerprint):
        row = None if me in _in_force else declare(counter)
        if row is None:
            if me not in _told:
                report("replaced", counter)
            _told.add(me)
            return None
    if row.off_since:
        switch_redis_off(counter)
        return None
    _in_force.add(me)
    _told.discard(me)
    if timedelta(0) < timedelta(seconds=deploy_seconds() / 3) < timezone.now() - row.healed_at:
        row_in_force(counter).update(healed_at=timezone.now())
    if row.declared_at > when_all_tell():  # the clock of who declared it was ahead
        row.declared_at = when_all_tell()
        row.save(using=counter.db, update_fields=["declared_at"])
    return row


def declare(counter: Declaration) -> CounterState | None:
    """Put this process's declaration in force, unless another process has just done so, or switched counting off.
    Returns the row; None if this declaration was replaced before, and a flusher of the one in force still runs:
    otherwise, new processes of two releases, as cron starts them, would take turns forever."""
    with transaction.atomic(using=counter.db):
        row, is_new = _lock_row(counter)
        if row.off_since or row.fingerprint == counter.fingerprint:
            return row
        is_alive = timezone.now() - row.healed_at < timedelta(seconds=deploy_seconds())
        if is_alive and counter.fingerprint in row.replaced.split():
            return None
        _start_waiting(counter, row, timezone.now())
    level = logging.INFO if is_new else logging.WARNING
    report("declared", counter, level=level, wait=round(seconds_to_wait(row)))
    return row


def _lock_row(counter: Declaration) -> tuple[CounterState, bool]:
    """Lock the row of a counter, and return it, and whether it is new."""
    return CounterState.objects.using(counter.db).select_for_update().get_or_create(counter=counter.name)


def _start_waiting(counter: Declaration, row: CounterState, declared_at: datetime) -> None:
    """Declare a counter. No generation begins until all processes know it (rule: window)."""
    others = {*row.replaced.split(), row.fingerprint} - {counter.fingerprint, ""}
    row.replaced, row.healed_at = " ".join(sorted(others)), timezone.now()
    row.fingerprint, row.declared_at, row.off_since = counter.fingerprint, declared_at, None
    row.mark = row.walk_speed = ""
    row.save(using=counter.db)
    counter.buffer.reset()


# ------------------------------------------------------------------------- the switch
def switch_off(counter: Declaration) -> bool:
    """Have readers count rows and writers tell nobody. Returns whether Redis knows. Otherwise, the next heal tells
    it."""
    forbid_transaction(counter.db)
    note_off(counter)
    try:
        switch_redis_off(counter)
    except BufferUnavailable:
        return False
    return True


def note_off(counter: Declaration) -> None:
    """Note in the database that counting is off, unless it is already."""
    CounterState.objects.using(counter.db).get_or_create(counter=counter.name)
    if state_row(counter).filter(off_since=None).update(off_since=timezone.now(), mark="", walk_speed=""):
        report("off", counter)


def switch_redis_off(counter: Declaration) -> None:
    """Tell Redis that counting is off. The row is locked, so that nobody switches it on meanwhile."""
    with transaction.atomic(using=counter.db):
        if state_row(counter).select_for_update().exclude(off_since=None).first():
            counter.buffer.switch_off()


def switch_on(counter: Declaration, was_off: bool = True) -> float:
    """Have writers tell Redis again, as after a change of the declaration. Returns for how many seconds readers go on
    to count rows. Does nothing unless the row says off; or on, without ``was_off``, where only Redis says off.
    BufferUnavailable if Redis can't be told; then nothing has changed."""
    forbid_transaction(counter.db)
    with transaction.atomic(using=counter.db):
        row, _ = _lock_row(counter)
        if bool(row.off_since) != was_off:
            return 0.0
        _start_waiting(counter, row, when_all_tell())
    report("on", counter, wait=round(seconds_to_wait(row)))
    return seconds_to_wait(row)


def when_all_tell() -> datetime:
    """Return when all processes will know that counting is on, if it has just been switched on: some have believed the
    opposite until OFF_SECONDS before, and executed a statement since."""
    return timezone.now() + timedelta(seconds=2 * OFF_SECONDS)
