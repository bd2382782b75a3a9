"""The state of all counters, for `flush_counters --check`, the health check, the metrics and the admin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from django.db import Error as DatabaseFailure
from django.db import connections

from ..buffer.client import client_of
from ..buffer.troubles import Outages, Trouble
from ..checks.tables import explain
from ..conf import options
from ..counters import Counter, all_counters
from ..exceptions import CounterError
from ..maintenance.in_force import kept_though_off, shards_in_force
from ..maintenance.places import LocalCounter, at, visible_counters
from .problems import MAX_AGE, Problem, problems_of, shards_problem, switched_off_problem, trouble_problem, warnings_of
from .state import CounterReport, look_at


@dataclass(frozen=True)
class Report:
    """The state of the ``counters`` that could be read; the counters that are ``unreachable``, and the ``errors`` that
    say why; the ``outages`` of Redis that processes have noticed, None during one; and a problem for each setting that
    differs from the flusher's, ``other_settings``."""

    counters: list[CounterReport]
    unreachable: list[LocalCounter[Counter]]
    errors: list[str]
    outages: Outages | None
    other_settings: Sequence[Problem] = ()

    def problems(self, max_age: float = MAX_AGE) -> list[Problem]:
        """Return everything that is wrong, beginning with what is unreachable."""
        return [
            *(Problem(None, "unreachable", error) for error in self.errors),
            *map(trouble_problem, self.troubles),
            *(problem for counter in self.counters for problem in problems_of(counter, max_age)),
            *self.other_settings,
        ]

    @property
    def warnings(self) -> list[Problem]:
        """Problems of the last day that are corrected."""
        return [problem for counter in self.counters for problem in warnings_of(counter)]

    @property
    def troubles(self) -> list[Trouble]:
        """The trouble that processes have with Redis now."""
        return [trouble for trouble in self.outages.troubles if trouble.goes_on] if self.outages else []

    @property
    def age(self) -> float:
        """Seconds that the oldest change, owner or request has waited."""
        return max((counter.age for counter in self.counters), default=0)

    def as_json(self, max_age: float = MAX_AGE) -> dict[str, Any]:
        """Return the report and its problems, as `flush_counters --check --json` prints them."""
        problems = self.problems(max_age)
        return {
            "ok": not problems,
            "error": " ".join(self.errors) or None,
            "problems": [asdict(problem) for problem in problems],
            "warnings": [asdict(problem) for problem in self.warnings],
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
    other_settings: dict[Problem, None] = {}  # each once
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
                        other_settings[shards_problem(name, number)] = None
                        continue
                    found.append(replace(look_at(counter), name=name))
                    other_settings |= dict.fromkeys(map(switched_off_problem, kept_though_off(counter)))
                continue
        except CounterError as error:
            errors.setdefault("", explain(error))
        except DatabaseFailure as error:
            errors[place.alias] = explain(error, f"Database {place.alias!r}, counter {counter.name!r}")
            connections[place.alias].close_if_unusable_or_obsolete()
        unreachable.append(each)
    return Report(found, unreachable, list(errors.values()), _outages(), list(other_settings))


def _outages() -> Outages | None:
    try:
        return client_of(options.CACHE_ALIAS).outages()
    except CounterError:
        return None
