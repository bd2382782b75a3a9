"""python -m tests.mutants [FILES…]: change the core, one place after another, and list what no test notices.

Of FILES, only those of the core count, so `git diff --name-only main` may choose them. All happens in a copy: the tests
of the core run once, to learn which lines each of them reaches. Then, for each change, a fork runs those that reach it,
until one fails. What lives is tried on the next database. The slow tests don't run.

All of the core takes hours. Ctrl-C ends a run, which then says how far it came. With NOTICED=file in the environment,
the next run goes on there: it does not try again what a test has noticed, unless the line has moved.
"""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import servers
from tests.__main__ import ROOT

from .changes import changes

CORE = "buffer databases declaration failures.py places.py counters.py reads.py redis sql upkeep writes"
TESTS = "protocol/test_replay.py databases declaration inbox management monitoring property redis"
TESTS += " statements tenants timeseries upkeep writes composite_owners test_budgets.py test_admin.py test_caches.py"
TESTS += " test_counters.py test_events.py test_places.py test_reads.py test_signals.py test_tasks.py test_testing.py"
TESTS += " test_top.py"
PYTEST = ["-p", "tests.mutants.forks", "-n", "0", "-sqq", "-p", "no:randomly", "-m", "not slow"]


def main(arguments: list[str]) -> int:
    core = [ROOT / "notifications_counter" / name for name in CORE.split()]
    core = [path for each in core for path in (each, *sorted(each.rglob("*"))) if path.suffix in (".lua", ".py")]
    files = [Path(file).resolve() for file in arguments or [ROOT]]
    chosen = [path.relative_to(ROOT) for path in core if any(path.is_relative_to(file) for file in files)]
    if not chosen:
        print("None of these files belongs to the core, so nothing is changed.")
        return 0
    with servers.temporary_directory() as directory:
        copy, noticed = directory / "copy", Path(os.environ.get("NOTICED", directory / "noticed")).resolve()
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "build"))
        noticed.touch()
        environment = {**os.environ, "CHANGED": " ".join(map(str, chosen)), "NOTICED": str(noticed)}
        environment["COVERAGE_CORE"] = "ctrace"  # the other one, of Python 3.14, knows no contexts
        command = [sys.executable, "-m", "tests", "--all", *PYTEST, *(f"tests/{name}" for name in TESTS.split())]
        with suppress(KeyboardInterrupt):
            subprocess.run(command, cwd=copy, env=environment)
        lines = noticed.read_text().splitlines()
    found = [f"{change} -> " for path in chosen for change in changes(path)]
    outcomes = {change: {line.removeprefix(change) for line in lines if line.startswith(change)} for change in found}
    alive = {change: on for change, on in outcomes.items() if on and all(each.startswith("LIVES") for each in on)}
    untried = list(outcomes.values()).count(set())
    print(f"{len(found)} changes, {untried} not tried, {len(alive)} not noticed")
    for change, on in alive.items():
        print(f"  {change}{', '.join(sorted(on))}")
    return int(bool(alive or untried))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
