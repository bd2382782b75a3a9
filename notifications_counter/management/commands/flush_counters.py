from __future__ import annotations

import json
import time
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import close_old_connections

from ...counters import Counter, all_counters
from ...monitoring.display import duration
from ...monitoring.status import MAX_AGE, look, sentences
from ...upkeep.flush import heal_and_flush
from ...upkeep.places import LocalCounter, at, at_each
from ...upkeep.walk import Result
from ..console import (
    CounterCommand,
    Meter,
    OutageLog,
    Stop,
    at_least,
    describe,
    find_counters,
    number,
    plain_errors,
    stop_on_signals,
    why_waiting,
)


class Command(CounterCommand):
    help = "Heals every counter, and writes the counts of owners that have changed to the database."

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
            "--chunk-size",
            type=at_least(1, int),
            metavar="OWNERS",
            help="owners in one statement (default: FLUSH_CHUNK)",
        )
        parser.add_argument(
            "--max-age",
            type=at_least(0, float),
            metavar="SECONDS",
            help=f"with --check: how long a change may wait (default: {MAX_AGE})",
        )
        parser.add_argument(
            "--json", action="store_true", dest="as_json", help="with --check: print the state of all counters as JSON"
        )

        self.add_places(parser)

    def handle(
        self,
        *,
        loop: bool,
        check: bool,
        interval: float,
        chunk_size: int | None,
        max_age: float | None,
        as_json: bool,
        database: str | None,
        schema: str | None,
        verbosity: int,
        **options: Any,
    ) -> None:
        self.verbosity = verbosity
        self.chunk_size = chunk_size
        self.database, self.schema = database, schema
        if (as_json or max_age is not None) and not check:
            raise CommandError(f"{'--json' if as_json else '--max-age'} can be used only with --check.")
        with plain_errors():
            if check:  # it writes nothing, so a signal may end it at once
                self.check_state(MAX_AGE if max_age is None else max_age, as_json)
                return
            with stop_on_signals() as stop:
                if loop:
                    self.loop(stop, interval)
                else:
                    at_each(self.find_counters(), lambda local: self.run_to_end(local, stop))

    def find_counters(self) -> list[LocalCounter[Counter]]:
        return find_counters(all_counters(), self.database, self.schema)

    # ------------------------------------------------------------------ flush
    def loop(self, stop: Stop, interval: float) -> None:
        """Run until asked to stop."""
        outages = OutageLog("flush_counters", interval)
        told: set[str] = set()
        while not stop.asked():
            close_old_connections()
            todo: list[LocalCounter[Counter]] = []
            unfinished = False
            with outages.watch():
                todo = self.find_counters()
            for local in todo:
                close_old_connections()
                with outages.watch(local):
                    unfinished |= self.run(local, stop, quiet=True)
                    if local.name not in told:
                        told.add(local.name)
                        self.tell_why_waiting(local)
                if stop.asked():
                    return
            if outages.end_run() or not unfinished:
                stop.wait(interval)

    def run_to_end(self, local: LocalCounter[Counter], stop: Stop) -> None:
        """Run until nothing is left to heal."""
        while self.run(local, stop):
            pass

    def run(self, local: LocalCounter[Counter], stop: Stop, quiet: bool = False) -> bool:
        """Heal and flush one counter at one place. ``quiet``: print nothing if there was nothing to do. Returns whether
        healing has more to do."""
        if stop.asked():
            return False
        name, counter, place = local
        with at(place), Meter(self.stdout, self.verbosity) as meter:
            if self.verbosity > 1:
                self.tell_shards(counter, name)
            return heal_and_flush(
                counter, lambda: self.heal(local, stop, meter), lambda: self.flush(local, stop, meter, quiet)
            )

    def heal(self, local: LocalCounter[Counter], stop: Stop, meter: Meter) -> Result:
        name, counter, _ = local
        healed = counter.heal(
            progress=lambda done: meter.show(f"{name}: owners compared", done),
            stopped=stop.asked,
            report=lambda found: meter.say(f"{name}: {describe(found)}."),
        )
        meter.end()
        return healed

    def flush(self, local: LocalCounter[Counter], stop: Stop, meter: Meter, quiet: bool) -> None:
        if stop.asked():
            return
        name, counter, _ = local
        started = time.monotonic()
        flushed = counter.flush(
            progress=lambda done, total: meter.show(f"{name}: owners flushed", done, total),
            stopped=stop.asked,
            chunk_size=self.chunk_size,
        )
        meter.end()
        if flushed.owners or flushed.aside:
            aside = f", set {flushed.aside:,} aside" if flushed.aside else ""
            wrong = f", {flushed.wrong:,} of them wrong before" if flushed.wrong else ""
            owners = number(flushed.owners, "owner")
            meter.say(f"{name}: flushed {owners}{wrong}{aside}, {time.monotonic() - started:.2f} s.")
        elif not quiet:
            meter.say(f"{name}: {self.why_nothing(counter)}")

    def why_nothing(self, counter: Counter) -> str:
        """Return why nothing was flushed."""
        if reason := why_waiting(counter):
            return f"nothing flushed. {reason}"
        states = [shard.status for shard in counter.status()]
        waiting, intents = sum(s.pending + s.flushing for s in states), sum(s.intents for s in states)
        if waiting or intents:
            in_flight = number(intents, "intent")
            return f"nothing flushed; for the next runs: {number(waiting, 'owner')}, {in_flight} in flight."
        return "nothing to flush."

    def tell_why_waiting(self, local: LocalCounter[Counter]) -> None:
        with at(local.place):
            if self.verbosity and (reason := why_waiting(local.counter)):
                self.stdout.write(f"{local.name}: {reason}")

    def tell_shards(self, counter: Counter, name: str) -> None:
        for shard in counter.status():
            s = shard.status
            self.stdout.write(
                f"{name}, shard {shard.shard}: generation {s.generation or 'none'}, pending {s.pending:,}, flushing "
                f"{s.flushing:,}, in flight {s.intents:,}, set aside {s.aside:,}"
            )

    # ------------------------------------------------------------------ check
    def check_state(self, max_age: float, as_json: bool) -> None:
        """Print the state of all counters. Raises CommandError with a sentence for each problem."""
        status = look(local=self.find_counters())
        if as_json:
            self.stdout.write(json.dumps(status.as_json(max_age), indent=2))
        elif self.verbosity:
            for warning in sentences(status.warnings):
                self.stdout.write(f"Warning: {warning}")
        if problems := status.problems(max_age):
            raise CommandError("\n".join(sentences(problems)))
        if self.verbosity and not as_json:
            waiting = f"The oldest change has waited for {duration(status.age)}." if status.age else "Nothing waits."
            self.stdout.write(f"All is well. {waiting}")
