"""The content of the admin's dashboard: the state of each counter, charts of its activity, and recent events."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from django.apps import apps
from django.template.defaultfilters import filesizeformat, truncatechars
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from ..buffer.types import UNREADABLE
from ..checks.servers import check_server
from ..conf import options
from ..counters import Counter, all_counters, counter_named
from ..exceptions import CounterError
from ..upkeep.history import history
from ..upkeep.places import LocalCounter, Place, at, visible_counters
from .activity import PRECISIONS, activity
from .display import Table, duration, grouped, moment
from .status import CounterStatus, Status, look, sentences

EVENTS = {
    "recovery": (gettext_lazy("Recovery began"), gettext_lazy("shard %(shard)s: %(reason)s")),
    "recovered": (gettext_lazy("Recovery complete"), gettext_lazy("stored totals are up to date")),
    "declared": (gettext_lazy("Declaration changed"), gettext_lazy("by a new release")),
    "replaced": (gettext_lazy("Flusher replaced"), gettext_lazy("by one of another release")),
    "recount": (gettext_lazy("Recount"), gettext_lazy("%(owners)s compared, %(wrong)s wrong")),
    "mismatched": (gettext_lazy("Wrong counts"), gettext_lazy("%(wrong)s wrong: %(examples)s")),
    "aside": (gettext_lazy("Set aside"), gettext_lazy("owner %(owner)s: %(reason)s")),
}
"""The title of each type of event, and its details."""


def counter_table(counters: Sequence[CounterStatus], by: str) -> Table:
    """Return each counter at each place in a line, with a link that shows its part of the page."""
    has_places = len({counter.place for counter in counters}) > 1
    words = {
        pgettext("changes", "Waiting"): _(
            "Owners whose changes wait for the flusher, which writes them to the database. Badges include these."
        ),
        _("In flight"): _(
            "Writes that are announced and not confirmed yet. If a process is killed meanwhile, they are overdue."
        ),
        _("Set aside"): _(
            "Changes that cannot be stored: something else wrote them, or a sum is too large for its column."
        ),
        _("Wrong counts"): _(
            "The flusher compares every count with its rows, again and again, and corrects what is wrong."
        ),
    }
    waiting, in_flight, set_aside, wrong = words
    places, oldest = [_("Database or schema")] * has_places, pgettext("changes", "Oldest")
    titles = [_("Counter"), *places, _("State"), waiting, oldest, in_flight, set_aside, wrong, _("Last flush")]
    rows = []
    for counter in counters:
        query = urlencode({"by": by, "at": name_in_url(counter.place), "counter": counter.counter})
        overdue = _("%s overdue") % grouped(counter.overdue) if counter.overdue else ""
        rows.append(
            [
                format_html('<a href="?{}">{}</a>', query, counter.counter),
                *[str(counter.place)] * has_places,
                _state(counter),
                grouped(counter.waiting),
                duration(counter.age) if counter.age else "",
                f"{grouped(counter.in_flight)} {overdue}".strip(),
                grouped(counter.set_aside),
                grouped(counter.mismatched),
                _("unknown") if counter.last_run is None else _("%s ago") % duration(counter.last_run),
            ]
        )
    return Table(titles, rows, numbers=2 + has_places, words=words)


def _state(counter: CounterStatus) -> str:
    if counter.recovery == "running":
        return _("recovering, up to owner %s") % counter.recovered_to
    if counter.recovery:
        return _("to be recovered")
    return _("has a problem") if any(counter.problems()) else _("in order")


def servers(counters: Sequence[CounterStatus]) -> list[dict[str, str]]:
    """Return INFO of each server that holds a shard, in a round trip for each shard. A server may refuse it."""
    infos = [buffer.info() for counter in counters for buffer in counter_named(counter.counter).buffers]
    return list({info.get("run_id"): info for info in infos if info}.values())


def server_table(servers: Sequence[Mapping[str, str]]) -> Table:
    """Return each server in a line. Managed servers leave some numbers out of INFO."""
    titles = [_("Server"), _("Memory policy"), _("Up for"), _("Memory"), _("Memory limit")]
    rows = []
    for info in servers:
        name, version = ("Valkey", valkey) if (valkey := info.get("valkey_version")) else ("Redis", "")
        up, used, limit = (info.get(name) for name in ("uptime_in_seconds", "used_memory", "maxmemory"))
        rows.append(
            [
                f"{name} {version or info.get('redis_version', '')}",
                info.get("maxmemory_policy", ""),
                duration(int(up)) if up else "",
                filesizeformat(used) if used else "",
                _("none") if limit == "0" else filesizeformat(limit) if limit else "",
            ]
        )
    words = {_("Memory policy"): _("What Redis does when its memory is full. With noeviction, it deletes nothing.")}
    return Table(titles, rows, numbers=2, words=words)


def event_table() -> Table:
    """Return the last events of all counters. Events without the fields that a type has are left out, because something
    else wrote them."""
    rows: list[list[str]] = []
    for event in history.latest(10):
        with suppress(OSError, *UNREADABLE):
            title, details = EVENTS[event["type"]]
            fields = {
                name: grouped(value) if isinstance(value, int) else truncatechars(repr(str(value))[1:-1], 60)
                for name, value in event.items()
            }
            rows.append([moment(event["timestamp"]), event["counter"], str(title), details % fields])
    return Table([_("Time"), _("Counter"), _("Event"), _("Details")], rows, numbers=4)


def well_since(status: Status) -> float | None:
    """Return when the last trouble ended, in seconds since 1970; None if there is none on record. This costs four round
    trips for each database or schema."""
    now = time.time()
    ends = [now - status.trouble.age] if status.trouble else []
    ends += [now - counter.mismatch_age for counter in status.counters if counter.mismatch_age is not None]
    for place in {counter.place for counter in status.counters}:
        with at(place):
            ends += [event["timestamp"] for type in ("recovered", "aside") for event in history.latest(1, type)]
    return max(ends, default=None)


def visible() -> list[LocalCounter[Counter]]:
    """Return every counter at the places that a user of this database may see."""
    return visible_counters(all_counters(), for_users=True)


def name_in_url(place: Place) -> str:
    """Return the name of a place in a URL."""
    return "/".join(filter(None, place))


def page(by: str, where: str, chosen: str = "") -> dict[str, Any]:
    """Return the context of the template, with charts by minute, hour or day, for the database or schema that ``where``
    names, or else the first. There, it has a part for the ``chosen`` counter, or else the first with a problem, or the
    first. If Redis is unreachable, the page has fewer parts."""
    by = by if by in PRECISIONS else next(iter(PRECISIONS))
    counters = visible()
    status = look(local=counters)
    places = {name_in_url(local.place): local.place for local in counters}
    where = where if where in places else next(iter(places), "")
    problems = status.problems()
    since = min((problem.since for problem in problems if problem.since), default=None)
    found: dict[str, Any] = {
        "by": by,
        "at": where if len(places) > 1 else "",  # if there is a choice
        "choices": [(name, precision.title) for name, precision in PRECISIONS.items()],
        "charts": apps.is_installed("chartkick.django"),  # which brings Chart.js
        "now": moment(time.time()).removesuffix("."),  # of p.m., at the end of a sentence
        "problems": sentences(problems),
        "warnings": sentences(status.warnings),
        "counters": counter_table(status.counters, by),
    }
    here = [counter for counter in status.counters if counter.place == places.get(where)]
    here.sort(key=lambda counter: (counter.counter != chosen, not any(counter.problems())))
    try:
        if here:
            with at(here[0].place):
                infos = servers(here)
                found["problems"] += [f"{error.msg} {error.hint}" for info in infos for error in check_server(info)]
                found |= {"servers": server_table(infos), "events": event_table(), "counter": here[0].counter}
                if options.RECORD_ACTIVITY:
                    found["activity"] = activity(here[0].counter, PRECISIONS[by])
        since = since if found["problems"] else well_since(status)
    except CounterError as error:
        found["problems"] += [] if status.errors else [str(error)]
    if status.errors:
        found["note"] = _("Counts are still right, but slower, because reads count rows.")
    return {**found, "since": since and moment(since).removesuffix(".")}
