from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections, connections
from django.db.models import Min
from django.utils import timezone

from ...counters import Counter
from ...models import RecountRequest
from ...registry import all_counters
from ..console import OUTAGES, Meter, Stop, number, one_line, plain_errors, stop_on_signals


def at_least(minimum: int, kind: type[int] | type[float]) -> Any:
    """A parser of numbers for argparse."""

    def parse(value: str) -> float:
        if (parsed := kind(value)) < minimum:
            raise ArgumentTypeError(f"{value} is less than {minimum}")
        return parsed

    parse.__name__ = kind.__name__  # argparse says "invalid float value"
    return parse


class Command(BaseCommand):
    help = "Heals every counter, then writes what waits in Redis to the database."

    def add_arguments(self, parser: CommandParser) -> None:
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--loop", action="store_true", help="go on until SIGTERM or Ctrl-C")
        how.add_argument(
            "--check",
            action="store_true",
            help="flush nothing; exit with 1 if a change has waited for longer than --max-age: for monitoring",
        )
        parser.add_argument(
            "--interval",
            type=at_least(0, float),
            default=5.0,
            metavar="SECONDS",
            help="pause between two runs of --loop (default: %(default)s)",
        )
        parser.add_argument(
            "--chunk-size", type=at_least(1, int), metavar="USERS", help="users in one statement (default: FLUSH_CHUNK)"
        )
        parser.add_argument(
            "--max-age",
            type=at_least(0, float),
            default=300.0,
            metavar="SECONDS",
            help="for --check (default: %(default)s)",
        )

    def handle(
        self,
        *,
        loop: bool,
        check: bool,
        interval: float,
        chunk_size: int | None,
        max_age: float,
        verbosity: int,
        **options: Any,
    ) -> None:
        self.verbosity = verbosity
        self.chunk_size = chunk_size
        with plain_errors(), stop_on_signals() as stop:
            if check:
                self.check_age(max_age)
            elif loop:
                self.loop(stop, interval)
            else:
                for counter in all_counters():
                    if not stop.asked():
                        self.run(counter, stop)

    # ------------------------------------------------------------------ flush
    def loop(self, stop: Stop, interval: float) -> None:
        """Run until asked to stop. An outage is said once, and so is its end."""
        before: set[type[Exception]] = set()
        while not stop.asked():
            outages: set[type[Exception]] = set()
            for counter in all_counters():
                close_old_connections()
                try:
                    self.run(counter, stop, quiet=True)
                except OUTAGES as error:
                    connections[counter.db].close()
                    if type(error) not in before | outages:
                        self.stderr.write(f"{counter.name}: {one_line(error)} (trying again every {interval:g} s)")
                    outages.add(type(error))
                if stop.asked():
                    return
            if before and not outages:
                self.stderr.write("Works again.")
            before = outages
            stop.wait(interval)

    def run(self, counter: Counter, stop: Stop, quiet: bool = False) -> None:
        """Heal and flush one counter. ``quiet``: without a word where there was nothing to do."""
        name = counter.name
        if self.verbosity > 1:
            self.tell_shards(counter)
        with Meter(self.stdout, self.verbosity) as meter:
            healed = counter.heal(
                progress=lambda done: meter.show(f"{name}: recovering, users recounted", done), stopped=stop.asked
            )
            meter.end()
            if healed.checked:
                meter.say(f"{name}: recounted {number(healed.checked, 'user')}, corrected {healed.corrected:,}.")
            if stop.asked():
                return
            flushed = counter.flush(
                progress=lambda done, total: meter.show(f"{name}: users flushed", done, total),
                stopped=stop.asked,
                chunk_size=self.chunk_size,
            )
            meter.end()
            if flushed.users or flushed.rejected:
                rejected = f", rejected {flushed.rejected:,}" if flushed.rejected else ""
                batches = number(flushed.batches, "batch", "es")
                meter.say(
                    f"{name}: flushed {number(flushed.users, 'user')} in {batches}, net {flushed.net:+,}{rejected}, "
                    f"{flushed.seconds:.2f} s."
                )
            elif not quiet:
                meter.say(f"{name}: {self.nothing(counter)}")

    def nothing(self, counter: Counter) -> str:
        """Why nothing was flushed."""
        states = [shard.status for shard in counter.status()]
        waiting, dirty, open_ = (
            sum(each) for each in zip(*((s.pending + s.flushing, s.dirty, s.open) for s in states), strict=True)
        )
        if waiting or dirty or open_:
            return (
                f"nothing flushed; for the next runs: {number(waiting, 'change')}, {number(dirty, 'user')} to recount, "
                f"{number(open_, 'open transaction')}."
            )
        return "nothing to flush."

    def tell_shards(self, counter: Counter) -> None:
        for shard in counter.status():
            s = shard.status
            self.stdout.write(
                f"{counter.name}, shard {shard.shard}: epoch {shard.epoch}{', recovering' * shard.recovering}, "
                f"batch {s.batch}, pending {s.pending:,}, flushing {s.flushing:,}, open {s.open:,}, dirty {s.dirty:,}, "
                f"rejected {s.rejected:,}"
            )

    # ------------------------------------------------------------------ check
    def check_age(self, limit: float) -> None:
        """CommandError if a change has waited for longer than ``limit`` seconds."""
        ages = [self.age(counter) for counter in all_counters()]
        if (age := max(ages, default=0)) > limit:
            raise CommandError(
                f"The oldest change has waited for {age:,.0f} s, more than {limit:g} s: is flush_counters running?"
            )
        if self.verbosity:
            self.stdout.write(f"The oldest change has waited for {age:,.0f} s.")

    def age(self, counter: Counter) -> float:
        """Seconds since the oldest change that waits, in Redis or as a RecountRequest."""
        requests = RecountRequest.objects.using(counter.db).filter(counter=counter.name)
        asked = requests.aggregate(Min("created_at"))["created_at__min"]
        since = (timezone.now() - asked).total_seconds() if asked else 0
        return max(since, *(shard.status.backlog_age for shard in counter.status()))
