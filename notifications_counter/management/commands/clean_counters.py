from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep

from django.core.management.base import CommandParser
from django.db import close_old_connections

from ...failures import Failures
from ...tasks import clean_everywhere
from ..console import CounterCommand, number

MINUTE = 60


class Command(CounterCommand):
    help = "Removes old slices of time-sliced counters."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--loop",
            action="store_true",
            help="run until SIGTERM or Ctrl-C: once a minute, less often for coarse counters",
        )

    def handle(self, *, loop: bool, **options: object) -> None:
        if loop:
            self.loop()
        else:
            self.run(lambda precision: True)

    def loop(self) -> None:
        """Run until interrupted."""
        passes, failures = 0, Failures("clean_counters")
        while True:
            started = monotonic()
            close_old_connections()
            with failures.caught():
                # As in the book: a counter with slices of an hour is cleaned once an hour.
                self.run(lambda precision: passes % max(1, precision // MINUTE) == 0, quiet=True)  # noqa: B023
            failures.end_run()
            passes += 1
            sleep(max(1, started + MINUTE - monotonic()))  # at least a second, as in the book

    def run(self, due: Callable[[int], bool], quiet: bool = False) -> None:
        """Do one pass. ``quiet``: print nothing if there was nothing to do."""
        self.begin()
        started = monotonic()
        cleaned = clean_everywhere(due, lambda done, total: self.show("time-sliced counters cleaned", done, total))
        if cleaned.slices or cleaned.gone:
            self.say(
                f"Looked at {number(cleaned.counters, 'counter')}, removed {number(cleaned.slices, 'slice')} and "
                f"{number(cleaned.gone, 'empty counter')}, {monotonic() - started:.2f} s."
            )
        elif not quiet:
            self.say(f"Nothing to clean in {number(cleaned.counters, 'counter')}.")
