from __future__ import annotations

import json
import logging
import time

from django.core.management.base import CommandError, CommandParser
from django.db import close_old_connections

from ...counters import Counter, all_counters
from ...failures import Failures, at_each
from ...monitoring.display import duration
from ...monitoring.status import read_status, sentences
from ...places import LocalCounter
from ...reports import logger
from ...upkeep.flush import MAX_AGE_SECONDS, heal_and_flush
from ..console import CounterCommand, add_places, at_least, find_counters, number


class Command(CounterCommand):
    help = "Corrects what crashes and outages have left behind, and writes counts that have changed to the database."

    def add_arguments(self, parser: CommandParser) -> None:
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--loop", action="store_true", help="run until SIGTERM or Ctrl-C")
        how.add_argument(
            "--check",
            action="store_true",
            help="for monitoring: flush nothing, and exit with 1 if anything is wrong, such as a change that has "
            "waited for longer than --max-age",
        )
        parser.add_argument(
            "--interval",
            type=at_least(0, float),
            default=5.0,
            metavar="SECONDS",
            help="pause between two runs of --loop (default: %(default)s)",
        )
        parser.add_argument(
            "--max-age",
            type=at_least(0, float),
            metavar="SECONDS",
            help=f"with --check: how long work may wait (default: {MAX_AGE_SECONDS})",
        )
        parser.add_argument(
            "--json", action="store_true", dest="as_json", help="with --check: print the state of all counters as JSON"
        )
        add_places(parser)

    def handle(
        self,
        *,
        loop: bool,
        check: bool,
        interval: float,
        max_age: float | None,
        as_json: bool,
        database: str | None,
        schema: str | None,
        **options: object,
    ) -> None:
        self.database, self.schema, self.seen = database, schema, set[str]()
        if (as_json or max_age is not None) and not check:
            raise CommandError(f"{'--json' if as_json else '--max-age'} can be used only with --check.")
        if check:
            self.check_state(MAX_AGE_SECONDS if max_age is None else max_age, as_json)
        elif loop:
            self.loop(interval)
        else:
            at_each(self.find_counters(), self.run_to_the_end)

    def find_counters(self) -> list[LocalCounter[Counter]]:
        return find_counters(all_counters(), self.database, self.schema)

    # ------------------------------------------------------------------ flush
    def loop(self, interval: float) -> None:
        """Run until interrupted. After the first run, say what is wrong."""
        failures = Failures("flush_counters")
        self.say(f"Flushing every {interval:g} s, until Ctrl-C or SIGTERM.")
        while True:
            close_old_connections()
            unfinished = False
            with failures.caught():
                for local in self.find_counters():
                    with failures.caught(local):
                        unfinished |= self.run(local, in_loop=True)
            if failures.end_run() or not unfinished:
                time.sleep(interval)

    def run(self, local: LocalCounter[Counter], in_loop: bool = False) -> bool:
        """Heal and flush one counter at this place, and the first time say what is wrong. ``in_loop``: say nothing if
        there was nothing to do. Returns whether something is left to heal."""
        name, counter, _ = local
        started = time.monotonic()
        with self.showing(name):
            healed, flushed = heal_and_flush(counter)
        self.say_wrong(name, healed)
        self.say_wrong(name, flushed)
        if flushed.owners or flushed.skipped:
            skipped = f", skipped {flushed.skipped:,}" if flushed.skipped else ""
            owners, seconds = number(flushed.owners, "owner"), time.monotonic() - started
            if not logger.isEnabledFor(logging.INFO):  # otherwise the log says it
                self.say(f"{name}: flushed {owners}{skipped}, {seconds:.2f} s.")
        elif not in_loop:
            self.say(f"{name}: nothing to flush.")
        if name not in self.seen:
            self.seen.add(name)
            self.say_problems(local)
        return healed.unfinished

    def run_to_the_end(self, local: LocalCounter[Counter]) -> None:
        """Heal and flush one counter at this place until nothing is left to heal."""
        while self.run(local):
            pass

    # ------------------------------------------------------------------ check
    def check_state(self, max_age: float, as_json: bool) -> None:
        """Print the state of all counters. Raises CommandError with a sentence for each problem."""
        status = read_status(self.find_counters(), max_age)
        if as_json:
            self.stdout.write(json.dumps(status.as_json(), indent=2))
        elif self.verbosity:
            for warning in sentences(status.warnings):
                self.say(f"Warning: {warning}")
        if status.problems:
            raise CommandError("\n".join(sentences(status.problems)))
        if not as_json:
            age = max((counter.age for counter in status.counters.values()), default=0)  # no tenant is there yet
            waited = f"The flusher's work has waited for {duration(age)}; up to {duration(max_age)} is normal."
            waiting = waited if age else "Nothing waits."
            self.say(waiting if status.warnings else f"All is well. {waiting}")
