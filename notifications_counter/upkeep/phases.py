"""In which phase a counter is, as the database and Redis say."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext_noop as _

from ..buffer import BufferStatus
from ..buffer.buffer import OFF_SECONDS
from ..conf import options
from ..declaration import Declaration
from ..models import CounterState, Mark

OTHER_REDIS = _("Redis is new, was restarted or replaced, or lost data")
NOT_READY = _(
    "everyone is in doubt: a statement did not say whose counts it changed (the log names its model), or Redis has "
    "lost the key `ready`"
)


class Phase(StrEnum):
    """What happens to a counter. Unless it is WALKING or NORMAL, reads count rows."""

    NEW = "new"  # no flusher has run yet
    REPLACED = "replaced"  # a declaration other than this process's is in force
    OFF = "off"  # counting was switched off
    DEPLOYING = "deploying"  # processes of another declaration may still run, so no generation may begin
    DUE = "due"  # nobody has been counted yet, or Redis or the database has lost something: a generation is due
    WALKING = "walking"  # stored totals are compared with the rows
    NORMAL = "normal"


def state_row(counter: Declaration) -> QuerySet[CounterState]:
    """Return the row of a counter, if it has been healed once."""
    return CounterState.objects.using(counter.db).filter(counter=counter.name)


def row_of(counter: Declaration) -> CounterState:
    """Return the row of a counter, or one that is not saved yet."""
    return state_row(counter).first() or CounterState()


def row_in_force(counter: Declaration) -> QuerySet[CounterState]:
    """Return the row of a counter if this process's declaration is in force, and counting is on. Otherwise, a flusher
    has nothing to do."""
    # rule: declared_flush, rule: declared_walk
    return state_row(counter).filter(fingerprint=counter.fingerprint, off_since=None)


class Situation(NamedTuple):
    """What the database and Redis say of a counter at about the same time, and the ``phase`` that follows from it."""

    phase: Phase
    row: CounterState
    status: BufferStatus
    server: str


def situation_of(counter: Declaration) -> Situation:
    """Ask the database and Redis. BufferUnavailable, or a database error, if one is out of reach."""
    # The row comes last: if a flusher has just stored a batch there, Redis had not dropped it yet.
    status = counter.buffer.status()
    server = counter.buffer.server()
    row = row_of(counter)
    return Situation(phase_of(row, status, server, counter.fingerprint), row, status, server)


def phase_of(row: CounterState, status: BufferStatus, server: str, fingerprint: str) -> Phase:
    """Return what happens to a counter, given what the database and Redis say, and this process's declaration."""
    phase = phase_without_redis(row, fingerprint)
    if phase is not None:
        return phase
    if lost(row, status, server):
        return Phase.DUE
    return Phase.WALKING if row.walk_speed == row.FULL_SPEED else Phase.NORMAL


def phase_without_redis(row: CounterState, fingerprint: str) -> Phase | None:
    """Return the phase as far as the database decides it; None if Redis has to be asked, too."""
    if row.off_since:
        return Phase.OFF
    if not row.fingerprint:
        return Phase.NEW
    if row.fingerprint != fingerprint:
        return Phase.REPLACED
    return Phase.DEPLOYING if seconds_to_wait(row) > 0 else None


def lost(row: CounterState, status: BufferStatus, server: str) -> str:
    """Return why a generation is due: what shows that Redis has lost data, or the database was restored to an older
    state. Empty if nothing does.

    This is certain only if ``status`` was read while the ``row`` was locked. Otherwise a batch that another flusher
    finishes in between looks like a lost one.
    """
    if not row.mark:
        return _("nobody has been counted yet")
    # rule: ready, rule: server
    if status.server != server:
        return OTHER_REDIS
    if not status.generation:
        return NOT_READY
    # rule: agree
    if status.mark != row.mark and not (status.batch and Mark(row.mark).batch == status.batch):
        return _("Redis or the database went back in time")
    return ""


def seconds_to_wait(row: CounterState) -> float:
    """Return for how many seconds readers go on to count rows after a declaration, until a generation may begin; 0 or
    less once that time is over, or one has begun (rule: window), or no process can have another declaration."""
    if row.mark or row.declared_at is None:
        return 0.0
    return deploy_seconds() - (timezone.now() - row.declared_at).total_seconds()


def deploy_seconds() -> float:
    """Return for how many seconds rows are counted after a declaration has changed, until all processes have the new
    one: DEPLOY_SECONDS, or 0 in development unless the site sets it."""
    return options.DEPLOY_SECONDS if options.is_set("DEPLOY_SECONDS") or not settings.DEBUG else 0


def when_all_tell() -> datetime:
    """Return when all processes will know that counting is on, if it has just been switched on: some have believed the
    opposite until OFF_SECONDS before, and executed a statement since."""
    return timezone.now() + timedelta(seconds=2 * OFF_SECONDS)
