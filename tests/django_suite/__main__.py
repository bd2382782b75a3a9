"""python -m tests.django_suite [options] [labels…]: Django's own tests, with counters on their models.

After each statement that is counted, the deltas that were recorded are compared with the rows. The exit code is 1 if
one of them is wrong, or if a test fails that passes without counters, unless EXPECTED says why.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter as Tally
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import django

import servers

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "build" / "suites"
TESTS = SOURCES / f"django-{django.__version__}" / "tests"
PROCESSES = 2
DATABASES = ["sqlite", "postgresql", "mysql"]
PART = ["bulk_create", "composite_pk", "delete", "expressions", "fixtures", "get_or_create", "many_to_many"]
PART += ["model_inheritance", "select_for_update", "transaction_hooks", "transactions", "update"]

EXPECTED = [
    (
        "",
        r"(queries|INSERT|UPDATE)(.|\n)* AS counted0|test_commit_debug_log"
        "|test_fast_delete_all|test_large_batch_mixed_efficiency|test_update_parent_filtering",
        "the test counts queries, and the app selects the rows that a statement changes",
    ),
    (
        "postgresql",
        "test_save_user|test_self_reference_with_through_m2m_at_second_level"
        "|test_update_fields_deferred|test_update_only_defaults_and_pre_save_fields_when_local_fields",
        "the test takes SQL apart, in which PostgreSQL returns the owners of the changed rows",
    ),
    ("", "ledger.Ledger object at", "the test compares execute_wrappers, to which the app adds one"),
    ("", "test_disconnect_in_dispatch", "the test compares receivers, to which the app adds one"),
    ("", r"within datetime.timedelta\(seconds=1\)", "the test allows a second, and comparing takes time"),
    ("", "the cache 'counters', which is not a django-redis cache", "the test has CACHES of its own, without a Redis"),
    ("", "test_shortcut_view_with_site_m2m", "the test replaces apps.get_model(), which finds the model of the totals"),
]
"""A database or both, a regular expression that finds the test's name or its error, and why it fails with counters."""


def fetch() -> None:
    """Have TESTS, which are in Django's source distribution. Missing if it cannot be downloaded."""
    if TESTS.exists():
        return
    SOURCES.mkdir(parents=True, exist_ok=True)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
    requirement = f"django=={django.__version__}"
    with tempfile.TemporaryDirectory(dir=SOURCES) as directory:
        if subprocess.run([*download, f"--dest={directory}", requirement]).returncode:
            raise servers.Missing(f"no source distribution {requirement}: pip cannot download it")
        (packed,) = Path(directory).iterdir()
        subprocess.run(["tar", "-xf", packed], cwd=directory, check=True)
        (Path(directory) / TESTS.parent.name).replace(TESTS.parent)


def run(labels: Iterable[str], environment: dict[str, str]) -> list[dict[str, Any]]:
    """Run the tests with these labels in a process. Returns what it has reported."""
    with tempfile.NamedTemporaryFile("r") as report:
        path = os.pathsep.join(map(str, (TESTS, ROOT)))
        environment = {**os.environ, "PYTHONPATH": path, **environment, "SUITE_REPORT": report.name}
        command = [sys.executable, "runtests.py", "--settings=tests.django_suite.settings", "--parallel=1", "--noinput"]
        started = time.monotonic()
        done = subprocess.run([*command, *labels], cwd=TESTS, env=environment, capture_output=True, text=True)
        entries = [json.loads(line) for line in report]
    print(f"{time.monotonic() - started:.0f} s: {' '.join(labels)}", flush=True)
    if not any("tests" in entry for entry in entries):
        said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        entries.append({"failed": [("everything", f"exit code {done.returncode}, before the end:\n{said}")]})
    return entries


def all_labels() -> list[str]:
    """Return the modules of tests that have models."""
    found = {path.parent.name for path in TESTS.glob("*/models*")}
    return sorted(found - {"gis_tests"})  # GeoDjango needs another database


def failures(entries: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the error of each test that failed, by label. An id may be that of a subtest, or of a class whose tests
    cannot be set up."""
    found = (failure for entry in entries for failure in entry.get("failed", []))
    return {re.sub(r"^\w+ \((.*)\)$", r"\1", test).split(" ")[0]: error for test, error in found}


def reason(database: str, test: str, error: str) -> str:
    """Return why a test is expected to fail; empty if it is not."""
    found = (why for where, what, why in EXPECTED if where in ("", database) and re.search(what, f"{test}\n{error}"))
    return next(found, "")


def try_out(database: str, labels: list[str], environment: dict[str, str]) -> bool:
    """Run tests with counters on a database, print what was found, and return whether all is well."""
    number_of_groups = min(len(labels), PROCESSES * (1 + len(labels) // 50))
    groups = [labels[first::number_of_groups] for first in range(number_of_groups)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        reports = pool.map(lambda group: run(group, {**environment, "SUITE_COUNTED": "1"}), groups)
        entries = [entry for entries in reports for entry in entries]
    tally: Tally[str] = Tally()
    for entry in entries:
        tally.update(entry.get("tally", {"tests": entry.get("tests", 0)}))
    wrong = [entry["wrong"] for entry in entries if "wrong" in entry]
    failed = failures(entries)
    expected = Tally(filter(None, (reason(database, *failure) for failure in failed.items())))
    unexpected = {test: error for test, error in failed.items() if not reason(database, test, error)}
    number = len(unexpected)
    if again := sorted(unexpected.keys() - {"everything"}):
        for test in failures(run(again, environment)):
            unexpected.pop(test, None)
    for test, error in unexpected.items():
        print(f"FAILED: {test}\n{error}")
    for each in wrong:
        print(f"WRONG: {each}")
    print(
        f"Django {django.__version__} on {database}: {tally['tests']:,} tests, {tally['compared']:,} comparisons "
        f"({tally['doubts']:,} in doubt), {len(wrong):,} wrong deltas, {len(unexpected):,} failures"
    )
    print(f"  {tally['not compared']:,} not compared, because other threads were running")
    print(f"  {number - len(unexpected):,} tests fail without counters too")
    for why, times in expected.items():
        print(f"  {times:,} expected failures: {why}")
    return not wrong and not unexpected


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.django_suite")
    parser.add_argument("--database", choices=DATABASES, action="append", help="by default each")
    parser.add_argument("--part", action="store_true", help="only the modules whose tests write most")
    parser.add_argument("labels", nargs="*", help="as for Django's runtests.py")
    options = parser.parse_args(arguments)
    fetch()
    labels = options.labels or (PART if options.part else all_labels())
    results = []
    with ExitStack() as stack:
        environment = {"SUITE_REDIS": stack.enter_context(servers.redis()).url}
        for database in options.database or DATABASES:
            where = {}
            if database != "sqlite":
                try:
                    server = stack.enter_context(getattr(servers, database)())
                except servers.Missing as reason:
                    print(f"not tested: {database}, because there is {reason}")
                    results.append(database == "mysql")  # which some systems don't have
                    continue
                where = {"SUITE_DATABASE": database, "SUITE_PORT": str(server.port)}
            results.append(try_out(database, labels, {**environment, **where}))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
