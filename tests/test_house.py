"""Imports point one way: down the layers, and never in a circle."""

import ast
from graphlib import TopologicalSorter

import pytest

from .source import trees

pytestmark = pytest.mark.once

# Top first. A module may import from its own layer and from those below it.
LAYERS = """
    inbox
    admin apps management contrib testing migrations
    checks
    tasks
    monitoring
    timeseries events
    recipes
    counters
    reads
    upkeep
    writes
    failures
    places sql
    declaration
    databases
    models
    buffer
    redis
    caches
    reports
    conf exceptions signals internals
"""
LEVEL = {name: level for level, line in enumerate(reversed(LAYERS.strip().splitlines())) for name in line.split()}


MODULES = {
    path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
    for path in trees()
    if path != "__init__.py"
}


def imports(path: str) -> set[str]:
    """Our modules that the code of a module imports, at the top or inside a function."""
    package = ["notifications_counter", *path.split("/")[:-1]]
    found = set()
    for node in ast.walk(trees()[path]):
        if isinstance(node, ast.Import):
            found |= {ours(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*start, *filter(None, [node.module])])
            names = {ours(f"{source}.{alias.name}") for alias in node.names}
            found |= {name if name in MODULES else ours(source) for name in names}
    return found & MODULES.keys()


def ours(name: str) -> str:
    """Return the name of a module in the package; '' for another one, such as ``redis``."""
    package, _, module = name.partition(".")
    return module if package == "notifications_counter" else ""


def level(module: str) -> int:
    return LEVEL[module.split(".")[0]]


def test_every_module_has_a_layer():
    assert {name.split(".")[0] for name in MODULES} == LEVEL.keys()


def test_no_import_points_up_or_forms_a_cycle():
    arrows = {name: imports(path) for name, path in MODULES.items()}
    assert not [f"{one} -> {other}" for one, others in arrows.items() for other in others if level(other) > level(one)]
    TopologicalSorter(arrows).prepare()  # CycleError
