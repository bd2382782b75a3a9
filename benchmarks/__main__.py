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

from demo_project import servers

from .bench import Report, machine, stage, stage_versions, table
from .bench import number as number_

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
PLOTS = PAGE.with_suffix("")
BLOCK = re.compile(r"(<!-- measured: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

STAGES = (("postgresql", "redis"), ("postgresql", "valkey"), ("mariadb", "redis"), ("sqlite", "redis"))
"""The first answers every question, the others a few. Each has a process of its own."""


QUESTIONS = {
    "badge": "reads.badge",
    "users": "reads.by_users",
    "many": "reads.many",
    "clients": "reads.clients",
    "create": "writes.create",
    "fan-out": "writes.fan_out",
    "mark-all": "writes.mark_all",
    "hot-user": "writes.hot_user",
    "delete": "writes.delete",
    "prices": "writes.prices",
    "flush": "maintenance.flush",
    "flush-memory": "maintenance.flush_memory",
    "recount": "maintenance.recount",
    "redis-memory": "maintenance.redis_memory",
    "update-counter": "timeseries.update",
    "clean-counters": "timeseries.clean",
    "count-types": "events.count_types",
    "streams": "live.streams",
    "growth": "maintenance.growth",
    "capacity": "capacity.capacity",
    "databases": "databases.few",
}
"""The function of each block of the page. The last one is for every stage."""

COLLECTED = ("machine", "losses", "operations")
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

    started = perf_counter()
    blocks = {"machine": machine(), "operations": ""}
    files: dict[str, str] = {}
    losses: dict[tuple[str, str], list[tuple[str, float]]] = {}
    few, failed, versions = [], [], []
    with tempfile.TemporaryDirectory() as directory:
        for number, (database, redis) in enumerate(STAGES):
            print(f"{database}, {redis}", flush=True)
            out = Path(directory) / str(number)
            command = [sys.executable, "-m", "benchmarks", "--stage", str(number), "--out", str(out)]
            command += ["--only", arguments.only, *["--quick"] * arguments.quick]
            subprocess.run(servers.dies_with_parent(command))
            found = json.loads(out.read_text()) if out.exists() else {"failed": [f"{database}, {redis}: it died"]}
            failed += found["failed"]
            if "left_out" in found:
                few.append(f"### {database}, {redis}\n\nLeft out: {found['left_out']}.")
                continue
            if "blocks" not in found:
                continue
            if "databases" in found["blocks"]:
                few.append(f"### {found['versions']}\n\n{found['blocks'].pop('databases')}")
            for question, where, name, ratio in found["losses"]:
                on = f"{question}, {found['versions']}" if number else question
                losses.setdefault((on, name), []).append((where, ratio))
            versions.append(found["versions"])
            blocks |= found["blocks"]
            blocks |= {"operations": found["operations"]}
            files |= found["files"]
    if few:
        blocks["databases"] = "\n\n".join(few)
    lines = [
        (question, name, "; ".join(f"{number_(ratio)}, {where}".rstrip(", ") for where, ratio in those))
        for (question, name), those in losses.items()
    ]
    blocks["losses"] = table(["question", "faster", "its time ÷ ours"], lines) if lines else "Nothing in this run."
    quick = "\n- `QUICK=1`: fewer rounds and users, so noisier figures" if arguments.quick else ""
    seconds = f"{perf_counter() - started:,.0f} s in all"
    blocks["machine"] += f"{quick}\n- {'; '.join(dict.fromkeys(versions))}\n- {seconds}"
    page, unknown = fill(PAGE.read_text(), blocks)
    print(f"\n{page}")
    if arguments.write:
        PAGE.write_text(page)
        PLOTS.mkdir(exist_ok=True)
        for name, text in files.items():
            (PLOTS / name).write_text(text)
    failed += [f"docs/benchmarks.md has no place for {name!r}" for name in unknown]
    for line in failed:
        print(f"FAILED {line}", flush=True)
    return int(bool(failed))


def fill(page: str, blocks: dict[str, str]) -> tuple[str, set[str]]:
    """The page with these blocks in their places; those not measured stay as they are. And blocks without a place."""
    places = set()

    def block(found: re.Match[str]) -> str:
        begin, name, before, end = found.groups()
        places.add(name)
        return f"{begin}\n{blocks[name]}\n\n{end}" if blocks.get(name) else found[0]

    return BLOCK.sub(block, page), set(blocks) - places


def run(number: int, quick: bool, only: str, out: Path) -> int:
    """One stage; what it found is written to a file."""
    report, failed = Report(), []
    try:
        with stage(*STAGES[number]):
            from .operations import OPERATIONS

            for name, place in QUESTIONS.items():
                if only not in name or (number and name != "databases"):
                    continue
                started = perf_counter()
                try:
                    module, _, function = place.partition(".")
                    ask = getattr(import_module(f"benchmarks.{module}"), function)  # needs Django
                    report.blocks[name] = ask(report, quick)
                except Exception as error:
                    traceback.print_exc()
                    failed.append(f"{name} ({', '.join(STAGES[number])}): {type(error).__name__}: {error}")
                print(f"{name}: {perf_counter() - started:.0f} s", flush=True)
            lines = [operation.line() for operation in OPERATIONS]
            found = {
                "blocks": report.blocks,
                "files": report.files,
                "losses": report.losses,
                "versions": stage_versions(),
                "operations": table(["", "round trips", "statements", "elsewhere"], lines),
                "failed": failed,
            }
    except servers.Missing as reason:
        found = {"left_out": str(reason), "failed": []}
        if "Valkey" not in str(reason) and number == 0:
            found["failed"] = [str(reason)]
    except Exception as error:
        traceback.print_exc()
        found = {"failed": [f"{', '.join(STAGES[number])}: {type(error).__name__}: {error}"]}
    out.write_text(json.dumps(found))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
