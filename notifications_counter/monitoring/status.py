"""The state of all counters, and what is wrong with it: for `flush_counters --check`, the health check, the metrics and
the dashboard."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from django.db import Error as DatabaseFailure
from django.db import connections
from django.db.models import Count, Min
from django.utils import timezone
from django.utils.translation import gettext as _

from ..conf import options
from ..counters import Counter, all_counters
from ..databases.errors import explain
from ..exceptions import CounterError
from ..models import DoubtRequest
from ..places import LocalCounter, Place, at, here, visible_counters
from ..redis.client import RECENT_SECONDS, client_of, trouble_call
from ..redis.replies import as_text
from ..upkeep.flush import MAX_AGE_SECONDS
from ..upkeep.phases import NOT_READY, Phase, lost, seconds_to_wait, situation_of
from .display import duration, grouped, moment

MAX_MISSED_SECONDS = 90.0
"""Seconds that changes which Redis has missed may wait for the flusher: cron runs it every minute."""

MAX_OVERDUE = 10
"""Overdue intents of a counter up to this number are no problem. Whenever a process is killed between the announcement
and the confirmation, or Redis answers too late, one is left until MAX_TRANSACTION_AGE."""

MAX_REQUESTS = 10_000
"""The most DoubtRequests to count, also in ``waiting``. After an outage there may be many more, and monitoring should
not wait for them."""

MAX_INTENTS = 100
"""The most intents of a counter to look at, because each may have a thousand owners."""

WARNING_SECONDS = 86400
"""Seconds during which a wrong count that the flusher has found is worth a warning."""


@dataclass(frozen=True)
class Problem:
    """A problem with a ``counter``, or with all (then it is None): its ``kind``, which is a stable name, a sentence
    about it, ``more`` sentences, such as what to do, the ``reason`` that a server gave, which may name hosts and users,
    and ``since`` when, in seconds since 1970, None if that is unknown."""

    counter: str | None
    kind: str
    sentence: str
    more: str = ""
    reason: str = ""
    since: float | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        return f"{self.sentence} {self.more}".rstrip()

    def as_json(self) -> dict[str, Any]:
        names = ("counter", "kind", "text", "reason", "since")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        about = f"{self.counter}: {self.text}" if self.counter else self.text
        reason = f" ({self.reason})" if self.reason else ""
        return f"{about}{reason} [{self.kind}]"


def merged(problems: Iterable[Problem]) -> list[Problem]:
    """Return each problem once, as the first counter has it, with the names of all counters that have it."""
    about: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        about.setdefault((problem.kind, problem.reason), []).append(problem)
    return [
        replace(same[0], counter=", ".join(each.counter for each in same if each.counter)) for same in about.values()
    ]


def sentences(problems: Iterable[Problem]) -> list[str]:
    """Return what is to be said about each problem, once."""
    return [str(problem) for problem in merged(problems)]


@dataclass(frozen=True)
class CounterStatus:
    """The state of one counter in one database or schema. Ages are in seconds, None if there has been nothing.

    ``name``            the counter's name, with the place if there are several; ``counter``: without it
    ``database``        an alias, and the ``schema`` of a tenant, if any
    ``error``           why the state could not be read; then the rest is unknown
    ``waiting``         owners that wait for the flusher: their changes in Redis, and of DoubtRequests the
                        MAX_REQUESTS oldest
    ``age``             for how long the flusher's oldest work has waited: a change, a request, an overdue intent, or
                        a walk at full speed; 0 if nothing waits, or no flusher may work in this phase
    ``missed_age``      age of the oldest DoubtRequest: a change that Redis may have missed
    ``in_flight``       intents that are announced and not confirmed; a transaction may have several
    ``overdue``         how many of them are older than HEAL_AFTER, of at most 100
    ``phase``           what happens to the counter
    ``doubted``         whether that is because a statement has put everyone in doubt, and nothing is lost
    ``off_since``       when counting was switched off, in seconds since 1970
    ``deploy_until``    until when rows are counted after a declaration, in seconds since 1970
    ``walked_to``       the last owner that has been compared, while the counter is walking
    ``wrong``           wrong counts that were found; ``wrong_age``: age of the last
    ``skipped``         how often rows could not be counted, or a count not stored; ``skipped_age``: age of the last
    ``walk_age``        how long ago the last walk began
    ``last_run``        age of the flusher's last run, or page of a walk at full speed; ``failure``: why the run
                        failed, or empty
    ``refusal``         why Redis refuses changes, or empty
    """

    name: str
    counter: str
    database: str
    schema: str | None
    error: str = ""
    waiting: int = 0
    age: float = 0
    missed_age: float | None = None
    in_flight: int = 0
    overdue: int = 0
    phase: Phase = Phase.NORMAL
    doubted: bool = False
    off_since: float | None = None
    deploy_until: float | None = None
    walked_to: str = ""
    wrong: int = 0
    wrong_age: float | None = None
    skipped: int = 0
    skipped_age: float | None = None
    walk_age: float | None = None
    last_run: float | None = None
    failure: str = ""
    refusal: str = ""

    @property
    def place(self) -> Place:
        return Place(self.database, self.schema)

    @property
    def is_idle(self) -> bool:
        """Whether the flusher has not run for as long as a walk, and work, may take."""
        return self.last_run is not None and 0 < options.WALK_SECONDS < self.last_run > MAX_AGE_SECONDS

    def problems(self, max_age: float = MAX_AGE_SECONDS) -> Iterator[Problem]:
        """Yield what is wrong with the counter, for which the flusher's work may wait for ``max_age`` seconds."""
        if self.error:
            yield self._unreachable()
        if self.off_since:
            text = _("Counting has been off since %(since)s.") % {"since": moment(self.off_since)}
            more = _("Reads count rows, and nothing is flushed. Run `manage.py counting on` when the incident is over.")
            yield Problem(self.name, "off", text, more, since=self.off_since)
        why_rows_are_counted = {
            Phase.NEW: (
                _("No flusher has served the counter yet, so reads count rows."),
                _("Start `flush_counters`, or restart it if it is running."),
            ),
            Phase.REPLACED: (
                _("Flushers serve another declaration of the counter than this process has, so its reads count rows."),
                _(
                    "Start `flush_counters` with the code and settings of the newest release, and stop all others. If "
                    "that release has been replaced before, it takes over `DEPLOY_SECONDS` after their last run."
                ),
            ),
            Phase.DUE: (
                _("Rows are counted: Redis has no reliable counts yet."),
                _(
                    "Start `flush_counters` if it is not running. Until it has run, counts can be wrong if Redis came "
                    "back with older data. If this goes on, its `CACHES`, `CACHE_ALIAS` or `KEY_PREFIX` may differ "
                    "from those of this process."
                ),
            ),
        }
        if self.failure:
            text = _("The last run of `flush_counters` failed, %(age)s ago.") % {"age": duration(self.last_run or 0)}
            yield Problem(self.name, "failed", text, _("Its log says more."), self.failure)
        is_soon = self.doubted and self.last_run is not None and self.last_run < max_age  # a flusher runs
        if self.phase in why_rows_are_counted and not is_soon:
            yield Problem(self.name, self.phase, *why_rows_are_counted[self.phase])
        if self.refusal:
            text = _("Redis refuses changes, so rows are counted.")
            more = _("If it is full, raise its `maxmemory`, or find what fills it.")
            yield Problem(self.name, "refuses", text, more, self.refusal)
        if self.age > max_age:
            yield self.backlog()
        elif self.missed_age and self.missed_age > MAX_MISSED_SECONDS:
            text = _("Redis may have missed changes, the oldest %(age)s ago.") % {"age": duration(self.missed_age)}
            more = _("Until `flush_counters` runs, counts of their owners can be old.")
            yield Problem(self.name, "missed", text, more)
        if self.overdue > MAX_OVERDUE:
            text = _("%(count)s intents have been in flight for longer than `HEAL_AFTER` (%(limit)s).")
            text %= {"count": grouped(self.overdue), "limit": duration(options.HEAL_AFTER)}
            more = _("Find out whether processes are killed, Redis answers too late, or a COMMIT takes that long.")
            yield Problem(self.name, "overdue", text, more)

    def _unreachable(self) -> Problem:
        outage = redis_outage()
        if outage is None:
            text, more = _("The state could not be read."), _("Is the database running, and migrated?")
            return Problem(self.name, "unreachable", text, more, self.error)
        text = _("Redis cannot be used. Counts are right, but slower.")
        if time.time() - outage.since > 1:  # this process has not only just started
            text = _("Redis has been out of reach since %(since)s. Counts are right, but slower.")
            text %= {"since": moment(outage.since)}
        more = _("Reads count rows until Redis is back: start it, or find out why it does not answer.")
        return Problem(self.name, "unreachable", text, more, outage.reason, outage.since)

    def backlog(self) -> Problem:
        """Return for how long the flusher's work has waited."""
        text = _("The flusher's work has waited for %(age)s.") % {"age": duration(self.age)}
        more = _("Start `flush_counters`, or restart it if it is running.")
        if self.phase in (Phase.NORMAL, Phase.WALKING) and not self.missed_age:
            more = _("Stored totals are old; badges are right.") + " " + more
        return Problem(self.name, "backlog", text, more, since=time.time() - self.age)

    def deploy(self) -> Iterator[Problem]:
        """Yield for how long rows are counted, if a deploy is under way: nothing is wrong, but nothing is flushed."""
        if self.phase == Phase.DEPLOYING:
            text = _("Rows are counted until every process is up to date.")
            more = _(
                "The counter is new, was off, or its declaration has changed. That takes another %(wait)s "
                "(`DEPLOY_SECONDS`), and then a run of `flush_counters`."
            )
            wait = duration(max(1, math.ceil((self.deploy_until or 0) - time.time())))
            yield Problem(self.name, self.phase, text, more % {"wait": wait})

    def warnings(self) -> Iterator[Problem]:
        """Yield what was wrong during the last day and may happen again, what takes too long, and a deploy."""
        yield from self.deploy()
        if self.wrong_age is not None and self.wrong_age < WARNING_SECONDS:
            text = _("Wrong counts were found %(age)s ago, and are right again.") % {"age": duration(self.wrong_age)}
            more = _(
                "Rows were changed behind Django's back: raw SQL, a trigger, a restored backup. The dashboard's last "
                "events and the log (`wrong`) name the owners. A recount of everyone that finds none wrong ends this "
                "warning."
            )
            yield Problem(self.name, "wrong", text, more)
        is_backlog = self.is_idle and self.age > MAX_AGE_SECONDS  # a problem, which says the same
        limit = max(2 * options.WALK_SECONDS, MAX_AGE_SECONDS)
        must_walk = options.WALK_SECONDS and not self.off_since and not is_backlog
        if must_walk and self.walk_age and self.walk_age > limit:
            if self.is_idle:
                text = _("The flusher has not run for %(age)s.") % {"age": duration(self.last_run or 0)}
                more = _("Stored totals may be old until it does; badges are right. Is `flush_counters` running?")
            else:
                text = _("The last walk over everyone began %(age)s ago.") % {"age": duration(self.walk_age)}
                more = _(
                    "Is `flush_counters` running, and often enough to come to everyone within `WALK_SECONDS` "
                    "(%(limit)s)?"
                )
                more %= {"limit": duration(options.WALK_SECONDS)}
            yield Problem(self.name, "walk", text, more)
        if self.skipped_age is not None and self.skipped_age < WARNING_SECONDS:
            text = _("A count could not be stored %(age)s ago.") % {"age": duration(self.skipped_age)}
            more = _(
                "The flusher tries again when it changes, and once a day. Reads are right. The log (skipped) names the "
                "owner, and says why."
            )
            yield Problem(self.name, "skipped", text, more)


class Trouble(NamedTuple):
    """The last trouble that processes have had with Redis: the seconds since then, for how many seconds it had
    ``lasted``, and the ``reason`` that Redis or redis-py gave."""

    age: int
    lasted: int
    reason: str

    @property
    def goes_on(self) -> bool:
        """Whether processes had it in the last minute, and more than once: one late reply does not count."""
        return self.age <= RECENT_SECONDS and self.lasted > 0


@dataclass(frozen=True)
class Status:
    """The state of all ``counters`` by name; everything that is wrong as ``problems``; as ``warnings``, what was wrong
    during the last day; and the last ``trouble`` that processes have had with Redis, if any."""

    counters: dict[str, CounterStatus] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    trouble: Trouble | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the state as simple types, as `flush_counters --check --json` prints it."""
        return {
            "ok": not self.problems,
            "problems": [problem.as_json() for problem in self.problems],
            "warnings": [warning.as_json() for warning in self.warnings],
            "counters": {name: asdict(counter) for name, counter in self.counters.items()},
        }


# ------------------------------------------------------------------------ reading
def read_status(local: Iterable[LocalCounter[Counter]] | None = None, max_age: float = MAX_AGE_SECONDS) -> Status:
    """Return the state of all counters: inside a tenant, only at its own place, and elsewhere at every place; or of
    those that ``local`` names. Work that has waited for ``max_age`` seconds is a problem. Does not raise if Redis or a
    database is unreachable.

    Each counter costs three round trips at most and two queries. All together cost one more round trip. If
    there are several databases or schemas, each costs a query.
    """
    counters: dict[str, CounterStatus] = {}
    down: dict[str, str] = {}  # why, by the alias of a database, which is not asked again
    of_redis = ""  # the first error of Redis: later ones say that it is not asked again
    for name, counter, place in visible_counters(all_counters()) if local is None else local:
        error = down.get(place.alias, "")
        if not error:
            try:
                with at(place):
                    counters[name] = read_counter(counter, name)
            except CounterError as failure:
                error = of_redis = of_redis or explain(failure)
            except DatabaseFailure as failure:
                error = down[place.alias] = explain(failure, f"Database {place.alias!r}")
                connections[place.alias].close_if_unusable_or_obsolete()
        if error:
            counters[name] = CounterStatus(name, counter.name, *place, error)
    idle = min((each.last_run for each in counters.values() if each.last_run is not None), default=0.0)
    for name, each in counters.items():
        if each.phase == Phase.WALKING:  # it may wait its turn, while a flusher works for others
            counters[name] = replace(each, age=max(each.age, idle))
    trouble = None
    with suppress(CounterError):
        trouble = read_trouble()
    problems: list[Problem] = []
    if trouble and trouble.goes_on:
        text = _("Processes had trouble with Redis within the last minute, and counted rows.")
        more = _("Counts are right, but slower. If this goes on, find out why.")
        problems.append(Problem(None, "redis", text, more, trouble.reason, time.time() - trouble.age - trouble.lasted))
    problems += [problem for counter in counters.values() for problem in counter.problems(max_age)]
    warnings = [warning for counter in counters.values() for warning in counter.warnings()]
    return Status(counters, tuple(problems), tuple(warnings), trouble)


class Outage(NamedTuple):
    """Why Redis does not answer this process, and ``since`` when, in seconds since 1970."""

    reason: str
    since: float


def redis_outage() -> Outage | None:
    """Return the outage of Redis that this process knows of, if any."""
    with suppress(CounterError):
        breaker = client_of(options.CACHE_ALIAS).breaker
        if (began := breaker.down_since) is not None:
            return Outage(breaker.reason, time.time() - (time.monotonic() - began))
    return None


def read_trouble() -> Trouble | None:
    """Return the last trouble of all processes, if any. BufferUnavailable during an outage."""
    [(now, until, since, reason)] = client_of(options.CACHE_ALIAS).ask(trouble_call())
    return Trouble(int(now) - int(until), int(until) - int(since), as_text(reason)) if until else None


def read_counter(counter: Counter, name: str = "") -> CounterStatus:
    """Return the state of one counter. BufferUnavailable, or a database error, if Redis or the database is out of
    reach."""

    def age(since: datetime | None) -> float | None:
        return None if since is None else max(0, (timezone.now() - since).total_seconds())

    intents = list(islice(counter.buffer.intents(), MAX_INTENTS))  # first, so that none is younger than the status
    phase, row, status, server = situation_of(counter)
    if phase == Phase.DUE and row.declared_at is None:  # `migrate` has declared it
        phase = Phase.NEW
    walked_at = row.walk_resumes_at.timestamp() if phase == Phase.WALKING else 0
    worked_at = max(status.ran_at, walked_at)
    late = (intent.late(status.now) for intent in intents if intent.began)  # without, it cannot be read
    waiting = DoubtRequest.objects.using(counter.db).filter(counter=counter.name)
    requests = waiting.order_by("pk")[:MAX_REQUESTS].aggregate(number=Count("pk"), since=Min("created_at"))
    must_wait = phase in (Phase.OFF, Phase.DEPLOYING)
    return CounterStatus(
        name or counter.name,
        counter.name,
        *here(counter.source),
        waiting=status.pending + status.flushing + requests["number"],
        age=0 if must_wait else max(age(requests["since"]) or 0, status.age, *late),
        missed_age=None if must_wait else age(requests["since"]),
        in_flight=status.intents,
        overdue=sum(not 0 <= status.now - i.began < options.HEAL_AFTER for i in intents),  # below 0: a clock set back
        phase=phase,
        doubted=phase == Phase.DUE and lost(row, status, server) == NOT_READY,
        off_since=row.off_since.timestamp() if row.off_since else None,
        deploy_until=time.time() + seconds_to_wait(row) if phase == Phase.DEPLOYING else None,
        walked_to=row.walked_to or "" if phase == Phase.WALKING else "",
        wrong=row.wrong,
        wrong_age=age(row.wrong_at),
        skipped=row.skipped,
        skipped_age=age(row.skipped_at),
        walk_age=age(row.walk_began_at) if row.pk else None,
        last_run=max(0, time.time() - worked_at) if worked_at else None,
        failure=status.failure,
        refusal=status.refusal,
    )
