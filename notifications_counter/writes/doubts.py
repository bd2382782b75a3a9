"""Owners in doubt: told to Redis, or else noted as DoubtRequests in the database."""

from __future__ import annotations

import logging
from contextlib import suppress

from django.db import DatabaseError, Error, connections, transaction

from ..buffer.calls import OWNERS_PER_CALL
from ..exceptions import BufferUnavailable
from ..internals import as_manual_transaction
from ..models import DoubtRequest
from .change import EVERYONE, OwnerKeys

logger = logging.getLogger("notifications_counter")


def doubt(owners: OwnerKeys) -> None:
    """Put owners in doubt, so that readers count their rows, unless Redis is unreachable."""
    for counter, owner_keys in owners.items():
        with suppress(BufferUnavailable):  # also if the id of the database is unknown
            if EVERYONE in owner_keys:
                counter.buffer.doubt_everyone()
            else:
                counter.buffer.doubt([owner_key for owner_key in owner_keys if owner_key is not EVERYONE])


def request_doubts(using: str, owners: OwnerKeys) -> None:
    """Write DoubtRequests, in the current transaction if there is one."""
    requests = [
        DoubtRequest(counter=counter.name, everyone=True)
        if owner_key is EVERYONE
        else DoubtRequest(counter=counter.name, owner_key=owner_key)
        for counter, owner_keys in owners.items()
        for owner_key in owner_keys
    ]
    if not requests:
        return
    try:
        with as_manual_transaction(connections[using]), transaction.atomic(using=using):
            DoubtRequest.objects.using(using).bulk_create(requests, batch_size=OWNERS_PER_CALL)
    except DatabaseError:
        if DoubtRequest._meta.db_table in connections[using].introspection.table_names():
            raise
        # Another app's migration runs before our first one: there are no counts that could be wrong.


def request_or_log(using: str, owners: OwnerKeys) -> None:
    """Write DoubtRequests for owners that Redis did not accept (rule: request). A failure is logged."""
    try:
        request_doubts(using, owners)
    except Error:
        number = sum(map(len, owners.values()))
        about = {"event": "requests_failed", "database": using, "owners": number}
        logger.exception("DoubtRequests of %d owners could not be written.", number, extra=about)
