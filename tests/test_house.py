"""Imports point one way: down the layers, and never in a circle."""

import ast
from functools import cache
from graphlib import TopologicalSorter

import pytest

from .source import PACKAGE, trees

pytestmark = pytest.mark.once

# Top first. A module may import from its own layer and from those below it.
LAYERS = """
    inbox
    admin apps management contrib testing migrations
    monitoring checks
    tasks
    counters
    upkeep
    reader
    writes
    timeseries events places sql
    declaration
    databases
    models
    buffer
    caches
    chunks conf exceptions signals internals
"""
LEVEL = {name: level for level, line in enumerate(reversed(LAYERS.strip().splitlines())) for name in line.split()}

MODULES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items() if name != "__init__"}


def imports(module: str, tree: ast.AST) -> set[str]:
    """Our modules that the code of a module imports, at the top or inside a function."""
    package = ["notifications_counter", *module.split(".")]
    if MODULES[module].name != "__init__.py":
        package.pop()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*start, *filter(None, [node.module])])
            names = {f"{source}.{alias.name}" for alias in node.names}
            found |= {name if ours(name) in MODULES else source for name in names}
    return {ours(name) for name in found} & MODULES.keys()


def ours(name: str) -> str:
    return name.removeprefix("notifications_counter.")


def tree(module: str) -> ast.AST:
    return trees()[str(MODULES[module].relative_to(PACKAGE))]


@cache
def arrows() -> dict[str, set[str]]:
    """What each module imports."""
    return {name: imports(name, tree(name)) for name in MODULES}


def level(module: str) -> int:
    return LEVEL[module.split(".")[0]]


def test_every_module_has_a_layer():
    assert {name.split(".")[0] for name in MODULES} == LEVEL.keys()


def test_no_import_points_up_or_forms_a_cycle():
    up = [f"{one} -> {other}" for one, others in arrows().items() for other in others if level(other) > level(one)]
    assert not up
    TopologicalSorter(arrows()).prepare()  # CycleError
