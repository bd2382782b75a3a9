"""The content of the admin's dashboard: the state of each counter, charts of its activity, and recent events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.apps import apps
from django.db.models import QuerySet
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from ..buffer.upkeep import BATCHES
from ..checks.servers import check_server
from ..conf import options
from ..counters import Counter, all_counters, counter_named
from ..exceptions import CounterError
from ..maintenance.audit import AuditProgress
from ..maintenance.epochs import ShardStatus
from ..maintenance.places import LocalCounter, Place, at, visible_counters
from .activity import PRECISIONS, Activity, Precision, activity
from .display import Table, duration, grouped, moment
from .problems import MAX_AGE, MAX_OVERDUE, problems_of, sentences
from .recent import event_table
from .report import look
from .since import well_since, wrong_since
from .state import CounterReport


@dataclass(frozen=True, slots=True)
class Figure:
    """A number on the page, with a title, a sentence that explains it, and a note."""

    title: str
    value: str
    help: str
    note: str = ""
    bad: bool = False


@dataclass(slots=True)
class CounterPanel:
    """The part of the page for one counter."""

    name: str
    figures: list[Figure]
    shards: Table
    is_recovering: bool
    activity: Activity | None = None
    hint: str = ""


# ------------------------------------------------------------------------- state
def panel(report: CounterReport, precision: Precision) -> CounterPanel:
    """Return the part of the page for a counter. Its charts cost two round trips, one for each time-sliced counter."""
    counter = counter_named(report.counter)
    shown = CounterPanel(counter.name, figures(report), shard_table(counter, report.shards), bool(report.recovering))
    if options.RECORD_ACTIVITY:
        shown.activity = activity(counter, precision)
    else:
        shown.hint = _("For charts, set RECORD_ACTIVITY to True.")
    return shown


def figures(report: CounterReport) -> list[Figure]:
    stats = report.stats
    return [
        Figure(
            _("Owners to flush"),
            grouped(report.backlog_owners),
            _("Their changes wait in Redis until the flusher writes them to the database. Badges include these."),
        ),
        Figure(
            _("Oldest change"),
            duration(report.age),
            _("How long a change or a recount has waited for the flusher."),
            bad=report.age > MAX_AGE,
        ),
        Figure(
            _("Owners to recount"),
            grouped(report.dirty_owners),
            _("Their counts may be wrong. Until the flusher has recounted them, badges count rows."),
            _("%s requested in the database") % grouped(report.requests) if report.requests else "",
        ),
        Figure(
            _("Intents in flight"),
            grouped(report.intents),
            _("Writes that are announced and not confirmed yet. If a process is killed meanwhile, they are overdue."),
            _("%s overdue") % grouped(report.overdue) if report.overdue else "",
            bad=report.overdue > MAX_OVERDUE,
        ),
        Figure(
            _("Rejected"),
            grouped(report.rejected),
            _(
                "Changes that cannot be stored: something else wrote them to Redis, or a sum is too large for its "
                "column."
            ),
            bad=report.rejected > 0,
        ),
        Figure(
            _("Owners flushed"),
            grouped(stats.flushed),
            _("Written to the database since Redis was new."),
            ngettext("in %s batch", "in %s batches", stats.batches) % grouped(stats.batches),
        ),
        Figure(
            _("Compared by the flusher"),
            _("not yet")
            if not report.everyone
            else _("%(wrong)s of %(number)s wrong")
            % {"wrong": grouped(report.wrong), "number": grouped(report.everyone)},
            _("The flusher compares every count with its rows, again and again, and corrects what is wrong."),
            _comparison(report),
            bad=report.wrong > 0,
        ),
    ]


def _comparison(report: CounterReport) -> str:
    if not options.VERIFY_SECONDS:
        return _("switched off")
    if report.everyone_age is None:
        return _("the first pass is under way") if report.everyone else _("the first pass has not begun")
    return _("everyone in the last %s") % duration(report.everyone_age) if report.everyone else ""


def shard_table(counter: Counter, shards: Sequence[ShardStatus]) -> Table:
    return Table(
        [_("Shard"), _("State"), _("Epoch"), _("Batches"), pgettext("changes", "Waiting"),
         pgettext("changes", "Oldest"), _("To recount"), _("In flight"), _("Rejected")],
        [
            [
                str(shard.shard),
                recovery_text(counter, shard) if shard.is_incomplete else _("in order"),
                grouped(shard.epoch),
                grouped(shard.status.batch % BATCHES),
                grouped(shard.status.pending + shard.status.flushing),
                duration(shard.status.backlog_age),
                grouped(shard.status.dirty),
                grouped(shard.status.intents),
                grouped(shard.status.rejected),
            ]
            for shard in shards
        ],
        numbers=2,
        words={
            _("Shard"): _("A part of the owners, with keys of its own in Redis."),
            _("Epoch"): _("Rises when everyone is to be recounted, as after Redis has lost data."),
            _("Batches"): _("Groups of changes that the flusher has written to the database in this epoch."),
        },
    )  # fmt: skip


def recovery_text(counter: Counter, shard: ShardStatus) -> str:
    """Return how far a recovery has come, judging by the order of the primary keys."""
    last = AuditProgress.of(shard.audited).end.partition(":")[2]
    if not last:
        return _("to be recovered")
    owner, key = counter.owner_attnames[0], counter.parse(last)
    rows: QuerySet = QuerySet(counter.source, using=counter.db).filter(**{f"{owner}__isnull": False})
    keys = rows.order_by(owner).values_list(owner, flat=True)
    first, highest = keys.first(), keys.last()
    if isinstance(first, int) and isinstance(highest, int) and highest > first:
        done = min(max(((key[0] if counter.has_several_columns else key) - first) / (highest - first), 0), 1)
        return _("recovering, %s %%") % grouped(int(100 * done))
    return _("recovering, up to owner %s") % last


# ----------------------------------------------------------------------- servers
def servers(reports: Sequence[CounterReport]) -> list[dict[str, str]]:
    """Return INFO of each server that holds a shard, in a round trip for each."""
    found: dict[str, dict[str, str]] = {}
    for report in reports:
        for shard, buffer in zip(report.shards, counter_named(report.counter).buffers, strict=True):
            if shard.server not in found:
                found[shard.server] = buffer.upkeep.info()
    return [info for info in found.values() if info]  # a server may refuse it


def server_table(servers: Sequence[Mapping[str, str]]) -> Table:
    return Table(
        [_("Server"), _("Memory policy"), _("Up for"), _("Clients"), _("Memory"), _("Memory limit")],
        [
            [
                f"Valkey {valkey}"
                if (valkey := info.get("valkey_version"))
                else f"Redis {info.get('redis_version', '')}",
                info.get("maxmemory_policy", ""),
                _number_in(info, "uptime_in_seconds", duration),
                _number_in(info, "connected_clients", grouped),
                _number_in(info, "used_memory", filesizeformat),
                _number_in(info, "maxmemory", lambda limit: filesizeformat(limit) if limit else _("none")),
            ]
            for info in servers
        ],
        numbers=2,
        words={_("Memory policy"): _("What Redis does when its memory is full. With noeviction, it deletes nothing.")},
    )


def _number_in(info: Mapping[str, str], name: str, text: Callable[[int], str]) -> str:
    """Return the text of a number in INFO. Managed servers leave some of them out."""
    return text(int(info[name])) if name in info else ""


# ---------------------------------------------------------------------- counters
def visible() -> list[LocalCounter[Counter]]:
    """Return every counter at the places that a user of this database may see."""
    return visible_counters(all_counters(), for_users=True)


def name_in_url(place: Place) -> str:
    """Return the name of a place in a URL."""
    return "/".join(filter(None, place))


def counter_table(reports: Sequence[CounterReport], by: str) -> Table:
    """Return each counter at each place in a line, with a link that shows its part of the page."""
    has_places = len({report.place for report in reports}) > 1
    return Table(
        [_("Counter"), *[_("Database or schema")] * has_places, _("State"), pgettext("changes", "Waiting"),
         pgettext("changes", "Oldest"), _("To recount"), _("In flight"), _("Rejected")],
        [
            [
                format_html(
                    '<a href="?{}">{}</a>',
                    urlencode({"by": by, "at": name_in_url(report.place), "counter": report.counter}),
                    report.counter,
                ),
                *[str(report.place)] * has_places,
                _state(report),
                grouped(report.backlog_owners),
                duration(report.age),
                grouped(report.dirty_owners),
                grouped(report.intents),
                grouped(report.rejected),
            ]
            for report in reports
        ],
        numbers=2 + has_places,
    )  # fmt: skip


def _state(report: CounterReport) -> str:
    if report.recovering:
        return _("to be recovered")
    return _("has a problem") if any(problems_of(report)) else _("in order")


# -------------------------------------------------------------------------- page
def page(by: str, where: str, chosen: str = "") -> dict[str, Any]:
    """Return the context of the template, with charts by minute, hour or day, for the database or schema that ``where``
    names, or else the first. There, it shows the counters that have problems and the ``chosen`` one, or without
    any of these the first. If Redis is unreachable, the page has fewer parts."""
    by = by if by in PRECISIONS else next(iter(PRECISIONS))
    counters = visible()
    report = look(local=counters)
    keys = {name_in_url(local.place): local.place for local in counters}
    where = where if where in keys else next(iter(keys), "")
    problems = sentences(report.problems())
    found: dict[str, Any] = {
        "by": by,
        "at": where if len(keys) > 1 else "",  # if there is a choice
        "choices": [(name, precision.title) for name, precision in PRECISIONS.items()],
        "charts": apps.is_installed("chartkick.django"),  # which brings Chart.js
        "now": moment(time.time()).removesuffix("."),  # of p.m., at the end of a sentence
        "problems": problems,
        "warnings": sentences(report.warnings),
        "counters": counter_table(report.counters, by) if len(report.counters) > 1 else None,
    }
    try:
        if where:
            with at(keys[where]):
                here = [counter for counter in report.counters if counter.place == keys[where]]
                infos = servers(here)
                problems += dict.fromkeys(f"{error.msg} {error.hint}" for info in infos for error in check_server(info))
                shown = [each for each in here if each.counter == chosen or any(problems_of(each))] or here[:1]
                found["panels"] = [panel(each, PRECISIONS[by]) for each in shown]
                found |= {"servers": server_table(infos), "events": event_table()}
    except CounterError as error:
        if not report.errors:
            problems.append(str(error))
        found["note"] = _("Counts are still right, but slower, because reads count rows.")
    since = wrong_since(report) if problems else well_since(report)
    return {**found, "since": since and moment(since).removesuffix(".")}
