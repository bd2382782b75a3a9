"""python -m benchmarks [--quick] [--write] [--redis PROGRAM]: the cost of counting, compared with its alternatives.

Starts its own servers, measures, and prints docs/benchmarks.md and its appendix with the results. Exit code 1 if a
benchmark failed; the results of the others are still printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import servers

from .bench import Report, machine, servers_for, stage_versions, table
from .bench import number as short

DOCS = Path(__file__).resolve().parent.parent / "docs"
PLOTS = DOCS / "benchmarks"
PAGES = (DOCS / "benchmarks.md", PLOTS / "figures.md")
BLOCK = re.compile(r"(<!-- measured: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
EVERYWHERE = "databases"
"""The question that each stage answers."""


class Stage(NamedTuple):
    """A database and a Redis. None: Redis, or Valkey if only that is installed."""

    database: str
    redis: str | None = None
    is_managed: bool = False
    latency: float = 0  # milliseconds to each server
    answers_all: bool = False

    def __str__(self) -> str:
        return f"{self.database}, {self.redis or 'redis or valkey'}{self.where}"

    @property
    def where(self) -> str:
        return f"{', managed' * self.is_managed}{f', each {self.latency:g} ms away' if self.latency else ''}"


STAGES = [Stage("postgresql", answers_all=True), Stage("postgresql", "valkey"), Stage("mariadb"), Stage("sqlite")]
STAGES += [Stage("postgresql", is_managed=True), Stage("postgresql", latency=0.5)]

QUESTIONS = {
    "badge": "reads.badge",
    "many": "reads.many",
    "clients": "reads.clients",
    "hot-owner": "hot.owner",
    "create": "writes.create",
    "fan-out": "writes.fan_out",
    "mark-all": "writes.mark_all",
    "hot-user": "writes.hot_user",
    "counting": "writes.counting",
    "delete": "writes.delete",
    "instructions": "instructions.instructions",
    "prices": "writes.prices",
    "several": "several.create",
    "columns": "several.columns",
    "flush": "maintenance.flush",
    "flush-memory": "maintenance.flush_memory",
    "recount": "maintenance.recount",
    "recovery": "recovery.through",
    "verification": "recovery.verification",
    "slow-redis": "slow.site",
    "redis-memory": "maintenance.redis_memory",
    "update-counter": "timeseries.update",
    "clean-counters": "timeseries.clean",
    "count-types": "events.count_types",
    "streams": "live.streams",
    "growth": "maintenance.growth",
    "capacity": "capacity.capacity",
    "core": "core.core",
    "databases": "databases.few",
}
"""The function of each block of the pages."""

COLLECTED = ("short", "machine", "losses", "operations")
"""Blocks with the results of all stages."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and users, noisier figures")
    parser.add_argument("--only", default="", metavar="TEXT", help="only blocks whose name contains this")
    parser.add_argument("--write", action="store_true", help="write the pages and their plots")
    parser.add_argument("--redis", action="append", default=[], metavar="PROGRAM", help="with this server, too")
    parser.add_argument("--latency", type=float, metavar="MS", help="with servers so many milliseconds away, only")
    parser.add_argument("--stage", type=lambda text: Stage(*json.loads(text)), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        return run(arguments.stage, arguments.quick, arguments.only, arguments.out)

    if arguments.write and (arguments.only or arguments.latency):
        parser.error("--write is for whole runs: the pages have the figures of one.")
    more = [Stage("postgresql", os.path.abspath(program)) for program in arguments.redis]
    stages = [STAGES[0]._replace(latency=arguments.latency)] if arguments.latency else [*STAGES, *more]
    blocks, files, failed = collect(stages, arguments.quick, arguments.only)
    if arguments.only:
        print(*(f"\n{name}\n\n{text}" for name, text in blocks.items() if name != "operations"), sep="\n")
    else:
        pages = {page: fill(page.read_text(), blocks) for page in PAGES}
        failed += [f"no page has a place for {name!r}" for name in set.intersection(*(n for _, n in pages.values()))]
        print(*(text for text, _ in pages.values()), sep="\n")
        if arguments.write:
            for page, (text, _) in pages.items():
                page.write_text(text)
            for name, text in files.items():
                (PLOTS / name).write_text(text)
    for line in failed:
        print(f"FAILED {line}", flush=True)
    return int(bool(failed))


def collect(stages: list[Stage], quick: bool, only: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Run every stage, each in a process of its own. Returns the blocks of the page, the plots, and the failures."""
    started = perf_counter()
    blocks = {"machine": machine()}
    files: dict[str, str] = {}
    losses: dict[str, dict[str, list[float]]] = {}
    lines: dict[str, list[dict[str, str]]] = {}
    left_out, failed, versions = [], [], ""
    with tempfile.TemporaryDirectory() as directory:
        for number, stage in enumerate(stages):
            if number and only not in EVERYWHERE:
                continue
            print(stage, flush=True)
            out = Path(directory) / str(number)
            command = [sys.executable, "-m", "benchmarks", "--stage", json.dumps(stage), "--out", str(out)]
            subprocess.run(servers.dies_with_parent([*command, "--only", only, *["--quick"] * quick]))
            found = json.loads(out.read_text()) if out.exists() else {"failed": ["it died"]}
            failed += [f"{stage}: {what}" for what in found["failed"]]
            if "left_out" in found:
                left_out.append(f"Left out: {stage}, {found['left_out']}.")
            if "blocks" not in found:
                continue
            for question, cells in found["lines"].items():
                lines.setdefault(question, []).append({question: found["versions"], **cells})
            for question, _, rival, ratio in found["losses"] if not number else []:
                losses.setdefault(question, {}).setdefault(rival, []).append(ratio)
            versions = versions or found["versions"]
            blocks |= found["blocks"]
            files |= found["files"]
    tables = [table(rows[0], (row.values() for row in rows)) for rows in lines.values()]
    if tables or left_out:
        blocks[EVERYWHERE] = "\n\n".join([*tables, *left_out])
    lost = [
        (question, "; ".join(f"{rival}: {span(ratios)}" for rival, ratios in rivals.items()))
        for question, rivals in losses.items()
    ]
    blocks["losses"] = table(["question", "faster: its time ÷ ours"], lost) if lost else "Nothing in this run."
    blocks["machine"] += "\n- `QUICK=1`: fewer rounds and users, so noisier figures" * quick
    blocks["machine"] += f"\n- {versions}\n- {perf_counter() - started:,.0f} s in all"
    return blocks, files, failed


def span(ratios: list[float]) -> str:
    """Return the range from the least to the greatest."""
    least, greatest = short(min(ratios)), short(max(ratios))
    return least if least == greatest else f"{least}–{greatest}"


def fill(page: str, blocks: dict[str, str]) -> tuple[str, set[str]]:
    """Return a page with these blocks in their places, and the names of the blocks without a place."""
    places = set()

    def block(found: re.Match[str]) -> str:
        begin, name, _, end = found.groups()
        places.add(name)
        return f"{begin}\n{blocks.get(name, 'Not measured in this run.')}\n\n{end}"

    return BLOCK.sub(block, page), set(blocks) - places


def run(stage: Stage, quick: bool, only: str, out: Path) -> int:
    """Run one stage, and write its results to a file."""
    report, failed = Report(), []
    try:
        with servers_for(stage.database, stage.redis, stage.is_managed, stage.latency):
            from .operations import operations_table

            for name, place in QUESTIONS.items():
                if only not in name or not (stage.answers_all or name == EVERYWHERE):
                    continue
                started = perf_counter()
                try:
                    module, _, function = place.partition(".")
                    ask = getattr(import_module(f"benchmarks.{module}"), function)  # needs Django
                    report.blocks[name] = ask(report, quick)
                except Exception as error:
                    traceback.print_exc()
                    failed.append(f"{name}: {type(error).__name__}: {error}")
                print(f"{name}: {perf_counter() - started:.0f} s", flush=True)
            report.blocks["operations"] = operations_table()
            if report.short:
                from .rivals import IN_SHORT

                report.blocks["short"] = report.answer(IN_SHORT)
            found = {
                "blocks": report.blocks,
                "files": report.files,
                "lines": report.lines,
                "losses": report.losses,
                "versions": f"{stage_versions()}{stage.where}",
                "failed": failed,
            }
    except servers.Missing as reason:
        found = {"left_out": str(reason), "failed": [str(reason)] if stage.answers_all else []}
    except Exception as error:
        traceback.print_exc()
        found = {"failed": [f"{type(error).__name__}: {error}"]}
    out.write_text(json.dumps(found))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
