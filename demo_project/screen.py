"""The output of the demo: a progress bar on a terminal, plain lines elsewhere, and a table."""

from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from . import report

PLAIN_EVERY = 5  # seconds between lines where there is no bar


class Screen:
    def __init__(self, seconds: float):
        self.console = Console(highlight=False)
        self.seconds = seconds
        self.next_line = PLAIN_EVERY
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self.task = self.bar.add_task("", total=seconds)

    def say(self, text: str) -> None:
        self.console.print(text)

    @contextmanager
    def progress(self):
        with self.bar:
            yield

    def show(self, elapsed: float, outcome: report.Outcome) -> None:
        text = (
            f"{outcome.done['requests']:,} requests, "
            f"{outcome.done['notifications']:,} notifications, {outcome.kills} kills"
        )
        self.bar.update(self.task, completed=elapsed, description=text)
        if self.bar.disable and elapsed >= self.next_line:
            self.next_line += PLAIN_EVERY
            self.say(f"{elapsed:3.0f} s  {text}")

    def table(self, outcome: report.Outcome) -> None:
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in outcome.lines():
            table.add_row(name, value)
        self.console.print(table)
        self.say(outcome.sentence())
        for line in outcome.complaints():
            self.say(line)
