"""Heals a counter: settles which declaration is in force, doubts the owners of DoubtRequests and overdue intents,
begins a generation if Redis or the database has lost something, and walks over everyone if that is due."""

from __future__ import annotations

from ..buffer import Buffer
from ..buffer.types import OWNERS_PER_CALL
from ..conf import options
from ..databases.isolation import forbid_transaction
from ..declaration import Declaration
from ..models import DoubtRequest
from .distrust import why_unhooked
from .findings import Result
from .generations import begin_generation, forbid_other_rows
from .phases import Phase, row_of, situation_of
from .switch import settle, switch_off
from .walk import Walker

HEAL_SECONDS = 5.0
"""Seconds for which one heal walks."""


def heal(counter: Declaration, seconds: float) -> Result:
    """Heal a counter, and walk: at full speed for about ``seconds``, or a page of a gentle walk if it is due. See
    ``Counter.heal``."""
    forbid_transaction(counter.db)
    forbid_other_rows(counter)
    if why_unhooked() and not row_of(counter).off_since:  # of a tenant that was made since
        switch_off(counter)
    if not settle(counter):
        return Result()
    _doubt_requested(counter)
    _ground_overdue(counter.buffer)
    if situation_of(counter).phase == Phase.DUE:  # which doubts of everyone bring about, too
        begin_generation(counter)
    return Walker(counter, seconds).walk_together()


def _doubt_requested(counter: Declaration) -> None:
    """Doubt the owners that DoubtRequests name, and delete exactly the requests that were read. Their transactions
    have committed, so a count of rows sees their changes."""
    rows = DoubtRequest.objects.using(counter.db)
    requests = rows.filter(counter=counter.name).order_by("pk")
    while found := list(requests[:OWNERS_PER_CALL]):
        counter.buffer.doubt(list({request.named for request in found}))
        rows.filter(pk__in=[request.pk for request in found]).delete()
        requests = requests.filter(pk__gt=found[-1].pk)  # only faster: PostgreSQL reads deleted rows, too


def _ground_overdue(buffer: Buffer) -> None:
    """Ground overdue intents, and each of them again whenever its age has doubled. Drop those whose transaction must be
    dead (rule: stays)."""
    now = buffer.status().now
    for intent in buffer.intents():
        if intent.began > now:  # it was announced since, or the clock was set back
            now = buffer.status().now
        age = now - intent.began
        if age >= max(options.MAX_TRANSACTION_AGE, options.HEAL_AFTER):
            buffer.ground(intent.id, drop=True)
        elif age < 0 or intent.late(now) >= 0:  # below 0: the clock was set back
            buffer.ground(intent.id)
