"""python -m benchmarks [--quick] [--write] [--only TEXT]: the cost of counting, compared with its alternatives.

Starts its own servers, measures, and prints docs/benchmarks.md with the results, and the others below.
Exit code 1 if a benchmark failed; the results of the others are still printed.
"""

from __future__ import annotations

import argparse
import re
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import servers

from .bench import Report, Stage, machine, servers_for, table

DOCS = Path(__file__).resolve().parent.parent / "docs"
PLOTS = DOCS / "benchmarks"
FILLED = [DOCS / "benchmarks.md", DOCS / "comparison.md"]
BLOCK = re.compile(r"(<!-- measured: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
EVERYWHERE = "databases"
"""The question that each stage answers."""

BY_DATABASE = ("counting", "one-row")
"""The questions that each database answers once."""

STAGES = [Stage("postgresql", answers_all=True), Stage("postgresql", "valkey"), Stage("mariadb"), Stage("mysql")]
STAGES += [Stage("sqlite"), Stage("postgresql", latency=0.5)]

MODULES = {
    "reads": ["badge", "many", "hot_owner", "databases"],
    "writes": ["create"],
    "saturation": ["saturation"],
    "core": ["statements", "flusher"],
    "one_row": ["one_row"],
    "counting": ["counting"],
    "upkeep": ["generation", "to_run", "slow_redis"],
    "extras": ["recipes"],
    "live": ["streams"],
}
QUESTIONS = {name.replace("_", "-"): (module, name) for module, names in MODULES.items() for name in names}
"""The module and function of each block."""

COLLECTED = ("machine",)
"""Blocks about all stages."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and users, noisier figures")
    parser.add_argument("--only", default="", metavar="TEXT", help="only blocks whose name contains this")
    parser.add_argument("--write", action="store_true", help="write the pages and plots; with --only, its blocks")
    arguments = parser.parse_args()
    found = collect(arguments.quick, arguments.only)
    blocks = found.blocks
    if arguments.only:
        blocks = {name: text for name, text in blocks.items() if name not in COLLECTED}
        print(*(f"\n{name}\n\n{text}" for name, text in blocks.items()), sep="\n")
    texts = {path: fill(path.read_text(), blocks, bool(arguments.only)) for path in FILLED}
    if not arguments.only:
        shown = {name for _, name, _, _ in BLOCK.findall(texts[FILLED[0]])}
        print(texts[FILLED[0]])
        print(*(f"\n{name}\n\n{text}" for name, text in blocks.items() if name not in shown), sep="\n")
    if arguments.write:
        for path, text in (texts | {PLOTS / name: plot for name, plot in found.files.items()}).items():
            path.write_text(text)
    for line in found.failed:
        print(f"FAILED {line}", flush=True)
    return int(bool(found.failed))


def collect(quick: bool, only: str) -> Report:
    """Run every stage, each in a process of its own. Returns the results of all."""
    all_, left_out = Report({"machine": machine()}), []
    tables: dict[str, list[dict[str, str]]] = {}
    for stage in STAGES:
        if not any(only in name and is_asked(name, stage) for name in QUESTIONS):
            continue
        print(stage, flush=True)
        try:
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                found = pool.submit(run, stage, quick, only).result()
        except servers.Missing as reason:
            left_out.append(f"Left out: {stage}, {reason}.")
            all_.failed += [f"{stage}: {reason}"] if stage.answers_all else []
            continue
        except Exception as error:
            traceback.print_exc()
            all_.failed.append(f"{stage}: {type(error).__name__}: {error}")
            continue
        all_.blocks |= found.blocks
        all_.files |= found.files
        all_.columns |= found.columns
        all_.failed += [f"{stage}: {what}" for what in found.failed]
        all_.versions = all_.versions or found.versions
        for question, cells in found.lines.items():
            tables.setdefault(question, []).append({question: found.versions, **cells})
    if tables or left_out:
        texts = [table(lines[0], (line.values() for line in lines)) for lines in tables.values()]
        all_.blocks[EVERYWHERE] = "\n\n".join([*texts, *left_out])
    if all_.columns:
        all_.blocks["one-row"] = table(all_.columns, zip(*all_.columns.values(), strict=True))
    all_.blocks["machine"] += "\n- `QUICK=1`: fewer rounds and users, so noisier figures" * quick
    all_.blocks["machine"] += f"\n- {all_.versions}"
    return all_


def fill(page: str, blocks: dict[str, str], keep: bool = False) -> str:
    """Return a page with these blocks in their places. ``keep``: with the figures that it has in the others."""

    def block(found: re.Match[str]) -> str:
        begin, name, old, end = found.groups()
        text = blocks.get(name, old.strip() if keep else "Not measured in this run.")
        return f"{begin}\n{text}\n\n{end}"

    return BLOCK.sub(block, page)


def is_asked(name: str, stage: Stage) -> bool:
    """Return whether a stage answers this question."""
    by_database = name in BY_DATABASE and stage == Stage(stage.database)
    return stage.answers_all or name == EVERYWHERE or by_database


def run(stage: Stage, quick: bool, only: str) -> Report:
    """Return the answers of one stage."""
    report = Report()
    with servers_for(stage) as report.versions:
        for name, (module, function) in QUESTIONS.items():
            if only not in name or not is_asked(name, stage):
                continue
            started = perf_counter()
            try:
                ask = getattr(import_module(f"benchmarks.{module}"), function)  # needs Django
                report.blocks[name] = ask(report, quick)
            except Exception as error:
                traceback.print_exc()
                report.failed.append(f"{name}: {type(error).__name__}: {error}")
            print(f"{name}: {perf_counter() - started:.0f} s", flush=True)
    return report


if __name__ == "__main__":
    from benchmarks.__main__ import main  # other processes find its functions there

    sys.exit(main())
