"""python -m tests.mutants [FILES…]: change the core, one place after another, and list what no test notices.

Of FILES, only those of the core count, so `git diff --name-only main` may choose them. All happens in a copy: the tests
of the core run once, to learn which lines each of them reaches. Then, for each change, a fork runs those that reach it,
until one fails. What lives is tried on the next database. The slow tests don't run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import servers
from tests.__main__ import ROOT

from .changes import changes

CORE = ["buffer", "databases", "declaration", "places.py", "counters.py", "reads.py", "sql", "upkeep", "writes"]
TESTS = "protocol/test_replay.py buffer databases declaration inbox management monitoring property"
TESTS += " statements tenants timeseries upkeep writes composite_owners test_budgets.py test_caches.py test_counters.py"
TESTS += " test_events.py test_places.py test_reads.py test_signals.py test_tasks.py test_top.py"
PYTEST = ["-p", "tests.mutants.forks", "-n", "0", "-sqq", "-p", "no:randomly", "-m", "not slow"]


def main(arguments: list[str]) -> int:
    core = [ROOT / "notifications_counter" / name for name in CORE]
    core = [path for each in core for path in (each, *sorted(each.rglob("*"))) if path.suffix in (".lua", ".py")]
    files = [Path(file).resolve() for file in arguments or [ROOT]]
    chosen = [path.relative_to(ROOT) for path in core if any(path.is_relative_to(file) for file in files)]
    if not chosen:
        print("None of these files belongs to the core, so nothing is changed.")
        return 0
    with servers.temporary_directory() as directory:
        copy, noticed = directory / "copy", Path(os.environ.get("NOTICED", directory / "noticed"))
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "build"))
        noticed.touch()
        environment = {**os.environ, "CHANGED": " ".join(map(str, chosen)), "NOTICED": str(noticed)}
        environment["COVERAGE_CORE"] = "ctrace"  # the other one, of Python 3.14, knows no contexts
        command = [sys.executable, "-m", "tests", "--all", *PYTEST, *(f"tests/{name}" for name in TESTS.split())]
        subprocess.run(command, cwd=copy, env=environment)
        found = [change for path in chosen for change in changes(path)]
        alive = [change for change in found if f"{change} -> " not in noticed.read_text()]
    print(f"{len(found)} changes, {len(alive)} not noticed", *alive, sep="\n  ")
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
