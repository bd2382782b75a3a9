"""python -m tests [--all | --rest] [--second-try] [pytest arguments]: the tests on real servers.

Each test runs once, where it says most; those marked ``slow`` only run if they are named. With ``--all``, all tests run
in each combination that matters; with ``--rest``, what a run without it has left out. If this machine has no program
for a server, another one takes its place or its tests are left out, and the last lines say so. With CI=true that is a
failure, except for MySQL, which some systems don't have.

TEST_DRIVERS names the drivers of MariaDB and MySQL, by default "PyMySQL mysqlclient".
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter as Tally
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import servers

ROOT = Path(__file__).resolve().parent.parent
CI = os.environ.get("CI") == "true"
FAILED = 1  # pytest's exit code when tests failed
NO_TESTS = 5  # … and when it was given nothing to run
OF_MARIADB, OF_MYSQL = os.environ.get("TEST_DRIVERS", "PyMySQL mysqlclient").split()
WORKERS = ["-n", "4", "--dist", "worksteal"]  # for two processors, because some tests wait for a server or a browser


@dataclass(frozen=True)
class Run:
    database: str
    redis: str
    user_key: str
    marker: str

    def __str__(self) -> str:
        return f"{self.database}, {self.redis}, {self.tests}"

    @property
    def tests(self) -> str:
        return f"users with {self.user_key} keys, tests marked '{self.marker}'"

    def without_slow(self) -> Run:
        return replace(self, marker=f"{self.marker} and not slow")


ONCE = (
    Run("postgresql", "redis", "int", "not once"),
    Run("sqlite", "valkey", "string", "once"),
)
ALL = (
    Run("sqlite", "redis", "string", "once or not once"),
    Run("postgresql", "redis", "uuid", "not once"),
    Run("mariadb", "valkey", "uuid", "not once"),
    Run("mysql", "redis", "string", "not once and not slow"),
    Run("postgresql", "valkey", "string", "keys"),
)
REST = (replace(ALL[0], marker="slow or not once"), replace(ALL[1], marker="slow and not once"), *ALL[2:])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests", allow_abbrev=False, epilog="Other arguments go to pytest.")
    parser.add_argument("--all", action="store_true", help="every test, in each combination that matters")
    parser.add_argument("--rest", action="store_true", help="of all, what a run without this leaves out")
    parser.add_argument("--second-try", action="store_true", help="run failed tests once more, one at a time")
    options, arguments = parser.parse_known_args(arguments)
    summary: list[str] = []
    results: list[int] = []
    missing = False
    names_tests = any(not argument.startswith("-") for argument in arguments)
    quick = [run.without_slow() for run in ONCE]
    runs = ALL if options.all else REST if options.rest else ONCE if names_tests else quick
    for run in runs:
        print(f"\n{run}", flush=True)
        with ExitStack() as stack:
            try:
                redis = stack.enter_context(servers.redis(kind=run.redis))
            except servers.Missing as reason:
                missing = True
                summary.append(f"not tested: {run.redis}, because there is {reason}")
                redis = stack.enter_context(servers.redis())
            try:
                database, environment = start_database(run.database, stack)
            except servers.Missing as reason:
                missing = missing or run.database != "mysql"
                summary.append(f"not tested: {run}, because there is {reason}")
                continue
            if driver := {"mariadb": OF_MARIADB, "mysql": OF_MYSQL}.get(run.database):
                if driver == "mysqlclient" and not importlib.util.find_spec("MySQLdb"):
                    missing = True
                    summary.append(f"not tested: {database} by {driver}, which is not installed")
                    driver = "PyMySQL"
                database += f" by {driver}"
                environment["TEST_DRIVER"] = driver
            environment |= {"TEST_DATABASE": run.database, "TEST_USER_KEY": run.user_key}
            environment |= {"TEST_REDIS_URL": redis.url, "TEST_REDIS_KIND": redis.name.lower()}
            code, failed, absent = pytest([*WORKERS, "-m", run.marker, *arguments], environment)
            second_try = failed if code == FAILED and options.second_try else []
            if second_try:
                code, failed, _ = pytest(["-n", "0", *second_try], environment)
            outcome = {0: "passed", NO_TESTS: "nothing to run"}.get(code, "FAILED")
            what_ran = f"{database}, {redis.name} {redis.version}, {run.tests}"
            results.append(code)
            summary += [f"{outcome}: {what_ran}", *(f"  {test}" for test in failed if code)]
            if code == 0:
                summary += [f"passed only at the second try: {test}, on {what_ran}" for test in second_try]
            missing = missing or bool(absent)
            summary += [f"not tested: {number} tests of these, {what}" for what, number in absent.items()]
    print("", *summary, sep="\n", flush=True)
    # Arguments may well choose tests that not every run has.
    allowed = {0, NO_TESTS} if arguments else {0}
    return int(not (0 in results and allowed.issuperset(results)) or (missing and CI))


def start_database(kind: str, stack: ExitStack) -> tuple[str, dict[str, str]]:
    """Its name and version, and what the tests' settings need to know."""
    if kind == "sqlite":
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="notifications-counter-"))
        return f"SQLite {sqlite3.sqlite_version}", {"TEST_DATABASE_NAME": f"{directory}/tests.sqlite3"}
    # What waits for a lock does so for as long as the tests are patient.
    options = () if kind == "postgresql" else ["--innodb-lock-wait-timeout=600"]
    server = stack.enter_context(getattr(servers, kind)(*options))
    return f"{server.name} {server.version}", {"TEST_DATABASE_PORT": str(server.port)}


def pytest(arguments: list[str], environment: dict[str, str]) -> tuple[int, list[str], Tally[str]]:
    """Run pytest. Returns its exit code, the tests that failed, and how many were skipped for want of what."""
    with tempfile.NamedTemporaryFile("r", prefix="notifications-counter-") as outcomes:
        environment = {**os.environ, **environment, "TEST_OUTCOMES": outcomes.name}
        # Many processes import the same modules. Where this variable is set, each would compile them.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        code = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment).returncode
        found = json.loads(outcomes.read() or "{}")
    return code, found.get("failed", []), Tally(found.get("missing", []))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
