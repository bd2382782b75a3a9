"""What is in force: a declaration of a counter, unless counting is off. The counter's row says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from ..databases.isolation import forbid_transaction
from ..declaration import Declaration
from ..exceptions import BufferUnavailable
from ..models import CounterState
from ..reports import report
from .phases import (
    Phase,
    deploy_seconds,
    phase_without_redis,
    row_in_force,
    row_of,
    seconds_to_wait,
    state_row,
    when_all_tell,
)

_in_force = set[tuple[str, str]]()
"""Declarations, by keys and fingerprint, that this process has found or put in force."""
_told = set[tuple[str, str]]()
"""Those of which it has told that another one has replaced them."""


def settle(counter: Declaration) -> bool:
    """Take the steps of the phases in which nobody is served, one after another, until nothing changes. Returns whether
    the counter is served by this process's declaration."""
    before = None
    while True:
        row = row_of(counter)
        phase = phase_without_redis(row, counter.fingerprint)
        if phase is None or phase == before:
            break
        STEPS[phase](counter)
        before = phase
    if row.fingerprint == counter.fingerprint:
        note_in_force(counter, row)
    return phase is None


def declare(counter: Declaration) -> bool:
    """Put this process's declaration in force, unless another process has just done so, or switched counting off.
    Returns False if this declaration was replaced before, and a flusher of the one in force still runs: otherwise, new
    processes of two releases, as cron starts them, would take turns forever."""
    with transaction.atomic(using=counter.db):
        row, is_new = _lock_row(counter)
        if row.off_since or row.fingerprint == counter.fingerprint:
            return True
        is_alive = timezone.now() - row.healed_at < timedelta(seconds=deploy_seconds())
        if is_alive and counter.fingerprint in row.replaced.split():
            return False
        _start_waiting(counter, row, timezone.now())
    level = logging.INFO if is_new else logging.WARNING
    report("declared", counter, level=level, wait=round(seconds_to_wait(row)))
    return True


def declare_once(counter: Declaration) -> None:
    """Declare a counter in place of another declaration, but not if it has been in force in this process: otherwise,
    two processes with different code would take turns forever."""
    me = counter.buffer.base, counter.fingerprint
    if (me in _in_force or not declare(counter)) and me not in _told:
        _told.add(me)
        report("replaced", counter)


def note_in_force(counter: Declaration, row: CounterState) -> None:
    """Note that this process's declaration is in force, and that a flusher heals by it."""
    me = counter.buffer.base, counter.fingerprint
    _in_force.add(me)
    if timedelta(0) < timedelta(seconds=deploy_seconds() / 3) < timezone.now() - row.healed_at:
        row_in_force(counter).update(healed_at=timezone.now())


def mend_clock(counter: Declaration) -> None:
    """Wait no longer than after ``switch_on``, if the clock of who declared the counter was ahead."""
    latest = when_all_tell()
    row_in_force(counter).filter(declared_at__gt=latest).update(declared_at=latest)


def _lock_row(counter: Declaration) -> tuple[CounterState, bool]:
    """Lock the row of a counter, and return it, and whether it is new."""
    return CounterState.objects.using(counter.db).select_for_update().get_or_create(counter=counter.name)


def _start_waiting(counter: Declaration, row: CounterState, declared_at: datetime) -> None:
    """Declare a counter. No generation begins until all processes know it (rule: window)."""
    others = {*row.replaced.split(), row.fingerprint} - {counter.fingerprint, ""}
    row.replaced = " ".join(sorted(others))
    row.healed_at = timezone.now()
    row.fingerprint = counter.fingerprint
    row.declared_at = declared_at
    row.off_since = None
    row.mark = ""
    row.save(using=counter.db)
    counter.buffer.await_generation()


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
    if state_row(counter).filter(off_since=None).update(off_since=timezone.now(), mark=""):
        report("off", counter)


def switch_redis_off(counter: Declaration) -> None:
    """Tell Redis that counting is off. The row is locked, so that nobody switches it on meanwhile."""
    with transaction.atomic(using=counter.db):
        if state_row(counter).select_for_update().exclude(off_since=None).first():
            counter.buffer.switch_off()


def switch_on(counter: Declaration) -> float | None:
    """Have writers tell Redis again, as after a change of the declaration. Returns for how many seconds readers go on
    to count rows; None, and does nothing, if counting is on. BufferUnavailable if Redis can't be told; then nothing has
    changed."""
    forbid_transaction(counter.db)
    with transaction.atomic(using=counter.db):
        row, _ = _lock_row(counter)
        if not row.off_since:
            return None
        _start_waiting(counter, row, when_all_tell())
    report("on", counter, wait=round(seconds_to_wait(row)))
    return seconds_to_wait(row)


STEPS: dict[Phase, Callable[[Declaration], object]] = {
    Phase.NEW: declare,
    Phase.REPLACED: declare_once,
    Phase.OFF: switch_redis_off,
    Phase.DEPLOYING: mend_clock,
}
"""What a flusher does in each phase in which it serves nobody."""
