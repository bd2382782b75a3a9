"""The declaration of a counter, and the number of shards, that are in force: Redis counts by them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.db import connections, transaction
from django.db.models import Max
from django.utils import timezone

from ..conf import options
from ..databases.identity import identify, look_up_changed
from ..declaration import Declaration, switched_off
from .epochs import deploy_seconds
from .history import record
from .shard_rows import all_shard_rows, make_row, shard_rows

_last_heals: dict[tuple[str, str], tuple[int, bool]] = {}
"""By counter and database: SHARDS when this process last healed the counter, and whether these and its declaration were
in force then."""


def begin_run(counter: Declaration) -> list[Any]:
    """Begin a run of the flusher for a counter. Returns the rows of its shards.

    The database is asked for its id again, because it may have been emptied or replaced. Counters of the same source
    that are switched off are forgotten: their changes are not recorded, so everyone must be recounted once they are
    switched on again.
    """
    database = look_up_changed(connections[counter.db])
    off = switched_off(counter.source_label)
    rows = list(all_shard_rows(counter.db).filter(counter__in=[counter.name, *off]))
    for row in rows:
        if row.counter in off:
            off[row.counter].make_buffer(database, row.shard, row.shards).upkeep.forget()
            row.delete()
    return [row for row in rows if row.counter == counter.name]


def is_in_force(counter: Declaration, rows: Sequence[Any]) -> bool:
    """Return whether this process's declaration of a counter, and its SHARDS, are in force, judging by the rows of its
    shards."""
    return {(row.declared, row.shards) for row in rows} <= {(counter.fingerprint, options.SHARDS)}


def put_in_force(counter: Declaration, rows: Sequence[Any]) -> bool:
    """If others are in force, put this process's declaration of a counter, and its SHARDS, in force, but only when it
    heals the counter for the first time. Otherwise, two processes with different settings would take turns forever.

    Returns whether they are in force now.
    """
    in_force = is_in_force(counter, rows)
    about = counter.name, identify(connections[counter.db]).id
    shards, was_in_force = _last_heals.get(about, (0, False))
    is_first_heal = shards != options.SHARDS  # a test may change it
    if not in_force and is_first_heal:
        if not _replace(counter):
            return False
        in_force = True
        record("declared", counter, level=logging.WARNING, wait=deploy_seconds(counter.buffers[0]))
    elif not in_force and was_in_force and not is_first_heal:
        record("replaced", counter, level=logging.ERROR)
    _last_heals[about] = options.SHARDS, in_force
    return in_force


def _replace(counter: Declaration) -> bool:
    """Put this process's declaration, and its number of shards, in force. Changes that wait in the old shards are
    dropped, because everyone will be recounted. Intents are registered in the new ones: otherwise, a transaction that
    commits after its owners were recounted, and whose process is killed then, would leave no trace.

    If the process is killed between two steps, one with either number can begin again, because the rows of both are
    there until the end. Returns False if another process has put its number in force meanwhile.
    """
    declaration = {"declared": counter.fingerprint, "declared_at": timezone.now()}
    rows, number = shard_rows(counter), options.SHARDS
    highest = rows.exclude(shards=number).aggregate(Max("epoch"))["epoch__max"]
    if highest is not None:
        for shard in range(number):
            make_row(counter, shard, **declaration, epoch=highest)
    database = identify(connections[counter.db])
    with transaction.atomic(using=counter.db):
        found = list(rows.order_by("pk").select_for_update())
        mine, old = ([row for row in found if (row.shards == number) == is_mine] for is_mine in (True, False))
        if old and len(mine) < number:  # rule: alone
            return False
        # By key: MariaDB would lock the rows by another index, in another order than flushers. It locks SQLite, too.
        rows.filter(pk__in=[row.pk for row in mine]).update(**declaration)
        for buffer in counter.buffers if old else ():
            buffer.upkeep.reuse()  # rule: reuse
        for row in old:
            retired = counter.make_buffer(database, row.shard, row.shards)
            retired.upkeep.retire()  # rule: retire: before its intents are read
            for intent in retired.upkeep.intents():
                for buffer, owner_keys in counter.by_shard(intent.owners or ()):
                    buffer.upkeep.register(intent.id, owner_keys)  # rule: register
            retired.upkeep.drop_intents()
            row.delete()
    return True


def shards_in_force(counter: Declaration) -> int:
    """Return the number of shards that the flusher uses; this process's own if it has not run yet."""
    found = set(shard_rows(counter).values_list("shards", flat=True))
    return options.SHARDS if options.SHARDS in found or not found else found.pop()
