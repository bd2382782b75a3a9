"""The state of one counter."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields
from typing import Any

from django.apps import apps
from django.db.models import Count, Min, QuerySet
from django.utils import timezone

from ..buffer.types import Stats
from ..conf import options
from ..counters import Counter
from ..maintenance.audit import AuditProgress
from ..maintenance.epochs import ShardStatus, deploy_seconds
from ..maintenance.places import Place, here
from ..maintenance.verification import Verification

MOST_REQUESTS = 10_000
"""The most requests to count. After an outage there may be many more, and monitoring should not wait for them."""


@dataclass(frozen=True)
class CounterReport:
    """The state of one counter at one place. Ages are seconds, 0 if there is nothing.

    ``counter``          its name
    ``place``            a database, or a tenant's schema in it
    ``name``             the counter's name, with the place if there are several
    ``backlog_owners``   owners with a change that waits to be flushed
    ``backlog_age``      age of the oldest change that waits to be flushed, or owner that waits for a recount
    ``dirty_owners``     owners that wait for a recount; readers count their rows
    ``intents``          intents in flight; a transaction may have several
    ``overdue``          how many of them are older than HEAL_AFTER, of at most 1,000 in each shard
    ``oldest_intent``    age of the oldest intent
    ``requests``         RecountRequests, of the MOST_REQUESTS oldest
    ``requests_age``     age of the oldest request
    ``rejected``         members that could not be stored, kept for inspection
    ``recovering``       shards that are being recovered, or wait for it
    ``audited``          the owner up to whom a recovery has recounted everyone; empty if there is no recovery
    ``audit_age``        seconds since the recovery came that far, or None
    ``verified``         owners that the flusher has compared with the rows, once for each time
    ``mismatched``       how many of them had a wrong count
    ``mismatch_age``     seconds since the last of these was found, or None
    ``everyone``         how many were compared in the last pass through everyone; if there is none yet, in this one
    ``wrong``            how many wrong counts that pass, and this one, have found
    ``everyone_age``     seconds within which everyone was compared, or None
    ``epoch``            the highest of all shards; each recovery starts a new one
    ``shards``           the state of each shard
    ``stats``            statistics since Redis was new
    ``wait``             how long an epoch waits for processes of another declaration
    """

    counter: str
    place: Place
    name: str
    backlog_owners: int
    backlog_age: int
    dirty_owners: int
    intents: int
    overdue: int
    oldest_intent: int
    requests: int
    requests_age: float
    rejected: int
    recovering: list[int]
    audited: str
    audit_age: int | None
    verified: int
    mismatched: int
    mismatch_age: float | None
    everyone: int
    wrong: int
    everyone_age: float | None
    epoch: int
    shards: list[ShardStatus]
    stats: Stats
    wait: float = 0

    @property
    def age(self) -> float:
        """Seconds that the oldest change, owner or request has waited."""
        return max(self.backlog_age, self.requests_age)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers, without the state of each shard."""
        others = ("name", "place", "shards", "wait")
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        return {"database": self.place.alias, "schema": self.place.schema, **numbers, "stats": asdict(self.stats)}


def look_at(counter: Counter) -> CounterReport:
    """Return the state of one counter. BufferUnavailable, or a database error, if Redis or the database is out of
    reach."""
    shards = counter.status()
    monitored = [buffer.upkeep.monitor(options.HEAL_AFTER) for buffer in counter.buffers]
    model = apps.get_model("notifications_counter", "RecountRequest")
    waiting: QuerySet = QuerySet(model, using=counter.db).filter(counter=counter.name)
    requests = waiting.order_by("pk")[:MOST_REQUESTS].aggregate(number=Count("pk"), since=Min("created_at"))
    age = (timezone.now() - requests["since"]).total_seconds() if requests["number"] else 0
    states = [shard.status for shard in shards]
    audits = [(audit, s.status.now) for s in shards if s.is_incomplete and (audit := AuditProgress.of(s.audited)).end]
    audit, redis_now = min(audits, key=lambda each: each[0].at, default=(AuditProgress(), 0))
    verification, now = Verification.of(shards[0].verified), time.time()
    return CounterReport(
        counter=counter.name,
        place=here(counter.source),
        name=counter.name,
        backlog_owners=sum(s.pending + s.flushing for s in states),
        backlog_age=max(s.backlog_age for s in states),
        dirty_owners=sum(s.dirty for s in states),
        intents=sum(s.intents for s in states),
        overdue=sum(m.overdue for m in monitored),
        oldest_intent=max(m.oldest for m in monitored),
        requests=requests["number"],
        requests_age=max(0, age),
        rejected=sum(s.rejected for s in states),
        recovering=[shard.shard for shard in shards if shard.is_incomplete],
        audited=audit.end.partition(":")[2],
        audit_age=max(0, redis_now - audit.at) if audit.end else None,
        verified=verification.verified,
        mismatched=verification.mismatched,
        mismatch_age=max(0, now - verification.mismatched_at) if verification.mismatched else None,
        everyone=verification.last_compared or verification.compared,
        wrong=verification.last_wrong + verification.wrong,
        everyone_age=verification.age(now),
        epoch=max(shard.epoch for shard in shards),
        shards=shards,
        stats=sum((m.stats for m in monitored), Stats()),
        wait=deploy_seconds(counter.buffers[0]),
    )
