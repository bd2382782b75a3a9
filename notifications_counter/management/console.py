"""Code that the commands share: clean stops, errors in one line, progress."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import TextIOBase
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import ProgrammingError, connections
from django.template.defaultfilters import pluralize

from ..checks.tables import explain, forgotten_migration
from ..counters import Counter
from ..exceptions import BufferUnavailable
from ..upkeep.heal import deploy_seconds
from ..upkeep.places import EXPECTED, OUTAGES, LocalCounter, local_counters
from ..upkeep.walk import Difference

logger = logging.getLogger("notifications_counter")

SIGN_OF_LIFE = 5.0
"""Seconds between two lines of progress in a long step."""


class Lines:
    """The output of a command, flushed after each write: a service has no terminal, so its output would be buffered.
    If nobody reads on, as after `| head -1`, the command ends."""

    def __init__(self, out: Any):
        self.out = out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.out, name)

    def write(self, text: str) -> None:
        try:
            self.out.write(text)
            self.out.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at the end
            raise SystemExit(128 + signal.SIGPIPE) from None  # as if the signal had ended it


class CounterCommand(BaseCommand):
    """A command that reports in a line of its own that Redis or the database is unreachable."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run the command. It reports outages itself, so the log need not."""
        options["stdout"] = Lines(options.get("stdout") or sys.stdout)
        unneeded = {"redis_lost", "redis_found"}

        def is_needed(record: logging.LogRecord) -> bool:
            return getattr(record, "event", "") not in unneeded

        logger.addFilter(is_needed)
        try:
            return super().execute(*args, **options)
        finally:
            logger.removeFilter(is_needed)

    def check(self, *args: Any, **options: Any) -> None:
        """Run the system checks, except those that query the databases. From Django 6 on they run before every command,
        and raise if MariaDB is unreachable."""
        super().check(*args, **{"databases": [], **options})

    def add_places(self, parser: CommandParser) -> None:
        """Add options that restrict the command to one database or schema."""
        parser.add_argument(
            "--database", metavar="ALIAS", help="use only this database (default: all that have the tables)"
        )
        parser.add_argument("--schema", metavar="NAME", help="use only this tenant's schema (default: all)")


def find_counters(counters: Iterable[Counter], database: str | None, schema: str | None) -> list[LocalCounter[Counter]]:
    """Return every counter at each of its places. CommandError if there is no such place."""
    found = local_counters(counters, database, schema)
    if not found and (database, schema) != (None, None):  # '' is a variable that was not set
        raise CommandError(f"No counter has its tables in {database if schema is None else schema!r}.")
    return found


class Stop:
    """A request to stop, by SIGTERM or Ctrl-C."""

    def __init__(self) -> None:
        self._asked = False
        # In a signal handler, Event.set() could wait forever for the lock of the wait() that it interrupts.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ask(self, signum: int, frame: object) -> None:
        self._asked = True
        self._bell.put(None)

    def asked(self) -> bool:
        return self._asked

    def wait(self, seconds: float) -> None:
        """Sleep, but wake up when asked to stop. A signal right before a sleep does not interrupt it, so no sleep is
        longer than a second."""
        end = time.monotonic() + seconds
        while not self._asked and (left := end - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self._bell.get(timeout=min(left, 1))


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """Let SIGTERM and Ctrl-C ask the command to stop. Only the main thread can handle signals."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {signum: signal.signal(signum, stop.ask) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors that are not bugs into one line, without a traceback."""
    try:
        yield
    except EXPECTED as error:
        raise CommandError(explain(error, " ".join(getattr(error, "__notes__", ())))) from error
    except ProgrammingError as error:
        if missing := forgotten_migration():
            raise CommandError(missing) from error
        raise
    except KeyboardInterrupt:
        raise CommandError("Interrupted. Nothing is lost; run the command again to continue.", returncode=130) from None


def why_waiting(counter: Counter) -> str:
    """Return why nothing can be flushed now; empty if it can."""
    if all(shard.row is not None and shard.row.mark for shard in counter.status()):
        return ""
    return (
        "The counter is new, or its declaration has changed. Rows are counted until all processes have had "
        f"{deploy_seconds():g} s (DEPLOY_SECONDS) to be replaced."
    )


class OutageLog:
    """The log of a command that loops. It names an outage of Redis or of a database, or an error of a counter, once,
    and says when the command works again. Without LOGGING in the settings, it goes to stderr."""

    def __init__(self, command: str, interval: float):
        self.command = command
        self.interval = interval
        # The kinds of errors in the previous run, and in this one: the class, and the database or the counter.
        self._before: set[tuple[type[Exception], str | None]] = set()
        self.errors: set[tuple[type[Exception], str | None]] = set()

    @contextmanager
    def watch(self, local: LocalCounter[Counter] | None = None) -> Iterator[None]:
        """Note an error, so that the loop continues."""
        try:
            yield
        except Exception as error:
            if local:
                connections[local.place.alias].close()
            self.failed(error, local)

    def failed(self, error: Exception, local: LocalCounter[Counter] | None = None) -> None:
        """Note an error. A mistake in the code is logged with its traceback, for each counter."""
        where = None
        if local and not isinstance(error, BufferUnavailable):
            where = local.place.alias if isinstance(error, OUTAGES) else local.name
        kind = type(error), where
        if kind not in self._before | self.errors:
            reason, counter = explain(error), local.name if local and where else None
            about = {"event": "run_failed", "command": self.command, "counter": counter, "reason": reason}
            what = f"{counter}: {reason}" if counter else reason
            mistake = None if isinstance(error, EXPECTED) else error
            logger.error("%s (trying again every %g s)", what, self.interval, exc_info=mistake, extra=about)
        self.errors.add(kind)

    def end_run(self) -> bool:
        """Note the end of a run. If it had no errors, the outage is over. Returns whether it had errors."""
        if self._before and not self.errors:
            logger.warning("%s works again.", self.command, extra={"event": "run_works", "command": self.command})
        self._before, self.errors = self.errors, set()
        return bool(self._before)


def at_least(minimum: int, kind: type[int] | type[float]) -> Any:
    """Return a parser of numbers for argparse."""

    def parse(value: str) -> float:
        if not (parsed := kind(value)) >= minimum:  # nan is neither less nor more
            raise ArgumentTypeError(f"{value} is not at least {minimum}")
        if parsed > threading.TIMEOUT_MAX:  # the most seconds that Python can wait
            raise ArgumentTypeError(f"{value} is more than {threading.TIMEOUT_MAX:.0f}")
        return parsed

    parse.__name__ = kind.__name__  # argparse says "invalid float value"
    return parse


def describe(found: Difference) -> str:
    """Return a wrong count in words."""
    return f"owner {found.owner}: count {found.was:,}, rows {found.rows:,} ({found.rows - found.was:+,})"


def number(count: int, noun: str) -> str:
    """Return a count with its noun: 1 owner, 2 owners."""
    return f"{count:,} {noun}{pluralize(count)}"


class Meter:
    """The progress of a long step: a bar if stdout is a terminal and rich is installed, else a line every few
    seconds."""

    def __init__(self, stdout: TextIOBase, verbosity: int):
        self.stdout = stdout
        self.verbosity = verbosity
        self._bar: Any = None
        self._next_line = time.monotonic() + SIGN_OF_LIFE

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    def show(self, what: str, done: int, total: int | None = None) -> None:
        """Show that ``done`` of ``total`` is done in the step ``what``. A step with a single piece is not shown."""
        if self.verbosity == 1 and done == total:
            return
        if self.verbosity == 1 and self.stdout.isatty() and find_spec("rich"):
            self._show_bar(what, done, total)
        elif self.verbosity > 1 or (self.verbosity and time.monotonic() >= self._next_line):
            self._next_line = time.monotonic() + SIGN_OF_LIFE
            self.say(f"{what}: {done:,} of {total:,}" if total else f"{what}: {done:,}")

    def say(self, line: str) -> None:
        """Write a line, above the bar if there is one. Silent with --verbosity 0."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif self.verbosity:
            self.stdout.write(line)

    def end(self) -> None:
        """End the step and remove the bar."""
        self._next_line = time.monotonic() + SIGN_OF_LIFE
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_bar(self, what: str, done: int, total: int | None) -> None:
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                transient=True,
            )
            self._bar.add_task(what, total=total)
            self._bar.start()
        task = self._bar.tasks[0].id
        self._bar.update(task, description=what, completed=done, total=total)
