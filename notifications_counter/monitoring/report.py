"""The state of the counters, for `flush_counters --check`, the health check, the metrics and the admin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from django.apps import apps
from django.db import Error as DatabaseFailure
from django.db import connections
from django.db.models import Count, Min, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..buffer.client import client_of
from ..buffer.troubles import Outages, Trouble
from ..buffer.types import Stats
from ..checks.tables import reason_of
from ..conf import options
from ..counters import Counter, all_counters
from ..exceptions import CounterError
from ..maintenance.audit import Progress
from ..maintenance.epochs import ShardStatus, deploy_seconds
from ..maintenance.in_force import kept_though_off, shards_in_force
from ..maintenance.places import LocalCounter, Place, at, here, visible_counters
from .display import grouped

MAX_AGE = 300.0
"""Seconds that a change may wait before that is a problem."""

MOST_REQUESTS = 10_000
"""Requests that are counted. After an outage there may be many more, and monitoring is not to wait for them."""

MAX_OVERDUE = 10
"""Overdue intents of a counter that are not a problem. Whenever a process is killed between the announcement and the
confirmation, or Redis answers too late, one is left until MAX_TRANSACTION_AGE."""


@dataclass(frozen=True)
class Problem:
    """A problem with a ``counter``, or with Redis or a database (then ``counter`` is None): its ``kind``, which is a
    stable name, a sentence about it, and the ``reason`` that Redis gave, which may name hosts and users."""

    counter: str | None
    kind: str
    text: str
    reason: str = ""

    def __str__(self) -> str:
        text = f"{self.text} ({self.reason})" if self.reason else self.text
        return f"{self.counter}: {text}" if self.counter else text


@dataclass(frozen=True)
class CounterReport:
    """The state of one counter at one place. Ages are seconds, 0 if there is nothing.

    ``counter``          its name
    ``place``            a database, or a tenant's schema in it
    ``name``             the counter's name, with the place if there are several
    ``backlog_users``    users with a change that waits to be flushed
    ``backlog_age``      age of the oldest change that waits to be flushed, or user that waits for a recount
    ``dirty_users``      users that wait for a recount; readers count their rows
    ``in_flight``        intents that are announced and not confirmed; a transaction may have several
    ``overdue``          how many of them are older than HEAL_AFTER, of at most 1,000 that are looked at in each shard
    ``oldest_intent``    age of the oldest of them
    ``requests``         RecountRequests, of the MOST_REQUESTS oldest
    ``requests_age``     age of the oldest of them
    ``rejected``         members that could not be stored, kept for inspection
    ``recovering``       shards that are being recovered, or wait for it
    ``audited``          the last user up to whom a recovery has recounted everyone; empty if none is under way
    ``audit_age``        seconds since it has come that far, or None
    ``epoch``            the highest of all shards; each recovery starts a new one
    ``shards``           the state of each shard
    ``stats``            statistics since Redis was new
    ``wait``             how long an epoch waits for processes of another declaration
    """

    counter: str
    place: Place
    name: str
    backlog_users: int
    backlog_age: int
    dirty_users: int
    in_flight: int
    overdue: int
    oldest_intent: int
    requests: int
    requests_age: float
    rejected: int
    recovering: list[int]
    audited: str
    audit_age: int | None
    epoch: int
    shards: list[ShardStatus]
    stats: Stats
    wait: float = 0

    @property
    def age(self) -> float:
        """Seconds that the oldest change, user or request has waited."""
        return max(self.backlog_age, self.requests_age)

    def problems(self, max_age: float = MAX_AGE) -> list[Problem]:
        """Return what is wrong, if changes, users and requests may wait for ``max_age`` seconds."""
        found: list[tuple[str, str]] = []
        if any(shard.status.foreign_at is not None for shard in self.shards):
            text = _(
                "The counter is new, or its declaration has changed. Rows are counted until no process of another "
                "release has been heard of for %(limit)s s (DEPLOY_SECONDS) and flush_counters has counted everyone."
            )
            found.append(("recovering", text % _grouped({"limit": self.wait})))
        elif self.audit_age is not None and self.audit_age <= max_age:
            text = _(
                "Redis was restarted or replaced, or lost data. flush_counters is recounting everyone: up to user "
                "%(last)s, %(age)s s ago. Until it is done, the first read of each user counts rows."
            )
            found.append(("recovering", text % {"last": self.audited, "age": grouped(self.audit_age)}))
        elif self.recovering:
            text = _(
                "Redis does not hold complete counts. Until flush_counters has recovered shard %(shards)s, they are "
                "read from the database. If Redis came back with older data, they can be wrong until flush_counters "
                "runs."
            )
            text %= {"shards": ", ".join(map(str, self.recovering))}
            if any(shard.status.epoch != shard.epoch for shard in self.shards):
                text += " " + _(
                    "If flush_counters is running, it uses another Redis than this process: compare CACHES, "
                    "CACHE_ALIAS and KEY_PREFIX."
                )
            found.append(("recovering", text))
        if self.backlog_age > max_age:
            text = _(
                "The oldest change has waited for %(age)s s, more than %(limit)s s: is flush_counters running, with "
                "the current code?"
            )
            found.append(("backlog", text % _grouped({"age": self.backlog_age, "limit": max_age})))
        if self.requests_age > max_age:
            text = ngettext(
                "%(count)s recount request, written while Redis was unreachable, has waited for %(age)s s, more "
                "than %(limit)s s: is flush_counters running?",
                "%(count)s recount requests, written while Redis was unreachable, have waited for up to %(age)s s, "
                "more than %(limit)s s: is flush_counters running?",
                self.requests,
            )
            values = {"count": self.requests, "age": round(self.requests_age), "limit": max_age}
            found.append(("requests", text % _grouped(values)))
        if self.overdue > MAX_OVERDUE:
            text = _(
                "%(count)s intents have been in flight for longer than HEAL_AFTER (%(limit)s s), the oldest for "
                "%(age)s s. Their users are recounted. Find out whether processes are killed, Redis answers too late, "
                "or a COMMIT takes that long."
            )
            values = {"count": self.overdue, "age": self.oldest_intent, "limit": options.HEAL_AFTER}
            found.append(("overdue", text % _grouped(values)))
        if self.rejected:
            text = ngettext(
                "%(count)s member could not be stored, and is kept in `rejected`. Find out what wrote it: the log has "
                "its name and delta. Then delete the key.",
                "%(count)s members could not be stored, and are kept in `rejected`. Find out what wrote them: the log "
                "has their names and deltas. Then delete the key.",
                self.rejected,
            )
            found.append(("rejected", text % _grouped({"count": self.rejected})))
        return [Problem(self.name, kind, text) for kind, text in found]

    def as_json(self) -> dict[str, Any]:
        """Return the numbers, without the state of each shard."""
        others = ("name", "place", "shards", "wait")
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        return {"database": self.place.alias, "schema": self.place.schema, **numbers, "stats": asdict(self.stats)}


@dataclass(frozen=True)
class Report:
    """The state of the ``counters`` that could be read; the counters that are ``unreachable``, and the ``errors`` that
    say why; the ``outages`` of Redis that processes have noticed, None during one; and the built-in counters that are
    switched ``off``, but not in the flusher; and the counters for which SHARDS is another number in the flusher, with
    that number, ``shards``."""

    counters: list[CounterReport]
    unreachable: list[LocalCounter[Counter]]
    errors: list[str]
    outages: Outages | None
    off: Sequence[str] = ()
    shards: Mapping[str, int] = field(default_factory=dict)

    def problems(self, max_age: float = MAX_AGE) -> list[Problem]:
        """Return everything that is wrong, beginning with what is unreachable."""
        unreachable = [Problem(None, "unreachable", error) for error in self.errors]
        text = _(
            "The counter is switched off, but not in flush_counters. Restart flush_counters with the current settings."
        )
        off = [Problem(name, "switched_off", text) for name in self.off]
        text = _(
            "SHARDS is %(mine)s in this process, and %(its)s in flush_counters. Until both are the same, this process "
            "counts rows, and its changes reach other processes with the next run of flush_counters. Correct the "
            "setting, and restart what has the wrong one."
        )
        shards = [
            Problem(name, "other_shards", text % _grouped({"mine": options.SHARDS, "its": number}))
            for name, number in self.shards.items()
        ]
        troubles = [
            Problem(None, f"redis_{trouble.kind}", what_to_do(trouble), trouble.reason) for trouble in self.troubles
        ]
        of_counters = [problem for counter in self.counters for problem in counter.problems(max_age)]
        return unreachable + troubles + of_counters + off + shards

    @property
    def troubles(self) -> list[Trouble]:
        """The trouble that processes have with Redis now."""
        return [trouble for trouble in self.outages.troubles if trouble.goes_on] if self.outages else []

    @property
    def age(self) -> float:
        """Seconds that the oldest change, user or request has waited."""
        return max((counter.age for counter in self.counters), default=0)

    def as_json(self, max_age: float = MAX_AGE) -> dict[str, Any]:
        """Return the report and its problems, as `flush_counters --check --json` prints them."""
        problems = self.problems(max_age)
        return {
            "ok": not problems,
            "error": " ".join(self.errors) or None,
            "problems": [asdict(problem) for problem in problems],
            "max_age": max_age,
            "age": self.age,
            "counters": {counter.name: counter.as_json() for counter in self.counters},
            "unreachable": [local.name for local in self.unreachable],
            "outages": self.outages.as_json() if self.outages else None,
        }


def look(counters: Iterable[Counter] | None = None, local: Iterable[LocalCounter[Counter]] | None = None) -> Report:
    """Return the state of these counters, by default of all: inside a tenant, only at its own place, and elsewhere at
    every place. ``local`` names counters and places instead. Does not raise if Redis or a database is unreachable.

    Each counter costs three round trips for each shard, and three queries, or four if a built-in counter of its source
    is switched off. All together cost two more round trips. If there are several databases or schemas, each costs a
    query.
    """
    found: list[CounterReport] = []
    off: set[str] = set()
    shards: dict[str, int] = {}
    unreachable: list[LocalCounter[Counter]] = []
    errors: dict[str, str] = {}  # of Redis, or by the alias of a database, which is not asked again
    if local is None:
        local = visible_counters(all_counters() if counters is None else counters)
    for each in local:
        name, counter, place = each
        try:
            if place.alias not in errors:
                with at(place):
                    if (number := shards_in_force(counter)) != options.SHARDS:
                        shards[name] = number
                        continue
                    found.append(replace(look_at(counter), name=name))
                    off.update(kept_though_off(counter))
                continue
        except CounterError as error:
            errors.setdefault("", reason_of(error))
        except DatabaseFailure as error:
            errors[place.alias] = reason_of(error, f"Database {place.alias!r}, counter {counter.name!r}")
            connections[place.alias].close_if_unusable_or_obsolete()
        unreachable.append(each)
    return Report(found, unreachable, list(errors.values()), _outages(), sorted(off), shards)


def look_at(counter: Counter) -> CounterReport:
    """Return the state of one counter. BufferUnavailable, or a database error, if Redis or the database is out of
    reach."""
    shards = counter.status()
    monitored = [buffer.monitor(options.HEAL_AFTER) for buffer in counter.buffers]
    model = apps.get_model("notifications_counter", "RecountRequest")
    waiting: QuerySet = QuerySet(model, using=counter.db).filter(counter=counter.name)
    requests = waiting.order_by("pk")[:MOST_REQUESTS].aggregate(number=Count("pk"), since=Min("created_at"))
    age = (timezone.now() - requests["since"]).total_seconds() if requests["number"] else 0
    states = [shard.status for shard in shards]
    audits = [(audit, s.status.now) for s in shards if s.recovering and (audit := Progress.of(s.audited)).end]
    audit, now = min(audits, key=lambda each: each[0].at, default=(Progress(), 0))
    return CounterReport(
        counter=counter.name,
        place=here(counter.source),
        name=counter.name,
        backlog_users=sum(s.pending + s.flushing for s in states),
        backlog_age=max(s.backlog_age for s in states),
        dirty_users=sum(s.dirty for s in states),
        in_flight=sum(s.intents for s in states),
        overdue=sum(m.overdue for m in monitored),
        oldest_intent=max(m.oldest for m in monitored),
        requests=requests["number"],
        requests_age=max(0, age),
        rejected=sum(s.rejected for s in states),
        recovering=[shard.shard for shard in shards if shard.recovering],
        audited=audit.end.partition(":")[2],
        audit_age=max(0, now - audit.at) if audit.end else None,
        epoch=max(shard.epoch for shard in shards),
        shards=shards,
        stats=sum((m.stats for m in monitored), Stats()),
        wait=deploy_seconds(counter.buffers[0]),
    )


def what_to_do(trouble: Trouble) -> str:
    """Return a sentence about trouble with Redis that goes on."""
    texts = {
        "full": _(
            "Redis is out of memory. Counts are read from the database, and changed users wait for a recount. Raise "
            "maxmemory, or find out what fills it."
        ),
        "slow": _(
            "Processes do not get an answer from Redis within READ_TIMEOUT or WRITE_TIMEOUT, and read counts from the "
            "database. Look for slow commands, a busy server or a slow network."
        ),
        "refused": _(
            "Redis does not run a command that the counters need, and counts are read from the database. Run "
            "'manage.py check --deploy --tag notifications_counter_redis'."
        ),
        "broken": _(
            "Something else writes to the keys of the counters in Redis. What it has written is deleted, and everyone "
            "is recounted. Find out what it is."
        ),
    }
    return texts[trouble.kind]


def _outages() -> Outages | None:
    try:
        return client_of(options.CACHE_ALIAS).outages()
    except CounterError:
        return None


def _grouped(numbers: dict[str, float]) -> dict[str, str]:
    return {name: grouped(number) for name, number in numbers.items()}
