"""Imports point one way: down the layers, and never in a circle. Django loads little of the app when it starts."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from .source import PACKAGE, trees

pytestmark = pytest.mark.once

# Top first. A module may import from its own layer and from those below it.
LAYERS = """
    admin apps urls management contrib templatetags testing migrations
    monitoring context_processors checks
    inbox tasks
    counters
    upkeep
    reader
    writes
    timeseries events sql
    declaration
    databases
    models
    buffer
    conf exceptions signals internals
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


def test_no_import_points_up():
    up = [f"{one} -> {other}" for one, others in arrows().items() for other in others if level(other) > level(one)]
    assert not up


def test_no_imports_form_a_cycle():
    try:
        TopologicalSorter(arrows()).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_no_import_is_hidden_from_the_interpreter():
    hidden = [
        f"{name} -> {other}"
        for name in MODULES
        for node in ast.walk(tree(name))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for other in imports(name, ast.Module(node.body, []))
    ]
    assert not hidden


# What every site needs. Anything else, and redis-py, is for the first process that uses it to load.
AT_START = """
    apps buffer checks conf counters databases declaration events exceptions internals models reader signals
    sql timeseries upkeep writes
"""

START = """
import sys
import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", *sys.argv[1:]],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3"}},
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://"}})
django.setup()
print(*sys.modules)
"""


def loaded(*apps: str) -> set[str]:
    """The modules that django.setup() loads on a site with these apps."""
    start = [sys.executable, "-c", START, *apps]
    return set(subprocess.run(start, cwd=PACKAGE.parent, capture_output=True, text=True, check=True).stdout.split())


def test_what_django_loads_at_the_start():
    """Importing redis-py takes longer than the whole app."""
    added = loaded("notifications_counter") - loaded()
    mine = {name for name in added if name.startswith("notifications_counter.")}
    assert {ours(name).split(".")[0] for name in mine} == set(AT_START.split())
    others = {name.split(".")[0] for name in added - mine}
    assert others - sys.stdlib_module_names == {"django", "notifications_counter"}
    assert not others & {"asyncio", "csv", "multiprocessing", "unittest", "urllib"}


def test_a_module_fits_on_a_few_screens() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
