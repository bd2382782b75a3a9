from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...counters import NO_NOTIFICATIONS, unread
from ..console import CounterCommand, Meter, number, plain_errors, stop_on_signals


class Command(CounterCommand):
    help = "Copies the notifications of django-notifications-hq. If you run it again, it continues after the last one."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--table",
            default="notifications_notification",
            metavar="NAME",
            help="table of django-notifications-hq's notifications (default: %(default)s)",
        )
        self.add_database(parser)

    def handle(self, *, table: str, database: str | None, verbosity: int, **options: Any) -> None:
        if unread.disabled:
            raise CommandError(NO_NOTIFICATIONS)
        from ...contrib.notifications_hq import import_notifications  # needs django.contrib.contenttypes

        with plain_errors(), stop_on_signals() as stop, Meter(self.stdout, verbosity) as meter:
            result = import_notifications(
                table,
                database,
                progress=lambda done, total: meter.show("notifications imported", done, total),
                stopped=stop.asked,
            )
            meter.end()
            deleted = f", left out {result.deleted:,} that were deleted" if result.deleted else ""
            meter.say(f"{number(result.imported, 'notification')} imported{deleted}.")
            if stop.asked():
                meter.say("Stopped. Run the command again to continue.")
        if result.failed:
            raise CommandError(
                f"{number(result.failed, 'notification')} could not be imported; the log names each. Correct these "
                f"rows of {table}, or delete them, and run the command again: it tries them again."
            )
