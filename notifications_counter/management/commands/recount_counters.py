from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Model, QuerySet

from ...counters import Counter, all_counters, counter_named, counters_of_notifications
from ...upkeep.places import LocalCounter, at, at_each
from ...upkeep.walk import Difference
from ..console import (
    CounterCommand,
    Meter,
    describe,
    find_counters,
    number,
    plain_errors,
    stop_on_signals,
    why_waiting,
)


class Command(CounterCommand):
    help = "Compares every count with the database's rows, and puts wrong ones in doubt, so that rows are counted."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--counter", action="append", metavar="NAME", help="recount only this counter; may be repeated"
        )
        parser.add_argument(
            "--owner",
            action="append",
            metavar="KEY",
            help="recount only the owner with this primary key, for several columns a list as JSON; may be repeated "
            "(without --counter: a user of the counters of notifications)",
        )
        parser.add_argument("--dry-run", action="store_true", help="change nothing; print what would change")
        parser.add_argument(
            "--restored",
            action="store_true",
            help="the database was restored from a backup: discard what Redis holds",
        )
        parser.add_argument(
            "--restart",
            action="store_true",
            help="start from the first owner, even if a run was interrupted less than an hour ago",
        )

        self.add_places(parser)

    def handle(
        self,
        *,
        counter: list[str] | None,
        owner: list[Any] | None,
        dry_run: bool,
        restored: bool,
        restart: bool,
        database: str | None,
        schema: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        if restored and (counter or owner or dry_run):
            raise CommandError("--restored is about everyone. Leave out --counter, --owner and --dry-run.")
        self.dry_run, self.restored, self.restart = dry_run, restored, restart
        with plain_errors(), Meter(self.stdout, verbosity) as meter:
            if counter:
                counters = [counter_named(name) for name in dict.fromkeys(counter)]
            else:
                counters = all_counters()
                if owner:
                    counters = [each for each in counters_of_notifications() if not each.has_several_columns]
            for each in counters:
                keys_of(each, owner or ())
            todo = find_counters(counters, database, schema)
            for local in todo if restored else ():
                with at(local.place):
                    local.counter.invalidate()
            at_each(todo, lambda local: self.recount(local, owner, meter))
            if owner and not counter and (others := [each.name for each in all_counters() if each not in counters]):
                meter.say(f"Other counters were not recounted: {', '.join(others)}. Name them by --counter.")

    def recount(self, local: LocalCounter[Counter], keys: list[Any] | None, meter: Meter) -> None:
        name, counter, _ = local
        keys = keys and keys_of(counter, keys)

        def report(found: Difference) -> None:
            meter.say(f"{name}: {describe(found)}.")

        if not self.dry_run:
            counter.heal(math.inf, lambda done: meter.show(f"{name}: owners compared", done), report=report)
        resume = keys is None and not self.dry_run and not self.restored and not self.restart
        if resume and (after := counter.buffers[0].walked()):
            meter.say(f"{name}: resuming after owner {after}, where a run was interrupted; --restart starts over.")
        for model, key in missing_owners(counter, keys or ()):
            who = model._meta.verbose_name
            meter.say(f"{name}: no {who} has the primary key {key}. Whatever it left behind is compared.")
        with stop_on_signals() as stop:
            result = counter.recount(
                keys,
                self.dry_run,
                report,
                lambda done: meter.show(f"{name}: owners compared", done),
                stop.asked,
                resume,
            )
        if not self.dry_run and not result.unfinished:
            counter.flush()
        meter.end()
        now = "" if self.dry_run or result.unfinished or not result.wrong else " Their rows were counted."
        meter.say(f"{name}: compared {number(result.owners, 'owner')}, {result.wrong:,} wrong.{now}")
        if result.unfinished:
            meter.say(f"{name}: stopped. Run it again within an hour to go on.")
        if reason := why_waiting(counter):
            meter.say(f"{name}: {reason}")


def keys_of(counter: Counter, values: Iterable[Any]) -> list[Any]:
    """Return these values of --owner as primary keys of a counter. Raises CommandError if one is none."""
    try:
        return [counter.key(json.loads(value) if counter.has_several_columns else value) for value in values]
    except ValueError as error:
        raise CommandError(
            f"{error} Pass --owner a primary key of an owner of the counter {counter.name!r}, once for each."
        ) from None


def missing_owners(counter: Counter, keys: Iterable[Any]) -> Iterator[tuple[type[Model], Any]]:
    """Yield each primary key whose first column refers to no row, and the model that lacks it."""
    related = counter.owner_fields[0].remote_field
    for key in keys if related else ():
        first = key[0] if counter.has_several_columns else key
        if not QuerySet(related.model, using=counter.db).filter(**{related.field_name: first}).exists():
            yield related.model, key
