from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...counters import Counter, all_counters, counter_named
from ...failures import at_each
from ...monitoring.display import duration, moment
from ...places import LocalCounter
from ...upkeep.distrust import why_unhooked
from ...upkeep.phases import state_row
from ...upkeep.switch import switch_off, switch_on
from ..console import CounterCommand, add_places, find_counters


class Command(CounterCommand):
    help = "Switches counting off in an incident, or on again: meanwhile, reads count rows, and writes skip Redis."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("state", choices=["off", "on"])
        parser.add_argument("--counter", action="append", metavar="NAME", help="only this counter; may be repeated")
        add_places(parser)

    def handle(
        self, *, state: str, counter: list[str] | None, database: str | None, schema: str | None, **options: Any
    ) -> None:
        if state == "on" and (reason := why_unhooked()):
            raise CommandError(f"This process would not count: {reason}. See `manage.py check`.")
        counters = [counter_named(name) for name in dict.fromkeys(counter)] if counter else all_counters()
        at_each(find_counters(counters, database, schema), self.switch_off if state == "off" else self.switch_on)

    def switch_off(self, local: LocalCounter[Counter]) -> None:
        row = state_row(local.counter).first()
        is_told, since = switch_off(local.counter), row and row.off_since
        already = f" already, since {moment(since.timestamp())}" if since else ""
        self.say(f"{local.name}: counting is off{already}.")
        if not is_told:
            self.say(f"{local.name}: Redis is unavailable. The flusher tells it as soon as it answers.")

    def switch_on(self, local: LocalCounter[Counter]) -> None:
        seconds = switch_on(local.counter)
        if seconds is None:
            self.say(f"{local.name}: counting is on already.")
        else:
            self.say(f"{local.name}: counting is on. Reads count rows for another {duration(seconds)}.")
