"""python -m benchmarks [--quick] [--write]: what counting costs, beside what a site could do instead.

Starts servers of its own, measures, and prints docs/benchmarks.md with the results in it. Exit code 1 if a benchmark
failed; the others are there all the same.
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

import servers

from .bench import Report, machine, stage, stage_versions, table
from .bench import number as short

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
PLOTS = PAGE.with_suffix("")
BLOCK = re.compile(r"(<!-- measured: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

STAGES = (("postgresql", None), ("postgresql", "valkey"), ("mariadb", None), ("sqlite", None))
"""Databases, and which Redis; None: Redis, or Valkey where that is all there is. The first answers every question, the
others one. Each has a process of its own."""
EVERYWHERE = "databases"
"""That question."""


QUESTIONS = {
    "badge": "reads.badge",
    "users": "reads.by_users",
    "many": "reads.many",
    "clients": "reads.clients",
    "create": "writes.create",
    "fan-out": "writes.fan_out",
    "mark-all": "writes.mark_all",
    "hot-user": "writes.hot_user",
    "counting": "writes.counting",
    "delete": "writes.delete",
    "prices": "writes.prices",
    "several": "several.create",
    "columns": "several.columns",
    "breakdown": "several.breakdown",
    "flush": "maintenance.flush",
    "flush-memory": "maintenance.flush_memory",
    "recount": "maintenance.recount",
    "recovery": "recovery.through",
    "redis-memory": "maintenance.redis_memory",
    "update-counter": "timeseries.update",
    "clean-counters": "timeseries.clean",
    "count-types": "events.count_types",
    "streams": "live.streams",
    "growth": "maintenance.growth",
    "capacity": "capacity.capacity",
    "databases": "databases.few",
}
"""The function of each block of the page."""

COLLECTED = ("short", "machine", "losses", "operations")
"""Blocks that are made of what all of them found."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and users, noisier figures")
    parser.add_argument("--only", default="", metavar="TEXT", help="only blocks whose name contains this")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md and its plots")
    parser.add_argument("--stage", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage is not None:
        return run(arguments.stage, arguments.quick, arguments.only, arguments.out)

    if arguments.write and arguments.only:
        parser.error("--write is for whole runs: a page has the figures of one.")
    blocks, files, failed = collect(arguments.quick, arguments.only)
    if arguments.only:
        print(*(f"\n{name}\n\n{text}" for name, text in blocks.items() if name != "operations"), sep="\n")
    else:
        page, unknown = fill(PAGE.read_text(), blocks)
        failed += [f"{PAGE.name} has no place for {name!r}" for name in unknown]
        print(f"\n{page}")
        if arguments.write:
            PAGE.write_text(page)
            PLOTS.mkdir(exist_ok=True)
            for name, text in files.items():
                (PLOTS / name).write_text(text)
    for line in failed:
        print(f"FAILED {line}", flush=True)
    return int(bool(failed))


def collect(quick: bool, only: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Run every stage. Returns the blocks of the page, the plots, and what failed."""
    started = perf_counter()
    blocks = {"machine": machine()}
    files: dict[str, str] = {}
    losses: dict[tuple[str, str], list[tuple[str, float]]] = {}
    databases, failed, versions = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        for number, (database, redis) in enumerate(STAGES):
            if number and only not in EVERYWHERE:
                continue
            name = f"{database}, {redis or 'redis or valkey'}"
            print(name, flush=True)
            out = Path(directory) / str(number)
            command = [sys.executable, "-m", "benchmarks", "--stage", str(number), "--out", str(out)]
            subprocess.run(servers.dies_with_parent([*command, "--only", only, *["--quick"] * quick]))
            found = json.loads(out.read_text()) if out.exists() else {"failed": ["it died"]}
            failed += [f"{name}: {what}" for what in found["failed"]]
            if "left_out" in found:
                databases.append(f"### {name}\n\nLeft out: {found['left_out']}.")
            if "blocks" not in found:
                continue
            if EVERYWHERE in found["blocks"]:
                databases.append(f"### {found['versions']}\n\n{found['blocks'].pop(EVERYWHERE)}")
            for question, where, rival, ratio in found["losses"]:
                on = f"{question}, {found['versions']}" if number else question
                losses.setdefault((on, rival), []).append((where, ratio))
            versions.append(found["versions"])
            blocks |= found["blocks"]
            files |= found["files"]
    if databases:
        blocks[EVERYWHERE] = "\n\n".join(databases)
    lines = [
        (question, rival, "; ".join(f"{where}: {short(ratio)}" if where else short(ratio) for where, ratio in those))
        for (question, rival), those in losses.items()
    ]
    blocks["losses"] = table(["question", "faster", "its time ÷ ours"], lines) if lines else "Nothing in this run."
    blocks["machine"] += "\n- `QUICK=1`: fewer rounds and users, so noisier figures" * quick
    blocks["machine"] += f"\n- {'; '.join(dict.fromkeys(versions))}\n- {perf_counter() - started:,.0f} s in all"
    return blocks, files, failed


def fill(page: str, blocks: dict[str, str]) -> tuple[str, set[str]]:
    """The page with these blocks in their places, and the names of those that have none."""
    places = set()

    def block(found: re.Match[str]) -> str:
        begin, name, _, end = found.groups()
        places.add(name)
        return f"{begin}\n{blocks.get(name, 'Not measured in this run.')}\n\n{end}"

    return BLOCK.sub(block, page), set(blocks) - places


def run(number: int, quick: bool, only: str, out: Path) -> int:
    """One stage; what it found is written to a file."""
    report, failed = Report(), []
    try:
        with stage(*STAGES[number]):
            from .operations import operations_table

            for name, place in QUESTIONS.items():
                if only not in name or (number and name != EVERYWHERE):
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
                "losses": report.losses,
                "versions": stage_versions(),
                "failed": failed,
            }
    except servers.Missing as reason:
        found = {"left_out": str(reason), "failed": [] if number else [str(reason)]}
    except Exception as error:
        traceback.print_exc()
        found = {"failed": [f"{type(error).__name__}: {error}"]}
    out.write_text(json.dumps(found))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
