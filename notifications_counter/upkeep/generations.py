"""Generations: the fresh cache that begins when Redis and the database do not agree."""

from __future__ import annotations

import logging
from typing import Any
from uuid import uuid4

from django.db import connections, transaction
from django.utils import timezone

from ..databases.isolation import sees_what_others_see
from ..declaration import Declaration
from ..exceptions import ConfigurationError
from ..models import CounterState, Mark
from ..reports import report
from .phases import deploy_seconds, lost, row_in_force, seconds_to_wait, state_row


def forbid_replaced(counter: Declaration) -> None:
    """Raise ConfigurationError if another declaration of a counter is in force."""
    if state_row(counter).exclude(fingerprint__in=["", counter.fingerprint]).exists():
        raise ConfigurationError(
            f"Another release declares the counter {counter.name!r} differently. Restart this process with the code "
            "and settings of that release, or start its flusher if this release is the newer one."
        )


def forbid_other_rows(counter: Declaration) -> None:
    """Raise ConfigurationError if the database shows this connection other rows than everyone else."""
    connection = connections[counter.db]
    table = counter.source._meta.db_table
    if connection.vendor != "sqlite" and not sees_what_others_see(connection, table):
        raise ConfigurationError(
            f"What this connection sees of {table} can't be stored: PostgreSQL hides rows from it by row-level "
            "security, or is a standby, or the isolation level is READ UNCOMMITTED. Use another database user, server "
            "or level."
        )


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


def begin_generation(counter: Declaration, reason: str = "") -> None:
    """Begin a generation for the given reason, or for one that ``lost`` finds, if any: what Redis has cached is not
    found any more, and a walk looks at everyone.

    The row is locked until Redis and the database both know the generation. Otherwise two processes could take turns
    forever.
    """
    buffer = counter.buffer
    with transaction.atomic(using=counter.db):
        row = row_in_force(counter).select_for_update().first()
        if row is None or seconds_to_wait(row) > 0:
            return
        server = buffer.server()
        if not (reason := reason or lost(row, buffer.status(), server)):
            return
        mark = Mark.of_generation()
        if not buffer.begin_generation(mark, server, deploy_seconds()):
            return
        walk = walk_from_the_start(CounterState.FULL_SPEED)
        state_row(counter).update(mark=mark, declared_at=row.declared_at or timezone.now(), **walk)
    report("generation", counter, level=logging.WARNING if row.mark else logging.INFO, reason=reason)
