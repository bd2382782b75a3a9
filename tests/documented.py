"""python -m tests.documented: find the names that the package uses in the documentation of Django.

``documented.txt`` says on which page each stands: in a directive, a literal or an example. A test fails for a name that
is neither there nor in ``internals/``. The pages come with the source of the installed Django.
"""

import ast
import builtins
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import django

import servers
from notifications_counter import internals

from .source import trees

LIST = Path(__file__).with_suffix(".txt")
ELSEWHERE = ("releases/", "internals/", "ref/contrib/gis/", "ref/contrib/admin/javascript.txt")
"""Pages about what is not for sites, or is not in Django's own classes."""

DIRECTIVE = re.compile(r"^[ *]*\.\. \w+:: +(?:\w+\.)*(\w+)", re.M)
MENTION = re.compile(r"(?:(?<=[\w)\]]\.)|(?<=``))\w+|\bimport .+")
"""An attribute, a literal, or an import in an example."""


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a module imports of other packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a module imports of other packages than Python, and what it imports from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and is_of_others(str(node.module)):
            yield from (alias.name for alias in node.names)
    yield from filter(is_of_others, imported(tree))


def is_of_others(module: str) -> bool:
    return module.split(".")[0] not in sys.stdlib_module_names


def attributes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name):
                yield name
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=name), *_]):
                yield name


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield functions, classes with what they set, and attributes that an object sets on itself."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name, body=body):
                lines = [line for line in body if isinstance(line, ast.Assign | ast.AnnAssign)]
                yield from (name, *(part.id for line in lines for part in ast.walk(line) if isinstance(part, ast.Name)))
            case ast.Attribute(attr=name, ctx=ast.Store()) if ast.unparse(node).startswith("self."):
                yield name


def of_others() -> set[str]:
    """Return the names that the package uses, but neither defines nor lists in ``internals/``, nor has from Python."""
    ours = [tree for path, tree in trees().items() if not path.startswith(("internals/", "migrations/"))]
    python = {builtins, *(import_module(name) for tree in ours for name in imported(tree) if not is_of_others(name))}
    classes = {thing for module in python for thing in vars(module).values() if isinstance(thing, type)}
    public = {name for thing in python | classes for name in dir(thing) if not re.match("_[^_]", name)}
    known = public.union({"_asdict", "_replace"}, *map(defined, ours), *internals.ATTRIBUTES.values())
    imports = {name for tree in ours for name in imported_names(tree)}
    return imports.union(name for tree in ours for name in attributes(tree) if name not in known)


def documented() -> set[str]:
    """Return the names in the list."""
    return {name for line in LIST.read_text().splitlines() for name in line.partition(": ")[2].split()}


def documentation() -> dict[str, str]:
    """Return the text of each page of Django's documentation."""
    with servers.temporary_directory() as directory:
        source = ["--no-deps", "--no-binary", "django", f"django=={django.__version__}"]
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", directory, *source], check=True)
        with tarfile.open(next(directory.glob("*.tar.gz"))) as archive:
            archive.extractall(directory, filter="data")
        docs = next(directory.glob("*/docs"))
        pages = {str(path.relative_to(docs)): path.read_text() for path in sorted(docs.rglob("*.txt"))}
    return {page: text for page, text in pages.items() if not page.startswith(ELSEWHERE)}


def main() -> None:
    names, pages, found = of_others(), documentation(), {}
    for page, text in pages.items():
        found |= dict.fromkeys(names.intersection(re.findall(r"\w+", " ".join(MENTION.findall(text)))), page)
        found |= {name: page for name in names if name.startswith("django.") and re.search(rf"\b{name}\b", text)}
    for page, text in pages.items():
        found |= dict.fromkeys(names.intersection(DIRECTIVE.findall(text)), page)
    names_on = {page: sorted(name for name in found if found[name] == page) for page in sorted({*found.values()})}
    LIST.write_text("".join(f"{page}: {' '.join(some)}\n" for page, some in names_on.items()))
    print("In internals/, or of other packages:", *sorted(names - found.keys()))


if __name__ == "__main__":
    main()
