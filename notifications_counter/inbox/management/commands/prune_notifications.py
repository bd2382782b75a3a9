from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from ....management.console import CounterCommand, at_least, number
from ...retention import prune

UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def age(value: str) -> timedelta:
    """Parse 12h, 90d or 8w."""
    match = re.fullmatch(r"(\d{1,5})([hdw])", value)
    if not match:
        raise ArgumentTypeError(
            f"{value!r} is not an age. Pass a number of hours, days or weeks, such as 12h, 90d or 8w."
        )
    return timedelta(**{UNITS[match[2]]: int(match[1])})


class Command(CounterCommand):
    help = "Deletes old notifications in small batches, while the site is running."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than", type=age, metavar="AGE", help="delete what is older than this, such as 12h, 90d or 8w"
        )
        parser.add_argument("--read-only", action="store_true", help="leave unread notifications")
        parser.add_argument(
            "--keep-newest",
            type=at_least(1, int),
            default=0,
            metavar="NUMBER",
            help="leave each user this many notifications, however old they are",
        )
        parser.add_argument("--dry-run", action="store_true", help="delete nothing; print how many would be deleted")
        parser.add_argument(
            "--database",
            choices=[*connections],
            metavar="ALIAS",
            help="database to use (default: where the site writes notifications)",
        )

    def handle(
        self,
        *,
        older_than: timedelta | None,
        read_only: bool,
        keep_newest: int,
        dry_run: bool,
        database: str | None,
        **options: Any,
    ) -> None:
        if older_than is None and not keep_newest:
            raise CommandError("Say what to delete: pass --older-than, --keep-newest, or both.")
        done = "would be deleted" if dry_run else "deleted"
        pruned = prune(
            older_than or timedelta(0),
            read_only,
            keep_newest,
            dry_run,
            database,
            progress=lambda deleted: self.show(f"notifications {done}", deleted),
        )
        in_use = f", left {pruned.in_use:,} in use" if pruned.in_use else ""
        self.say(f"{number(pruned.deleted, 'notification')} {done}{in_use}, {pruned.seconds:.2f} s.")
