"""What the commands share: output, progress, interrupts, errors in one line."""

from __future__ import annotations

import logging
import signal
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import IntegrityError, ProgrammingError
from django.template.defaultfilters import pluralize

from ..counters import Counter
from ..databases.errors import EXPECTED, explain
from ..monitoring.status import read_counter
from ..places import LocalCounter, local_counters
from ..reports import EVENTS, logger
from ..signals import event_reported
from ..upkeep.findings import Result

PROGRESS_SECONDS = 5.0
"""Seconds between two lines of progress in a long step."""


class CounterCommand(BaseCommand):
    """A command that says errors that are not bugs in one line."""

    verbosity = 1

    def execute(self, *args: Any, **options: Any) -> str | None:
        self.verbosity = options["verbosity"]
        self.begin()
        try:
            with _interrupted_by_signals():
                return super().execute(*args, **options)
        except (*EXPECTED, ProgrammingError, IntegrityError) as error:
            raise CommandError(explain(error, " ".join(getattr(error, "__notes__", ())))) from error
        except KeyboardInterrupt:
            if options.get("loop"):  # that is how it ends
                return None
            raise CommandError(
                "Interrupted. Nothing is lost; run the command again to continue.", returncode=130
            ) from None

    def check(self, *args: Any, **options: Any) -> None:
        """Run the system checks, except those that query the databases. From Django 6 on they run before every command,
        and raise if MariaDB is unreachable."""
        super().check(*args, **{"databases": [], **options})

    def say(self, line: str) -> None:
        """Write a line at once. The output of a service, which has no terminal, would be buffered."""
        if self.verbosity:
            self.stdout.write(line)
            self.stdout.flush()

    def begin(self) -> None:
        """Begin something that may take long."""
        self._shown_at = time.monotonic()

    def show(self, step: str, done: int, total: int | None = None) -> None:
        """Say now and then how much of a long step is done. A step with a single piece is not worth it."""
        is_due = done != total and time.monotonic() >= self._shown_at + PROGRESS_SECONDS
        if is_due or self.verbosity > 1:
            self._shown_at = time.monotonic()
            self.say(f"{step}: {done:,} of {total:,}" if total else f"{step}: {done:,}")

    @contextmanager
    def showing(self, name: str) -> Iterator[None]:
        """Show how far the flush, heal or recount of a counter has come."""
        self.begin()

        def show(event: str, fields: Mapping[str, Any], **_: object) -> None:
            if event in ("stored", "compared"):
                self.show(f"{name}: owners {event}", fields["owners"], fields.get("of"))
            elif event == "walked" and not logger.isEnabledFor(logging.INFO):  # otherwise the log says it
                self.say(f"{name}: {EVENTS[event].sentence}")

        event_reported.connect(show)
        try:
            yield
        finally:
            event_reported.disconnect(show)

    def say_wrong(self, name: str, result: Result) -> None:
        """Say which counts of a counter were wrong."""
        for found in result.differences:
            change = f"{found.rows - found.was:+,}"
            self.say(f"{name}: owner {found.owner}: {found.was:,} cached or stored, {found.rows:,} rows ({change}).")
        if more := result.wrong - len(result.differences):
            self.say(f"{name}: {more:,} more.")

    def say_problems(self, local: LocalCounter[Counter]) -> None:
        """Say what is wrong with a counter at this place, as `flush_counters --check` does, and of a deploy."""
        status = read_counter(local.counter, local.name)
        for problem in (*status.problems(), *status.deploy()):
            self.say(str(problem))


# --------------------------------------------------------------------- options
def add_places(parser: CommandParser) -> None:
    """Add options that restrict a command to one database or schema."""
    parser.add_argument(
        "--database", metavar="ALIAS", help="use only this database (default: all that have the tables)"
    )
    parser.add_argument("--schema", metavar="NAME", help="use only this tenant's schema (default: all)")


def find_counters(
    counters: Collection[Counter], database: str | None, schema: str | None
) -> list[LocalCounter[Counter]]:
    """Return every counter at each of its places. CommandError if there is no such place."""
    found = local_counters(counters, database, schema)
    if not found and (database, schema) != (None, None):  # '' is a variable that was not set
        raise CommandError(f"No counter has its tables in {database if schema is None else schema!r}.")
    return found


def at_least(minimum: int, kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return a parser of numbers for argparse."""

    def parse(value: str) -> float:
        if not (parsed := kind(value)) >= minimum:  # nan is neither less nor more
            raise ArgumentTypeError(f"{value} is not at least {minimum}")
        return parsed

    parse.__name__ = kind.__name__  # argparse says "invalid float value"
    return parse


# ---------------------------------------------------------------------- output
def number(count: int, noun: str) -> str:
    """Return a count with its noun: 1 owner, 2 owners."""
    return f"{count:,} {noun}{pluralize(count)}"


# --------------------------------------------------------------------- signals
@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM interrupt the command, as Ctrl-C does. Only the main thread can handle signals."""
    is_main = threading.current_thread() is threading.main_thread()
    signums = (signal.SIGTERM, signal.SIGINT) if is_main else ()  # the latter is ignored in the background of a script
    before = {signum: signal.signal(signum, signal.default_int_handler) for signum in signums}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
