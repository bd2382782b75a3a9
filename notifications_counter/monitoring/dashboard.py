"""The content of the admin's dashboard: the state of each counter, its activity, and recent events."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from operator import itemgetter
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.apps import apps
from django.template.defaultfilters import filesizeformat, truncatechars
from django.urls import NoReverseMatch, reverse
from django.utils.html import conditional_escape, escape, format_html, format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from ..conf import options
from ..counters import Counter, all_counters, counter_named
from ..events import Event
from ..exceptions import ConfigurationError, CounterError
from ..places import LocalCounter, at, visible_counters
from ..redis.client import NOTE_SECONDS, client_of
from ..reports import EVENTS
from ..upkeep.phases import Phase
from .charts import PRECISIONS, activity
from .display import Table, duration, grouped, moment, odd, unbroken, with_code
from .history import history
from .status import (
    MAX_MISSED_SECONDS,
    MAX_OVERDUE,
    CounterStatus,
    Problem,
    Status,
    Trouble,
    merged,
    read_status,
    redis_outage,
)

MAX_EVENTS_SHOWN = 10
"""How many events the page shows."""

MAX_EVENTS_READ = 30
"""How many it reads: the same one of several counters is shown once."""


def page(by: str, chosen: str = "") -> dict[str, Any]:
    """Return the context of the template, with charts by minute, hour or day for the ``chosen`` counter, or else the
    first with a problem, or the first. While Redis is unreachable, the page lacks what is read from it."""
    by = by if by in PRECISIONS else next(iter(PRECISIONS))
    status = with_late(read_status(visible()))
    counters = list(status.counters.values())
    bad = {problem.counter for problem in status.problems}
    found: dict[str, Any] = {
        "by": by,
        "choices": [(name, precision.title) for name, precision in PRECISIONS.items()],
        "charts": apps.is_installed("chartkick.django"),  # which brings Chart.js
        "now": moment(time.time(), "H:i:s"),
        "runbook": runbook(),
        **headline(status),
    }
    with suppress(CounterError):
        if counters:
            one = min(counters, key=lambda each: (bool(each.error), each.name != chosen, each.name not in bad))
            found |= {"counter": one.name, "counters": counter_table(counters, by, one.name, status)}
            if one.off_since:
                found["why_not"] = _("Not while counting is off")
            found["servers"] = server_table(client_of(options.CACHE_ALIAS).infos())
            with at(one.place):
                found |= {"events": event_table(status.trouble), "activity": activity(one, PRECISIONS[by])}
        if not (status.problems or status.warnings) and (since := well_since(status)):
            found["since"] = moment(since)
    if redis_outage():
        found |= {"redis_is_down": True, "why_not": _("Not without Redis")}
    return found


GRAVEST = {"off", "unreachable"}
"""The kinds of problems that are told first."""

WANTED = {"off"}
"""The kinds of problems that are no failure: somebody has chosen so."""


class Button(NamedTuple):
    """A button of the page: the ``name`` of what it does, its ``title``, and a ``help`` text."""

    name: str
    title: object
    help: object


BUTTONS = (
    Button("flush", gettext_lazy("Flush now"), gettext_lazy("Stores what waits for the flusher.")),
    Button(
        "recount",
        gettext_lazy("Recount"),
        gettext_lazy("Compares every count with its rows, and mends wrong ones."),
    ),
)

REMEDIES = {"backlog": "flush", "wrong": "recount"}
"""The buttons that may end a problem or a warning, by its kind."""


def headline(status: Status) -> dict[str, Any]:
    """Return what the headline says: the ``lead``, which is the gravest problem or warning, with the button that may
    end it, and the ``others``."""
    problems, warnings = shown(status.problems), shown(status.warnings)
    told = [*sorted(problems, key=lambda each: each.kind not in GRAVEST), *warnings]
    found: dict[str, Any] = {
        "level": level_of({problem.kind for problem in problems}, bool(warnings)),
        "warnings": warnings,
        "others": told[1:],
    }
    if told:
        lead = told[0]
        same = [each.counter for each in (*status.problems, *status.warnings) if each.kind == lead.kind]
        found |= {"lead": lead, "remedy": REMEDIES.get(lead.kind), "remedied": same}
        found["lead_since"] = lead.since and unbroken(moment(lead.since))
    if status.trouble and is_over(status):
        found |= {"level": "warned", "trouble_until": moment(time.time() - status.trouble.age)}
    return found


def level_of(problems: set[str], has_warnings: bool) -> str:
    """Return how bad these kinds of problems, and warnings, are."""
    if problems - WANTED:
        return "bad"
    return "warned" if problems or has_warnings else "good"


def shown(problems: Sequence[Problem]) -> list[Problem]:
    """Return problems for the template, each once."""
    return [
        replace(problem, sentence=with_code(unbroken(problem.sentence)), more=with_code(problem.more))
        for problem in merged(problems)
    ]


@cache
def runbook() -> str:
    """Return the address of the runbook, which only the package of a release knows."""
    with suppress(PackageNotFoundError):
        urls = metadata("django-notifications-counter").get_all("Project-URL", [])
        return dict(url.split(", ") for url in urls).get("Runbook", "")
    return ""


def visible() -> list[LocalCounter[Counter]]:
    """Return every counter at the places that a user of this database may see."""
    return visible_counters(all_counters(), for_users=True)


def with_late(status: Status) -> Status:
    """Add warnings about work that has waited for longer than cron takes, but not yet for so long that it is a
    problem."""
    told = {problem.counter for problem in status.problems}
    counters = [counter for name, counter in status.counters.items() if name not in told]
    late = [counter.backlog() for counter in counters if counter.age > MAX_MISSED_SECONDS]
    return replace(status, warnings=(*late, *status.warnings))


def is_over(status: Status) -> bool:
    """Return whether the only problem is trouble with Redis that no process has noted again."""
    only_redis = {problem.kind for problem in status.problems} == {"redis"}
    return only_redis and status.trouble is not None and status.trouble.age > 2 * NOTE_SECONDS


def well_since(status: Status) -> float | None:
    """Return when the last trouble ended, in seconds since 1970; None if there is none on record. This costs four
    round trips for each database or schema."""
    ends = [time.time() - status.trouble.age] if status.trouble else []
    kinds = "walked", "skipped", "wrong", "late"
    for place in {counter.place for counter in status.counters.values()}:
        with at(place):
            ends += [event["timestamp"] for kind in kinds for event in history.latest(1, kind)]
    return max(ends, default=None)


def ago(seconds: float) -> str:
    """Return how long ago something was."""
    return _("just now") if seconds < 2 else _("%s ago") % duration(seconds)


GUILTY = {
    "failed": {"last_run"},
    "backlog": {"age", "last_run"},
    "missed": {"age"},
    "overdue": {"overdue"},
    "idle": {"age", "last_run"},
    "wrong": {"wrong"},
    "skipped": {"skipped"},
}
"""The cells of a counter that a problem is about, by its kind."""


FOLDED = "overdue", "wrong", "skipped"
"""The columns that are shown only if they say something of a counter."""


def counter_table(counters: Sequence[CounterStatus], by: str, shown: str, status: Status) -> Table:
    """Return each counter in a line, with a link that shows its part of the page, as that of ``shown``. The cells that
    problems and warnings are about are marked."""
    cells = [cells_of(counter) for counter in counters]
    empty = {name for name in FOLDED if all(each[name] in ("0", "–") for each in cells)}
    columns = {name: column for name, column in counter_columns().items() if name not in empty}
    rows = []
    for counter, texts in zip(counters, cells, strict=True):
        kinds = {problem.kind for problem in status.problems if problem.counter == counter.name}
        looks = {warning.kind for warning in status.warnings if warning.counter == counter.name}
        marks = {name: mark for name, mark in marks_of(counter, kinds, looks).items() if texts[name] != "–"}
        level, state = level_of(kinds, bool(looks)), state_of(counter, kinds, looks)
        link = format_html(
            '<a href="?{}#nc-counter"{}>{}</a>',
            urlencode({"by": by, "counter": counter.name}),
            mark_safe(' aria-current="true"') if counter.name == shown else "",
            counter.name,
        )
        off = " nc-off" if counter.off_since else ""
        rows.append(
            [
                link,
                format_html('<span class="nc-state nc-{}{}">{}</span>', level, off, state),
                *(odd(texts[name], marks[name]) if name in marks else texts[name] for name in columns),
            ]
        )
    words = {_("State"): _("Whether the counter has a problem, or a warning, which is told above.")}
    words |= dict(columns.values())
    buttons = {str(button.title): str(button.help) for button in BUTTONS}
    return Table([_("Counter"), *words], rows, words=words | buttons, name="counters")


def counter_columns() -> dict[str, tuple[str, str]]:
    """Return the title of each number of a counter, and what it means, by the name of the cell."""
    in_flight = _(
        "Writes that are announced and not confirmed yet. If a process is killed meanwhile, or Redis cannot be "
        "reached, they are overdue, and are dropped after %(age)s. Up to %(limit)s overdue ones are no problem."
    )
    in_flight %= {"age": duration(options.MAX_TRANSACTION_AGE), "limit": MAX_OVERDUE}
    return {
        "last_run": (_("Flusher ran"), _("When the flusher last worked for the counter.")),
        "waiting": (
            pgettext("changes", "Waiting"),
            _("Owners whose changes wait for the flusher, which writes them to the database. Badges include these."),
        ),
        "age": (
            pgettext("changes", "Oldest"),
            _("For how long the oldest of these, or other work of the flusher, has waited."),
        ),
        "overdue": (_("In flight"), in_flight),
        "wrong": (
            _("Wrong counts"),
            _("The flusher compares every count with its rows, again and again, and puts what is wrong in doubt."),
        ),
        "skipped": (
            _("Skipped"),
            _("How often a count could not be stored: something else wrote it, or a sum is too large for its column."),
        ),
    }


def marks_of(counter: CounterStatus, problems: set[str], warnings: set[str]) -> dict[str, str]:
    """Return the level at which a cell is marked, by its name."""
    if "walk" in warnings and counter.is_idle:
        warnings = warnings | {"idle"}
    marks = {name: "warned" for kind in warnings for name in GUILTY.get(kind, ())}
    return marks | {name: "bad" for kind in problems for name in GUILTY.get(kind, ())}


def state_of(counter: CounterStatus, problems: set[str], warnings: set[str]) -> str:
    """Return the state of a counter in a few words."""
    if counter.error:
        return _("Redis unreachable") if redis_outage() else _("unknown")
    if counter.phase == Phase.WALKING:
        return _("walking, up to owner %s") % counter.walked_to
    if counter.off_since:
        return _("off")
    if counter.phase != Phase.NORMAL:
        return _("rows are counted")
    return _("has a problem") if problems else _("needs a look") if warnings else _("in order")


def cells_of(counter: CounterStatus) -> dict[str, str]:
    """Return the numbers of a counter as texts."""
    in_flight, overdue = grouped(counter.in_flight), _("%s overdue") % grouped(counter.overdue)
    cells = {
        "last_run": _("unknown") if counter.last_run is None else ago(counter.last_run),
        "waiting": grouped(counter.waiting),
        "age": duration(counter.age) if counter.age else "–",
        "overdue": format_html("{} ({})", in_flight, overdue) if counter.overdue else in_flight,
        "wrong": grouped(counter.wrong),
        "skipped": grouped(counter.skipped),
    }
    return dict.fromkeys(cells, "–") if counter.error else cells


def server_table(servers: Sequence[Mapping[str, Any]]) -> Table:
    """Return each server in a line. Managed servers leave some numbers out of INFO."""
    titles = [_("Server"), _("Memory policy"), _("Up for"), _("Memory"), _("Memory limit")]
    rows = []
    for info in filter(None, servers):
        name, version = ("Valkey", valkey) if (valkey := info.get("valkey_version")) else ("Redis", "")
        up, used, limit = (info.get(name) for name in ("uptime_in_seconds", "used_memory", "maxmemory"))
        rows.append(
            [
                f"{name} {version or info.get('redis_version', '')}",
                info.get("maxmemory_policy", ""),
                duration(int(up)) if up else "",
                filesizeformat(used) if used else "",
                "" if limit is None else filesizeformat(limit) if int(limit) else _("none"),
            ]
        )
    words = {_("Memory policy"): _("What Redis does when its memory is full. With noeviction, it deletes nothing.")}
    return Table(titles, rows, words=words, name="servers")


def event_table(trouble: Trouble | None) -> Table:
    """Return the last events of all counters, and the last trouble with Redis."""
    events = [
        (event["timestamp"], event.get("level", 0), sentence_of(event), event["counter"])
        for event in history.latest(MAX_EVENTS_READ)
    ]
    if trouble:
        text = _("Processes had trouble with Redis, and counted rows: %(reason)s") % {"reason": trouble.reason}
        events.append((time.time() - trouble.age, logging.WARNING, text, ""))
        events.sort(key=itemgetter(0), reverse=True)
    counters: dict[tuple[str, int, str], list[str]] = {}  # several do the same at the same time
    for timestamp, level, sentence, counter in events:
        counters.setdefault((moment(timestamp, "H:i:s"), level, sentence), []).append(counter)
    looks = {logging.WARNING: "nc-alarm nc-warned", logging.ERROR: "nc-alarm nc-bad"}
    rows = [
        [
            when,
            format_html('<span class="{}">{}</span>', looks.get(level, "nc-usual"), sentence),
            ", ".join(sorted(names)),
        ]
        for (when, level, sentence), names in counters.items()
    ]
    return Table([_("Time"), _("Event"), _("Counter")], rows[:MAX_EVENTS_SHOWN], name="events")


def sentence_of(event: Event) -> str:
    """Return what an event says."""
    if reason := event.get("reason"):
        event["reason"] = _(reason)
    fields = {
        name: grouped(value) if isinstance(value, int) else truncatechars(repr(" ".join(str(value).split()))[1:-1], 300)
        for name, value in event.items()
    }
    if event["type"] == "wrong":
        parts = fields["examples"].split("; ")
        fields["examples"] = format_html_join("; ", "{}", ([wrong_count(event["counter"], part)] for part in parts))
    text = _(EVENTS[event["type"]].sentence) if event["type"] in EVENTS else event["type"]  # of another release
    text = escape(text[:1].upper() + text[1:])
    return mark_safe(text % {name: conditional_escape(value) for name, value in fields.items()})


def wrong_count(counter: str, text: str) -> str:
    """Return what the history says of a wrong count, with a link to the owner's page in the admin, if there is one."""
    found = re.fullmatch(r"(.+): (-?\d+) instead of (-?\d+)", text)  # a Difference
    if not found:
        return text
    owner, was, rows = found.groups()
    with suppress(ConfigurationError, NoReverseMatch):  # a counter that is gone, a model that is not in the admin
        owner = link_to(owner, counter_named(counter))
    sentence = _("{owner}: {was} instead of {rows}")
    return format_html(sentence, owner=owner, was=grouped(int(was)), rows=grouped(int(rows)))


def link_to(key: str, counter: Counter) -> str:
    """Return an owner of a counter as a link to its page. NoReverseMatch if there is none."""
    model = counter.owner_fields[0].related_model
    if not model or counter.has_several_columns or not key.replace("-", "").isalnum():  # the admin quotes other keys
        raise NoReverseMatch
    name = f"{model._meta.verbose_name} {key}"
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[key])
    return format_html('<a href="{}">{}</a>', url, name)
