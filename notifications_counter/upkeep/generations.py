"""Generations: what shows that Redis and the database do not agree, and the fresh cache that begins then."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.db import connections, transaction
from django.db.models import QuerySet
from django.utils import timezone

from ..buffer import BufferStatus
from ..buffer.types import OFF
from ..conf import options
from ..databases.transactions import sees_what_others_see
from ..declaration import Declaration
from ..exceptions import ConfigurationError
from ..models import CounterState, Mark
from ..reports import report

OTHER_REDIS = "Redis is new, was restarted or replaced, or lost data"
NOT_READY = "everyone is in doubt: a statement did not say whose counts it changed, or Redis has lost the key `ready`"


def state_row(counter: Declaration) -> QuerySet[CounterState]:
    """Return the row of a counter, if it has been healed once."""
    return CounterState.objects.using(counter.db).filter(counter=counter.name)


def row_in_force(counter: Declaration) -> QuerySet[CounterState]:
    """Return the row of a counter if this process's declaration is in force, and counting is on. Otherwise, a flusher
    has nothing to do."""
    # rules: declared_flush, declared_walk
    return state_row(counter).filter(fingerprint=counter.fingerprint, off_since=None)


def forbid_replaced(counter: Declaration) -> None:
    """Raise ConfigurationError if another declaration of a counter is in force."""
    if state_row(counter).exclude(fingerprint__in=["", counter.fingerprint]).exists():
        raise ConfigurationError(
            f"Another release declares the counter {counter.name!r} differently. Restart this process with the code "
            "and settings of that release, or start its flusher if this release is the newer one."
        )


def forbid_other_rows(counter: Declaration) -> None:
    """Raise ConfigurationError if the database shows this connection other rows than everyone else."""
    connection, table = connections[counter.db], counter.source._meta.db_table
    if connection.vendor != "sqlite" and not sees_what_others_see(connection, table):
        raise ConfigurationError(
            f"What this connection sees of {table} can't be stored: PostgreSQL hides rows from it by row-level "
            "security, or is a standby, or the isolation level is READ UNCOMMITTED. Use another database user, server "
            "or level."
        )


def lost(status: BufferStatus, row: CounterState, server: str) -> str:
    """Return what shows that Redis has lost data, or the database was restored to an older state; empty if nothing
    does.

    This is certain only if ``status`` was read while the ``row`` was locked. Otherwise a batch that another flusher
    finishes in between looks like a lost one.
    """
    if not row.mark:
        return "nobody has been counted yet"
    # rules: ready, server
    if status.server != server:
        return OTHER_REDIS
    if status.ready in ("", OFF):
        return NOT_READY
    # rule: agree
    if status.mark != row.mark and not (status.batch and Mark(row.mark).batch == status.batch):
        return "Redis or the database went back in time"
    return ""


def deploy_seconds() -> float:
    """Return for how many seconds rows are counted after a declaration has changed, until all processes have the new
    one: DEPLOY_SECONDS, or 0 in development unless the site sets it."""
    return options.DEPLOY_SECONDS if options.is_set("DEPLOY_SECONDS") or not settings.DEBUG else 0


def seconds_since(time: datetime) -> float:
    """Return the age of a time in seconds, below 0 if it is in the future."""
    return (timezone.now() - time).total_seconds()


def seconds_to_wait(row: CounterState) -> float:
    """Return for how many seconds readers go on to count rows after a declaration, until a generation may begin; 0 or
    less once that time is over, or one has begun (rule: window)."""
    return 0.0 if row.mark else deploy_seconds() - seconds_since(row.declared_at)


def walk_from_the_start(speed: str) -> dict[str, Any]:
    """Return the fields of a row when a walk begins. The one that is under way is given up."""
    now = timezone.now()
    return {
        "walk_token": uuid4().hex,
        "walk_speed": speed,
        "walked_to": None,
        "walk_began_at": now,
        "walk_resumes_at": now,
    }


def begin_generation(counter: Declaration, reason: str = "") -> bool:
    """Begin a generation for the given reason, or for one that ``lost`` finds, if any: what Redis has cached is not
    found any more, and a walk looks at everyone. Returns whether it began.

    The row is locked until Redis and the database both know the generation. Otherwise two processes could take turns
    forever.
    """
    buffer = counter.buffer
    with transaction.atomic(using=counter.db):
        row = row_in_force(counter).select_for_update().first()
        if row is None or seconds_to_wait(row) > 0:
            return False
        server = buffer.server()
        if not (reason := reason or lost(buffer.status(), row, server)):
            return False
        is_first = not row.mark
        mark = Mark.of_generation()
        if not buffer.begin_generation(mark, server):
            return False
        state_row(counter).update(mark=mark, **walk_from_the_start(CounterState.FULL_SPEED))
    report("generation", counter, level=logging.INFO if is_first else logging.WARNING, reason=reason)
    return True
