import random
import sys
import time

from django.core.management.base import BaseCommand, CommandError
from django.db import connection

from demo_project import report, traffic
from demo_project.site import Site, running_site

SIZES = (10, 1_000, 100_000)  # rows of a badge
HTTP_SAMPLE = 20  # users whose badge is also asked for over HTTP


class Command(BaseCommand):
    help = "Runs a site under traffic, kills its flusher a few times, and checks that every badge is right in the end."
    requires_system_checks = []  # Redis does not run yet

    def add_arguments(self, parser):
        parser.add_argument("--seconds", type=float, default=10, help="duration of the traffic (default: 10)")
        parser.add_argument("--users", type=int, default=300, help="number of users (default: 300)")
        parser.add_argument("--clients", type=int, default=12, help="number of clients at the same time (default: 12)")
        parser.add_argument("--kills", type=int, default=5, help="how often the flusher is killed (default: 5)")

    def handle(self, *, seconds, users, clients, kills, **options):
        if min(seconds, users, clients) <= 0:
            raise CommandError("--seconds, --users and --clients must be greater than 0.")
        from rich.console import Console
        from rich.table import Table

        console = Console(highlight=False)
        table = Table("", "", show_header=False)
        table.columns[1].justify = "right"
        try:
            console.print("Starting the site.")
            with running_site(users=users) as site:
                visitors, killed = run(site, console, seconds, clients, kills)
                site.kill("flusher")
                report.drain()
                verdicts, called_wrong = report.verdicts(site.users), report.called_wrong()
                sample = random.sample(range(users), min(HTTP_SAMPLE, users))
                for user in sample:
                    verdicts[user] = verdicts[user]._replace(over_http=traffic.badge(site.port, user))
                log = site.log_end()
                # Without traffic, because on a busy machine this would mostly measure waiting for a processor.
                latencies = report.latencies(SIZES)
        except KeyboardInterrupt:
            self.stderr.write("Interrupted: every process that was started has ended.")
            sys.exit(130)
        done, wrong = traffic.done(visitors), [verdict for verdict in verdicts if verdict.is_wrong]
        rate, number = f"{done['requests'] / seconds:,.0f} a second", f"{len(verdicts):,}"
        in_process = ", which answers without a round trip" if connection.vendor == "sqlite" else ""
        table.add_row("database", f"{connection.display_name}{in_process}")
        table.add_row("requests", f"{done['requests']:,} ({rate}), {done['failed']:,} failed")
        table.add_row("notifications", f"{done['notifications']:,}")
        table.add_row("flusher killed", f"{len(killed)} times, {sum(killed)} of them in the middle of a batch")
        table.add_row("badges compared with the rows", f"{number}, {len(sample)} of them over HTTP")
        table.add_row("badges wrong", f"{len(wrong):,}")
        table.add_row("counts that a flush called wrong", f"{called_wrong:,}")
        for rows, latency in latencies.items():
            table.add_row(f"a badge of {rows:,} rows", latency)
        right = f"{len(wrong):,} of {number} badges are wrong" if wrong else f"all {number} badges are right"
        console.print(table, f"The flusher was killed {len(killed)} times under traffic, and {right}.", sep="\n")
        if wrong or called_wrong or done["failed"]:
            console.print(*wrong[:20], *(visitor.trouble for visitor in visitors if visitor.trouble), log, sep="\n")
            sys.exit(1)
        console.print("To look at the site yourself: make serve")


def run(site: Site, console, seconds: float, clients: int, kills: int) -> tuple[list[traffic.Visitor], list[bool]]:
    """Return the visitors, and for each time that the flusher was killed, whether it was in the middle of a batch."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    start, killed = time.monotonic(), []
    visitors = [traffic.Visitor(site.port, len(site.users), start + seconds) for _ in range(clients)]
    for visitor in visitors:
        visitor.start()
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    console.print(f"{clients} clients visit it for {seconds:g} seconds.")
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=seconds)
        while any(visitor.is_alive() for visitor in visitors):
            elapsed, done = time.monotonic() - start, traffic.done(visitors)
            if len(killed) < kills and elapsed > seconds * (len(killed) + 1) / (kills + 1):
                killed.append(kill_flusher(site))
                site.start_flusher()
            text = f"{done['requests']:,} requests, {done['notifications']:,} notifications, {len(killed)} kills"
            bar.update(task, completed=elapsed, description=text)
            time.sleep(0.1)
    return visitors, killed


def kill_flusher(site: Site) -> bool:
    """Kill the flusher, in the middle of a batch if one is seen soon. Returns whether it was."""
    deadline = time.monotonic() + 1.5
    while not report.batch_under_way() and time.monotonic() < deadline:
        time.sleep(0.002)
    site.kill("flusher")
    return report.batch_under_way()
