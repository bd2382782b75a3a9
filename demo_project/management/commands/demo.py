import random
import sys
import time

from django.core.management.base import BaseCommand, CommandError

from demo_project import report, traffic
from demo_project.site import Site, require_packages, running_site

SIZES = (10, 1_000, 100_000)  # rows of a badge
HTTP_SAMPLE = 20  # users whose badge is also asked for over HTTP
PLAIN_EVERY = 5  # seconds between lines where there is no progress bar


class Command(BaseCommand):
    help = (
        "Runs a site under traffic, kills its flusher a few times, and checks that every badge is "
        "right in the end. Uses the Redis at REDIS_URL, or starts one."
    )
    requires_system_checks = []  # Redis does not run yet

    def add_arguments(self, parser):
        parser.add_argument("--seconds", type=float, default=10, help="duration of the traffic (default: 10)")
        parser.add_argument("--users", type=int, default=300, help="number of users (default: 300)")
        parser.add_argument("--clients", type=int, default=12, help="number of clients at the same time (default: 12)")
        parser.add_argument("--kills", type=int, default=5, help="how often the flusher is killed (default: 5)")

    def handle(self, *, seconds, users, clients, kills, **options):
        require_packages()
        if min(seconds, users, clients) <= 0:
            raise CommandError("--seconds, --users and --clients must be greater than 0.")
        from rich.console import Console
        from rich.table import Table

        console = Console(highlight=False)
        try:
            console.print("Starting the site.")
            with running_site(users=users) as site:
                outcome = run(site, console, seconds, clients, kills)
        except KeyboardInterrupt:
            self.stderr.write("Interrupted: every process that was started has ended.")
            sys.exit(130)
        table = Table("", "", show_header=False)
        table.columns[1].justify = "right"
        for line in outcome.lines():
            table.add_row(*line)
        console.print(table, *outcome.conclusion(), sep="\n")
        if outcome.wrong or outcome.done["failed"]:
            sys.exit(1)
        console.print("To look at the site yourself: make serve")


def run(site: Site, console, seconds: float, clients: int, kills: int) -> report.Outcome:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    outcome, next_line = report.Outcome(), PLAIN_EVERY
    kill_at = [seconds * (n + 1) / (kills + 1) for n in range(kills)]
    visitors = site.start_visitors(seconds=seconds, clients=clients)
    start = time.monotonic()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=seconds)
        while visitors.listener.is_alive():
            elapsed, done = time.monotonic() - start, visitors.done
            if kill_at and elapsed > kill_at[0]:
                kill_at.pop(0)
                outcome.kills += 1
                outcome.kills_in_batch += kill_flusher(site)
                site.start_flusher()
            text = f"{done['requests']:,} requests, {done['notifications']:,} notifications, {outcome.kills} kills"
            bar.update(task, completed=elapsed, description=text)
            if bar.disable and elapsed >= next_line:
                next_line += PLAIN_EVERY
                console.print(f"{elapsed:3.0f} s  {text}")
            time.sleep(0.1)
    if visitors.process.wait():
        raise CommandError(f"The simulated visitors stopped unexpectedly.\n{site.log_end()}")
    outcome.done, outcome.seconds = visitors.done, time.monotonic() - start
    site.end_process("flusher")
    report.drain()
    outcome.verdicts = report.verdicts(site.users)
    for user in random.sample(range(len(site.users)), min(HTTP_SAMPLE, len(site.users))):
        outcome.over_http[outcome.verdicts[user]] = traffic.badge(site.port, user)
    # Without traffic, because on a busy machine this would mostly measure waiting for a processor.
    outcome.latencies = report.latencies(SIZES)
    outcome.trouble = f"{visitors.trouble}\n{site.log_end()}"
    return outcome


def kill_flusher(site: Site) -> bool:
    """Kill the flusher, in the middle of a batch if one is seen soon. Returns whether it was."""
    deadline = time.monotonic() + 1.5
    while not report.batch_under_way() and time.monotonic() < deadline:
        time.sleep(0.002)
    site.end_process("flusher", kill=True)
    return report.batch_under_way()
