"""A plugin of pytest, which runs tests on a changed core in forks of its process."""

import faulthandler
import functools
import gc
import os
import resource
import sys
from collections import Counter as Tally
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from asgiref.sync import SyncToAsync
from coverage import Coverage
from django.db import connections

from tests.__main__ import ROOT

from .changes import Change, changes

PACKAGE = ROOT / "notifications_counter"
NOTICED = Path(os.environ["NOTICED"])
LIVES_HERE = f"LIVES on {os.environ['TEST_DATABASE']} with {os.environ['TEST_USER_KEY']} keys"
FEW = 20
"""How many tests are tried first for each change. They notice most of them, so what is left is known soon."""

TOO_MANY = 40
"""How many tests may fail in a fork without a change. A test that was killed may have left something behind."""

MEMORY = 4 << 30
BY_TENANTS = {"identity.py", "places.py", "routing.py"}
"""Files that tests of tenants try in processes of their own."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Forks())


class Forks:
    """Runs tests on the changes of the files in CHANGED, and adds to NOTICED which test notices each, if one does."""

    def __init__(self) -> None:
        self.failed: set[str] = set()
        self.skipped: set[str] = set()
        self.starting: set[str] = set()  # tests that start processes, in which nobody sees what they reach
        self.seconds: Tally[str] = Tally()
        self.kills: Tally[tuple[object, str]] = Tally()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped:
            self.skipped.add(report.nodeid)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        found = [change for file in os.environ["CHANGED"].split() for change in changes(Path(file))]
        alive = [change for change in found if f"{change} -> tests/" not in NOTICED.read_text()]
        if not alive:
            return True
        sys.addaudithook(self.note_process)
        coverage = Coverage(data_file=None, config_file=False, source=[str(PACKAGE)])
        for test in self.items:
            clear_caches()  # which hide what a test reaches
            coverage.start()  # again, because some tests trace lines themselves
            coverage.switch_context(test)
            self.run(test)
            coverage.stop()
        self.reached = {file: coverage.get_data().contexts_by_lineno(str(file)) for file in PACKAGE.rglob("*.py")}
        print(f"\n{len(self.items)} tests, of which fail without a change:", *self.failed, flush=True)
        for most in (FEW, len(self.items)):
            print(f"{len(alive)} changes, {most} tests for each", flush=True)
            alive = [change for change in alive if not self.is_settled(change, most)]
        return True

    def is_settled(self, change: Change, most: int) -> bool:
        """Try a change with so many tests. Returns whether one notices it, or there are no others."""
        tests = sorted(self.reaching(change) - self.failed - self.skipped, key=self.seconds.__getitem__)
        for what in ("", change.file):  # first those that have noticed most in this file in a second
            tests.sort(key=lambda test: self.kills[what, test] / self.seconds[test], reverse=True)
        tests, others = tests[:most], tests[most:]
        while (killer := self.failing(tests, change)) and self.is_always_failing(killer, change):
            self.failed.add(killer)  # for example because a thread is missing in a fork
            tests = tests[tests.index(killer) + 1 :]
            print(f"fails without a change by now: {killer}", flush=True)
            if len(self.failed) > TOO_MANY:
                pytest.exit(f"{len(self.failed)} tests fail without a change.")
        if others and not killer:
            return False
        self.kills.update([("", killer), (change.file, killer)])
        outcome = f"{change} -> {killer or LIVES_HERE}"
        print(outcome, flush=True)
        with NOTICED.open("a") as file:
            file.write(f"{outcome}\n")
        return True

    def reaching(self, change: Change) -> set[str]:
        """Return the tests that run a line, or call a script. What none reaches may be needed where tests begin."""
        tests: list[list[str]] = []
        if change.file.suffix == ".py":
            lines = self.reached[ROOT / change.file]
            tests = [lines[number] for number in range(change.line, 0, -1) if lines.get(number)][:1]
            if change.line not in lines:
                tests.append(list(self.starting))
        for file, lines in self.reached.items() if change.file.suffix == ".lua" else ():
            name = "SCRIPTS.call(" if change.file.stem == "shared" else f'"{change.file.stem}"'
            calls = [number for number, line in enumerate(file.read_text().splitlines(), 1) if name in line]
            tests += [lines.get(number, []) for number in calls]
        if change.file.name in BY_TENANTS:
            tests.append([test for test in self.items if test.startswith("tests/tenants/")])
        return set().union(*tests) - {""} or set(self.items)

    def note_process(self, event: str, arguments: object) -> None:
        if event == "subprocess.Popen":
            self.starting.add(os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0])

    def run(self, test: str) -> None:
        item = self.items[test]
        other = next(other for other in self.items.values() if other.path.parent != item.path.parent)  # so fixtures end
        item.ihook.pytest_runtest_protocol(item=item, nextitem=other)

    def is_always_failing(self, test: str, change: Change) -> bool:
        """Return whether a test also fails without the change: twice, because one that was hanging leaves rows."""
        unchanged = replace(change, end=change.start, new="")
        return bool(self.failing([test], unchanged) and self.failing([test], unchanged))

    def failing(self, tests: list[str], change: Change) -> str:
        """Return the first test that fails in a fork; empty if none does."""
        connections.close_all()
        running = Path("running")
        (ROOT / change.file).write_bytes(change.source)  # scripts, and the code of processes that tests start
        if not (fork := os.fork()):
            failed = True  # also if the package cannot even be used
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # a loop may have lost its end
                SyncToAsync.single_thread_executor = ThreadPoolExecutor(1)  # the other's thread is not here
                self.failed.clear()
                swap(change)
                for test in tests:
                    running.write_text(test)
                    faulthandler.dump_traceback_later(10 + 10 * self.seconds[test], exit=True)  # it hangs
                    self.run(test)
                    if self.failed:
                        break
                failed = bool(self.failed)
            finally:
                os._exit(failed)
        _, status = os.waitpid(fork, 0)
        (ROOT / change.file).write_bytes(change.text.encode("latin-1"))
        return running.read_text() if status else ""


def swap(change: Change) -> None:
    """Give the functions of a file their changed code, and empty what is cached. What runs at import stays."""
    path, codes = str(ROOT / change.file), {}
    waiting = [compile(change.source, path, "exec")] if path.endswith(".py") else []
    for code in waiting:
        codes[code.co_qualname, code.co_firstlineno] = code
        waiting += [constant for constant in code.co_consts if type(constant) is CodeType]
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == path:
            with suppress(KeyError, ValueError):
                thing.__code__ = codes[thing.__code__.co_qualname, thing.__code__.co_firstlineno]
    clear_caches()


def clear_caches() -> None:
    """Empty what functions and counters of the package have cached."""
    from notifications_counter.declaration import declarations  # not before models are loaded
    from notifications_counter.redis.calls import Scripts

    for thing in gc.get_objects():
        if type(thing) is functools._lru_cache_wrapper and thing.__module__.startswith("notifications_counter"):
            thing.cache_clear()
        elif type(thing) is Scripts:
            thing.clear()
    for counter in declarations():
        kinds = {name: type(getattr(type(counter), name, None)) for name in vars(counter)}
        for name in [name for name, kind in kinds.items() if kind is functools.cached_property]:
            delattr(counter, name)
