from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Model, QuerySet

from ...counters import Counter, all_counters, counter_named, counters_of_notifications
from ...maintenance.orphans import remove_orphans
from ...maintenance.places import LocalCounter, at, at_each
from ...maintenance.recount import Difference, RecountResult
from ..console import CounterCommand, Meter, find_counters, number, plain_errors, why_waiting


class Command(CounterCommand):
    help = "Compares every count with the database's rows, and corrects it."
    heals = True

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
            raise CommandError("--restored recounts and corrects everyone. Leave out --counter, --owner and --dry-run.")
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
        dry_run, restored = self.dry_run, self.restored
        keys = keys and keys_of(counter, keys)

        def report(correction: Difference) -> None:
            count, change = "unreadable", ""
            if correction.was is not None:
                count, change = f"{correction.was:,}", f" ({correction.rows - correction.was:+,})"
            done = "would be corrected" if dry_run else "corrected"
            meter.say(f"{name}: owner {correction.owner}: count {count}, rows {correction.rows:,} → {done}{change}")

        def progress(checked: int) -> None:
            meter.show(f"{name}: owners recounted", checked)

        healed = RecountResult()
        if not dry_run:
            healed = counter.heal(math.inf, progress, report=report if restored else None)
        if healed.checked and not restored:  # readers did not see what these counts lacked
            meter.say(
                f"{name}: first healed {number(healed.checked, 'owner')}, whose rows were counted until now; completed "
                f"{number(healed.corrected, 'count')}."
            )
            healed = RecountResult()
        resume = keys is None and not dry_run and not restored and not self.restart
        if resume and (after := counter.buffers[0].upkeep.recounted().partition(":")[2]):
            meter.say(f"{name}: resuming after owner {after}, where a run was interrupted; --restart starts over.")
        for model, key in missing_owners(counter, keys or ()):
            who = model._meta.verbose_name
            meter.say(f"{name}: no {who} has the primary key {key}. Whatever it left behind is recounted.")
        result = counter.recount(keys, dry_run, report, progress, resume=resume)
        removed = 0 if dry_run or keys is not None else remove_orphans(counter)
        meter.end()
        result.wrong += healed.wrong
        result.corrected += healed.corrected
        corrected = f"would correct {result.wrong:,}" if dry_run else f"corrected {result.corrected:,}"
        meter.say(f"{name}: checked {number(result.checked, 'owner')}, {result.wrong:,} wrong, {corrected}.")
        if result.postponed:
            meter.say(f"{name}: left {number(result.postponed, 'owner')} in doubt to flush_counters.")
        if reason := why_waiting(counter):
            if dry_run:  # nothing was healed, so Redis may also have lost data
                reason = "Redis does not hold complete counts. Rows are counted until the next recovery."
            meter.say(f"{name}: {reason} Then the flusher recounts everyone.")
        if removed:
            meter.say(f"{name}: removed {number(removed, 'total')} of deleted owners.")


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
