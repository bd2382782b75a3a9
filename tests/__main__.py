"""python -m tests [pytest arguments]: all tests on real servers, for each combination that behaves differently.

A server that this machine has not got is replaced or left out, and the last lines say so; with CI=true it is a failure.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import servers

ROOT = Path(__file__).resolve().parent.parent
CI = os.environ.get("CI") == "true"
FAILED = 1  # … when tests failed
NO_TESTS = 5  # pytest's exit code when it was given nothing to run


@dataclass(frozen=True)
class Run:
    database: str
    redis: str
    user_key: str
    marker: str

    def __str__(self) -> str:
        return f"{self.database}, {self.redis}, users with {self.user_key} keys, tests marked '{self.marker}'"


RUNS = (
    Run("postgresql", "redis", "int", "not once"),
    Run("mariadb", "valkey", "uuid", "not once"),
    Run("sqlite", "valkey", "string", "not once"),
    Run("postgresql", "valkey", "string", "keys"),
    Run("sqlite", "redis", "int", "once"),
)


def main(arguments: list[str]) -> int:
    summary: list[str] = []
    results: list[int] = []
    missing = False
    for run in RUNS:
        print(f"\n{run}", flush=True)
        with ExitStack() as stack:
            environment = {"TEST_DATABASE": run.database, "TEST_USER_KEY": run.user_key}
            try:
                redis = stack.enter_context(servers.redis(kind=run.redis))
            except servers.Missing as reason:
                missing = True
                summary.append(f"not tested: {run.redis}, because there is {reason}")
                redis = stack.enter_context(servers.redis())
            environment |= {"TEST_REDIS_URL": redis.url, "TEST_REDIS_KIND": redis.name.lower()}
            try:
                environment |= start_database(run.database, stack)
            except servers.Missing as reason:
                missing = True
                summary.append(f"not tested: {run}, because there is {reason}")
                continue
            pytest = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "worksteal", "-m", run.marker, *arguments]
            environment = {**os.environ, **environment}
            code = subprocess.run(pytest, cwd=ROOT, env=environment).returncode
            outcome = {0: "passed", NO_TESTS: "nothing to run"}.get(code, "FAILED")
            if code == FAILED:  # tests of real processes may starve on a busy machine: once more, one at a time
                code = subprocess.run([*pytest, "--last-failed", "-n", "0"], cwd=ROOT, env=environment).returncode
                outcome = "FAILED" if code else "passed at the second try, see above"
            results.append(code)
            summary.append(f"{outcome}: {run}")
    print("", *summary, sep="\n", flush=True)
    # Arguments may well choose tests that not every run has.
    allowed = {0, NO_TESTS} if arguments else {0}
    return int(not (0 in results and allowed.issuperset(results)) or (missing and CI))


def start_database(kind: str, stack: ExitStack) -> dict[str, str]:
    if kind == "sqlite":
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="notifications-counter-"))
        return {"TEST_DATABASE_NAME": f"{directory}/tests.sqlite3"}
    start = {"postgresql": servers.postgresql, "mariadb": servers.mariadb}[kind]
    return {"TEST_DATABASE_PORT": str(stack.enter_context(start()).port)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
