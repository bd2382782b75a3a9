"""python -m benchmarks [--quick] [--write] [--only TEXT]: the cost of counting, compared with its alternatives.

Starts its own servers, measures, and prints docs/benchmarks.md and its appendix with the results. Exit code 1 if a
benchmark failed; the results of the others are still printed.
"""

from __future__ import annotations

import argparse
import json
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
    "hot-owner": "reads.hot_owner",
    "create": "writes.create",
    "fan-out": "writes.fan_out",
    "mark-all": "writes.mark_all",
    "hot-user": "writes.hot_user",
    "several": "writes.several",
    "core": "core.core",
    "calls": "calls.calls",
    "flush": "upkeep.flush",
    "recovery": "upkeep.recovery",
    "memory": "upkeep.memory",
    "slow-redis": "upkeep.slow_redis",
    "recipes": "recipes.calls",
    "count-types": "recipes.count_types",
    "streams": "live.streams",
    "databases": "writes.few",
}
"""The function of each block of the pages."""

COLLECTED = ("short", "machine")
"""Blocks with the results of all stages."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and users, noisier figures")
    parser.add_argument("--only", default="", metavar="TEXT", help="only blocks whose name contains this")
    parser.add_argument("--write", action="store_true", help="write the pages and their plots; with --only, its blocks")
    parser.add_argument("--stage", type=lambda text: Stage(*json.loads(text)), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        return run(arguments.stage, arguments.quick, arguments.only, arguments.out)

    blocks, files, failed = collect(arguments.quick, arguments.only)
    if arguments.only:
        blocks = {name: text for name, text in blocks.items() if name not in COLLECTED}
        print(*(f"\n{name}\n\n{text}" for name, text in blocks.items()), sep="\n")
    pages = {page: fill(page.read_text(), blocks, bool(arguments.only)) for page in PAGES}
    if not arguments.only:
        print(*pages.values(), sep="\n")
    if arguments.write:
        for page, text in pages.items():
            page.write_text(text)
        for name, text in files.items():
            (PLOTS / name).write_text(text)
    for line in failed:
        print(f"FAILED {line}", flush=True)
    return int(bool(failed))


def collect(quick: bool, only: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Run every stage, each in a process of its own. Returns the blocks of the page, the plots, and the failures."""
    started = perf_counter()
    blocks = {"machine": machine()}
    files: dict[str, str] = {}
    lines: dict[str, list[dict[str, str]]] = {}
    left_out, failed, versions = [], [], ""
    with tempfile.TemporaryDirectory() as directory:
        for number, stage in enumerate(STAGES):
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
            versions = versions or found["versions"]
            blocks |= found["blocks"]
            files |= found["files"]
    tables = [table(rows[0], (row.values() for row in rows)) for rows in lines.values()]
    if tables or left_out:
        blocks[EVERYWHERE] = "\n\n".join([*tables, *left_out])
    blocks["machine"] += "\n- `QUICK=1`: fewer rounds and users, so noisier figures" * quick
    blocks["machine"] += f"\n- {versions}\n- {perf_counter() - started:,.0f} s in all"
    return blocks, files, failed


def fill(page: str, blocks: dict[str, str], keep: bool = False) -> str:
    """Return a page with these blocks in their places. ``keep``: with the figures that it has in the others."""

    def block(found: re.Match[str]) -> str:
        begin, name, old, end = found.groups()
        text = blocks.get(name, old.strip() if keep else "Not measured in this run.")
        return f"{begin}\n{text}\n\n{end}"

    return BLOCK.sub(block, page)


def run(stage: Stage, quick: bool, only: str, out: Path) -> int:
    """Run one stage, and write its results to a file."""
    report, failed = Report(), []
    try:
        with servers_for(stage.database, stage.redis, stage.is_managed, stage.latency):
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
            if report.short:
                from .rivals import IN_SHORT

                report.blocks["short"] = report.answer(IN_SHORT)
            found = {
                "blocks": report.blocks,
                "files": report.files,
                "lines": report.lines,
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
