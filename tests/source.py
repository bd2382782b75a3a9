"""The source of the package, parsed once by the tests that read it."""

import ast
from functools import cache
from pathlib import Path

import notifications_counter

PACKAGE = Path(notifications_counter.__file__).parent


@cache
def trees() -> dict[str, ast.Module]:
    """Each module of the package, by its path in there."""
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
