"""python -m tests.mutants [FILES…]: change the core, one place after another, and list what no test notices.

Changed is each line that keeps a rule, as a comment before or behind it says, and each comparison and `not`, in Python
and in Lua. Of FILES, only those of the core count, so `git diff --name-only main` may choose them. All happens in a
copy. The slow tests don't run.
"""

import argparse
import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import servers
from tests.__main__ import ALL, NO_TESTS, ONCE, ROOT, WORKERS, Run, start_database

CORE = ["buffer", "databases", "declaration", "reader.py", "sql", "upkeep", "writes"]
OTHERS = ["admin", "browser", "demo", "django_suite", "docs", "management", "monitoring", "packaging"]
"""Folders of tests that say nothing of the core."""
RUNS = [run.without_slow() for run in (*ONCE, ALL[1])]
SECONDS = 1200  # what hangs for so long is noticed

RULE = re.compile(r"\brules?: \w+")
LUA = {"==": "~=", "~=": "==", "<=": ">", ">=": "<", " < ": " >= ", " > ": " <= ", "not ": ""}
LUA_CONDITION = re.compile("|".join(map(re.escape, LUA)))
LUA_PART = re.compile(r"\b(then|do|else)$|^(elseif|else|end)\b|[{(,]$")
"""A line that can't go alone."""


@dataclass(frozen=True)
class Mutant:
    """A file in which one part of the text is replaced."""

    file: Path
    original: str
    start: int
    end: int
    new: str

    def __str__(self) -> str:
        line = self.original.count("\n", 0, self.start) + 1
        old = " ".join(self.original[self.start : self.end].split())
        return f"{self.file}:{line}: {old} -> {self.new or 'nothing'}"

    @property
    def source(self) -> bytes:
        return f"{self.original[: self.start]}{self.new}{self.original[self.end :]}".encode("latin-1")


def mutants(file: Path) -> Iterator[Mutant]:
    text = (ROOT / file).read_bytes().decode("latin-1")  # a character is a byte, because ast counts bytes
    for start, end, new in lua(text) if file.suffix == ".lua" else python(text):
        yield Mutant(file, text, start, end, new)


def lua(text: str) -> Iterator[tuple[int, int, str]]:
    keeps_rule, start = False, 0
    for line in text.splitlines(keepends=True):
        code, _, comment = line.partition("--")
        keeps_rule = keeps_rule or bool(RULE.search(comment))
        if code := code.strip():
            first = start + line.index(code)
            if keeps_rule and (assignment := re.match(r"local \w+ = ", code)):
                yield first + assignment.end(), first + len(code), "true"
            elif keeps_rule and not LUA_PART.search(code):
                yield first, first + len(code), ""
            for found in LUA_CONDITION.finditer(code):
                yield first + found.start(), first + found.end(), LUA[found[0]]
            keeps_rule = False
        start += len(line)


def python(text: str) -> Iterator[tuple[int, int, str]]:
    lines = text.splitlines(keepends=True)
    commented = [(number, *line.partition("#")) for number, line in enumerate(lines, 1)]
    keep_rules = {number + (not code.strip()) for number, code, _, comment in commented if RULE.search(comment)}

    def span(first: ast.expr | ast.stmt, last: ast.expr | ast.stmt | None = None) -> tuple[int, int]:
        start, end = first, last or first
        before = sum(map(len, lines[: start.lineno - 1])), sum(map(len, lines[: (end.end_lineno or 0) - 1]))
        return before[0] + start.col_offset, before[1] + (end.end_col_offset or 0)

    for node in ast.walk(ast.parse(text.encode("latin-1"))):
        if isinstance(node, ast.FunctionDef):
            if RULE.search(ast.get_docstring(node) or ""):
                yield *span(node.body[1], node), "return None"
        elif isinstance(node, ast.If | ast.While):
            if node.lineno in keep_rules:
                yield *span(node.test), "True"
                yield *span(node.test), "False"
        elif isinstance(node, ast.stmt):
            if node.lineno in keep_rules:
                yield *span(node), "pass"
        elif isinstance(node, ast.Compare):
            start, end = span(node)
            yield start, end, f"(not ({text[start:end]}))"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start, end = span(node)
            yield start, end, f"bool({text[start:end].removeprefix('not ')})"


class Tests:
    """The tests in a copy of this checkout, on servers that stay."""

    def __init__(self, stack: ExitStack) -> None:
        self.copy = stack.enter_context(servers.temporary_directory()) / "copy"
        shutil.copytree(ROOT, self.copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "build"))
        self.environments: dict[Run, dict[str, str]] = {}
        self.passed: set[tuple[str | Run, ...]] = set()
        for run in RUNS:
            with suppress(servers.Missing):
                redis = stack.enter_context(servers.redis(kind=run.redis))
                about = {"TEST_REDIS_URL": redis.url, "TEST_REDIS_KIND": run.redis, "TEST_USER_KEY": run.user_key}
                about |= {"TEST_DATABASE": run.database, **start_database(run.database, stack)[1]}
                self.environments[run] = {**os.environ, **about, "PYTHONDONTWRITEBYTECODE": "1"}

    def notice(self, mutant: Mutant, only_near: bool) -> bool:
        """Return whether a test fails. First the replay of the protocol, and what is named like the module."""
        name = mutant.file.parts[1].removesuffix(".py")
        near = [f"tests/{each}" for each in ("protocol", name, f"test_{name}.py")]
        near = [tests for tests in near if (self.copy / tests).exists()]
        for tests, run in itertools.product([near] if only_near else [near, ["tests"]], self.environments):
            if (*tests, run) not in self.passed:
                if failure := self.failure(tests, run):
                    sys.exit(f"{failure}\nThese tests fail without a change.")
                self.passed.add((*tests, run))
            (self.copy / mutant.file).write_bytes(mutant.source)
            failure = self.failure(tests, run)
            (self.copy / mutant.file).write_bytes(mutant.original.encode("latin-1"))
            if failure:
                return True
        return False

    def failure(self, tests: list[str], run: Run) -> str:
        """Return what pytest says of the first test that fails; empty if none does."""
        pytest = [sys.executable, "-m", "pytest", "-xqq", *WORKERS, "-m", run.marker, "-p", "no:cacheprovider", *tests]
        pytest += [f"--ignore=tests/{name}" for name in OTHERS]
        environment = self.environments[run]
        try:
            done = subprocess.run(pytest, cwd=self.copy, env=environment, capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return f"not done after {SECONDS} seconds"
        return "" if done.returncode in (0, NO_TESTS) else done.stdout.decode()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.mutants")
    parser.add_argument("files", nargs="*", type=Path, help="or folders; by default, the whole core")
    parser.add_argument("--near", action="store_true", help="only run the protocol's replay and the module's tests")
    parser.add_argument("--list", action="store_true", help="only say what would be changed")
    options = parser.parse_args(arguments)
    package = ROOT / "notifications_counter"
    core = {path for name in CORE for path in [package / name, *(package / name).rglob("*")]}
    core = {path for path in core if path.suffix in (".py", ".lua") and path.is_file()}
    files = [path.resolve() for path in options.files] or [package]
    chosen = sorted(path.relative_to(ROOT) for path in core if any(path.is_relative_to(file) for file in files))
    found = [mutant for path in chosen for mutant in mutants(path)]
    if options.list:
        print(*found, sep="\n")
        return 0
    alive = []
    with ExitStack() as stack:
        tests = Tests(stack)
        for number, mutant in enumerate(found, 1):
            began = time.monotonic()
            lives = not tests.notice(mutant, options.near)
            print(f"{number}/{len(found)}, {time.monotonic() - began:.0f} s{', LIVES' * lives}: {mutant}", flush=True)
            alive += [mutant] * lives
    print(f"{len(found)} changes, {len(alive)} not noticed", *alive, sep="\n  ")
    return int(bool(alive))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
