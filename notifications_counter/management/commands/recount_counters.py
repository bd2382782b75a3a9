from __future__ import annotations

import json
import math

from django.core.management.base import CommandError, CommandParser

from ...counters import Counter, all_counters, counter_named
from ...declaration.primary_keys import Pk
from ...failures import at_each
from ...places import LocalCounter
from ...upkeep.findings import Result
from ..console import CounterCommand, add_places, find_counters, number


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
            help="with --counter: recount only the owner with this primary key, for several columns a list as JSON; "
            "may be repeated",
        )
        parser.add_argument("--dry-run", action="store_true", help="change nothing; print what would change")
        parser.add_argument(
            "--restored",
            action="store_true",
            help="the database was restored from a backup: discard what Redis holds",
        )
        add_places(parser)

    def handle(
        self,
        *,
        counter: list[str] | None,
        owner: list[str] | None,
        dry_run: bool,
        restored: bool,
        database: str | None,
        schema: str | None,
        **options: object,
    ) -> None:
        if restored and (counter or owner or dry_run):
            raise CommandError("--restored is about everyone. Leave out --counter, --owner and --dry-run.")
        if owner and not counter:
            raise CommandError("Whose owner is it? Add --counter to --owner.")
        counters = [counter_named(name) for name in dict.fromkeys(counter)] if counter else all_counters()
        pks = {each.name: pks_of(each, owner) for each in counters} if owner else {}
        todo = find_counters(counters, database, schema)
        if restored:
            at_each(todo, lambda local: local.counter.invalidate())
        self.dry_run = dry_run
        at_each(todo, lambda local: self.recount(local, pks.get(local.counter.name)))

    def recount(self, local: LocalCounter[Counter], pks: list[Pk] | None) -> None:
        name, counter, _ = local
        wrong = 0

        def tell(found: Result) -> None:
            nonlocal wrong
            wrong += found.wrong
            self.say_wrong(name, found)

        with self.showing(name):
            if not self.dry_run:
                tell(counter.heal(math.inf))
            result = counter.recount(pks, self.dry_run)
        tell(result)
        if not self.dry_run:
            tell(counter.flush())
        now = "" if self.dry_run or not wrong else " Their rows were counted."
        skipped = f", skipped {result.skipped:,}" if result.skipped else ""
        self.say(f"{name}: compared {number(result.owners, 'owner')}{skipped}, {wrong:,} wrong.{now}")
        self.say_problems(local)


def pks_of(counter: Counter, values: list[str]) -> list[Pk]:
    """Return these values of --owner as primary keys of a counter. Raises CommandError if one is none."""
    try:
        return [counter.pk_of(json.loads(value) if counter.has_several_columns else value) for value in values]
    except ValueError as error:
        what = "This is no JSON list." if isinstance(error, json.JSONDecodeError) else error
        raise CommandError(
            f"{what} Pass --owner a primary key of an owner of the counter {counter.name!r}, once for each."
        ) from None
