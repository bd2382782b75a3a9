"""The problems that counters can have, and what to do about each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..buffer.troubles import Trouble
from ..conf import options
from .display import duration, grouped
from .state import CounterReport

MAX_AGE = 300.0
"""Seconds that a change may wait before that is a problem."""

DAY = 86400
"""Seconds during which a wrong count that was corrected is worth a warning."""

MAX_OVERDUE = 10
"""Overdue intents of a counter up to this number are not reported. Whenever a process is killed between the
announcement and the confirmation, or Redis answers too late, one is left until MAX_TRANSACTION_AGE."""


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


def sentences(problems: Iterable[Problem]) -> list[str]:
    """Return each sentence once, after the names of all counters that have this problem."""
    about: dict[Problem, list[str | None]] = {}
    for problem in problems:
        about.setdefault(replace(problem, counter=None), []).append(problem.counter)
    return [str(replace(problem, counter=", ".join(filter(None, names)))) for problem, names in about.items()]


def problems_of(counter: CounterReport, max_age: float = MAX_AGE) -> Iterator[Problem]:
    """Yield the problems of a counter, whose changes, owners and requests may wait for ``max_age`` seconds."""
    if text := _why_rows_are_counted(counter, max_age):
        yield Problem(counter.name, "recovering", text)
    if counter.backlog_age > max_age:
        text = _(
            "The oldest change has waited for %(age)s, more than %(limit)s: is flush_counters running, with the "
            "current code?"
        )
        yield Problem(counter.name, "backlog", text % _times(age=counter.backlog_age, limit=max_age))
    if counter.requests_age > max_age:
        text = ngettext(
            "%(count)s recount request, written while Redis was unreachable, has waited for %(age)s, more than "
            "%(limit)s: is flush_counters running?",
            "%(count)s recount requests, written while Redis was unreachable, have waited for up to %(age)s, more "
            "than %(limit)s: is flush_counters running?",
            counter.requests,
        )
        values = {"count": grouped(counter.requests), **_times(age=counter.requests_age, limit=max_age)}
        yield Problem(counter.name, "requests", text % values)
    if counter.overdue > MAX_OVERDUE:
        text = _(
            "%(count)s intents have been in flight for longer than HEAL_AFTER (%(limit)s), the oldest for %(age)s. "
            "Their owners are recounted. Find out whether processes are killed, Redis answers too late, or a COMMIT "
            "takes that long."
        )
        values = {
            "count": grouped(counter.overdue),
            **_times(age=counter.oldest_intent, limit=options.HEAL_AFTER),
        }
        yield Problem(counter.name, "overdue", text % values)
    if counter.rejected:
        text = ngettext(
            "%(count)s change could not be stored, and is kept in `rejected`. The log says why, and what to do. "
            "Then delete the key.",
            "%(count)s changes could not be stored, and are kept in `rejected`. The log says why, and what to do. "
            "Then delete the key.",
            counter.rejected,
        )
        yield Problem(counter.name, "rejected", text % {"count": grouped(counter.rejected)})


def warnings_of(counter: CounterReport) -> Iterator[Problem]:
    """Yield problems of a counter that are corrected, but may happen again."""
    if counter.mismatch_age is not None and counter.mismatch_age < DAY:
        text = ngettext(
            "flush_counters found %(count)s wrong count %(age)s ago, and corrected it. Something changes rows, or "
            "stored totals, that the app cannot see. Look for raw SQL, a trigger or a restored backup. The log "
            "(mismatched) names the owner.",
            "flush_counters found %(count)s wrong counts, the last one %(age)s ago, and corrected them. Something "
            "changes rows, or stored totals, that the app cannot see. Look for raw SQL, a trigger or a restored "
            "backup. The log (mismatched) names some of the owners.",
            counter.mismatched,
        )
        values = {"count": grouped(counter.mismatched), "age": duration(counter.mismatch_age)}
        yield Problem(counter.name, "mismatched", text % values)


def _why_rows_are_counted(counter: CounterReport, max_age: float) -> str:
    """Return why readers cannot trust Redis, and what ends that; empty if they can."""
    if any(shard.status.heartbeat_at is not None for shard in counter.shards):
        text = _(
            "The counter is new, or its declaration has changed. Rows are counted until no process of another "
            "release has been heard of for %(limit)s (DEPLOY_SECONDS) and flush_counters has counted everyone."
        )
        return text % _times(limit=counter.wait)
    if not counter.epoch:
        return _(
            "Nobody has been counted yet. Until flush_counters has counted everyone, counts are read from the "
            "database. Start flush_counters."
        )
    if counter.audit_age is not None and counter.audit_age <= max_age:
        text = (
            _("flush_counters is counting everyone for the first time: up to owner %(last)s, %(age)s ago.")
            if counter.epoch == 1
            else _(
                "Redis was restarted or replaced, or lost data. flush_counters is recounting everyone: up to owner "
                "%(last)s, %(age)s ago."
            )
        )
        text += " " + _("Until it is done, the first read of each owner counts rows.")
        return text % {"last": counter.audited, **_times(age=counter.audit_age)}
    if not counter.recovering:
        return ""
    text = _(
        "Redis does not hold complete counts. Until flush_counters has recovered shard %(shards)s, reads "
        "count rows. If Redis came back with older data, counts can be wrong until flush_counters runs."
    )
    text %= {"shards": ", ".join(map(str, counter.recovering))}
    if any(shard.status.epoch != shard.epoch for shard in counter.shards):
        text += " " + _(
            "If this lasts for a minute although flush_counters is running, that uses another Redis than this "
            "process: compare CACHES, CACHE_ALIAS and KEY_PREFIX."
        )
    return text


def switched_off_problem(name: str) -> Problem:
    """Return the problem of a built-in counter that is switched off, but not in the flusher."""
    text = _(
        "The counter is switched off, but not in flush_counters. Restart flush_counters with the current settings."
    )
    return Problem(name, "switched_off", text)


def shards_problem(name: str, number: int) -> Problem:
    """Return the problem of a counter for which the flusher has another number of shards."""
    text = _(
        "SHARDS is %(mine)s in this process, and %(its)s in flush_counters. Until both are the same, this process "
        "counts rows, and its changes reach other processes with the next run of flush_counters. Correct the "
        "setting, and restart what has the wrong one."
    )
    return Problem(name, "other_shards", text % {"mine": options.SHARDS, "its": number})


def trouble_problem(trouble: Trouble) -> Problem:
    """Return the problem of recent trouble with Redis."""
    texts = {
        "full": _(
            "Redis was out of memory within the last minute. Reads counted rows, and changed owners wait "
            "for a recount. Raise maxmemory, or find out what fills it."
        ),
        "slow": _(
            "Within the last minute, processes got no answer from Redis within READ_TIMEOUT or WRITE_TIMEOUT, and "
            "counted rows. Look for slow commands, a busy server or a slow network."
        ),
        "refused": _(
            "Redis does not run a command that the counters need, and reads count rows. The log of the process names "
            "the command."
        ),
        "broken": _(
            "Something else writes to the keys of the counters in Redis. What it has written is deleted, and everyone "
            "is recounted. Find out what it is."
        ),
    }
    return Problem(None, f"redis_{trouble.kind}", texts[trouble.kind], trouble.reason)


def _times(**seconds: float) -> dict[str, str]:
    return {name: duration(each) for name, each in seconds.items()}
